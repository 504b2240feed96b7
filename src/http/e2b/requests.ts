import * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import { EnvironmentVariables } from '../../wire/compute.ts';
import { text, wholeNumber } from '../../wire/parts.ts';

/** The requests of E2B's API. Members that change nothing here are left unread, as its SDKs gain some with each version. */

/** E2B's own default for the life of a sandbox, in seconds. */
const TIMEOUT_SECONDS = 300;
const LIFE_SECONDS_MAX = 30 * 86_400;

const Enabled = v.optional(v.nullable(v.looseObject({ enabled: v.optional(v.boolean()) })));
const Metadata = v.record(v.string(), v.string('must be a string'), 'must be an object of strings');

export const CreateSandbox = v.looseObject({
  templateID: text(1, 128),
  timeout: v.optional(wholeNumber(1, LIFE_SECONDS_MAX), TIMEOUT_SECONDS),
  metadata: v.optional(v.nullable(Metadata)),
  envVars: v.optional(v.nullable(v.unwrap(EnvironmentVariables))),
  autoPause: v.optional(v.nullable(v.boolean())),
  autoResume: Enabled,
  allow_internet_access: v.optional(v.nullable(v.boolean())),
  network: v.optional(v.nullable(v.record(v.string(), v.unknown()))),
  mcp: v.optional(v.unknown()),
  iam: v.optional(v.unknown()),
  volumeMounts: v.optional(v.nullable(v.array(v.unknown()))),
});
export type CreateSandbox = v.InferOutput<typeof CreateSandbox>;

export const ConnectSandbox = v.looseObject({
  timeout: v.optional(wholeNumber(0, LIFE_SECONDS_MAX), TIMEOUT_SECONDS),
});
export const TimeoutOfSandbox = v.looseObject({ timeout: wholeNumber(0, LIFE_SECONDS_MAX) });

/** The members of `network` that are true of every sandbox here, whatever their value. */
const OF_PORTS = new Set(['allowPublicTraffic', 'maskRequestHost']);
const isEmpty = (it: unknown) => it == null || (typeof it === 'object' && Object.keys(it).length === 0);

/** Throws `invalid_request` for a sandbox that a lease cannot be. */
export function refuseUnserved(order: CreateSandbox): void {
  const refuse = (what: string) => {
    throw new Refusal('invalid_request', `${what} Leave it out.`);
  };
  if (order.autoPause || order.autoResume?.enabled) refuse('A sandbox here is not paused: it ends with its timeout.');
  const rules = Object.entries(order.network ?? {}).filter(([name, it]) => !OF_PORTS.has(name) && !isEmpty(it));
  if (order.allow_internet_access === false || rules.length)
    refuse('The network of a sandbox is set by the operator, and not by its create.');
  if (!isEmpty(order.mcp)) refuse('No MCP gateway is started in a sandbox.');
  if (!isEmpty(order.iam)) refuse('A sandbox here has no tokens of a cloud (iam).');
  if (!isEmpty(order.volumeMounts)) refuse('A sandbox here mounts no volumes.');
}

const LIMIT_MAX = 100;
/** The parameters of a list. */
type ListParameters = {
  metadata: [string, string][];
  isRunningWanted: boolean;
  template: string | undefined;
  startedAfter: number;
  isAscending: boolean;
  limit: number;
  next: string | undefined;
};

/** Reads the query of a list. The filter by metadata is encoded three times: a query in a query, with encoded names and values. */
export function listingOf(query: Record<string, string>): ListParameters {
  const { metadata = '', state = 'running', startedAfter, template, order, limit, nextToken } = query;
  const count = limit === undefined ? LIMIT_MAX : Number(limit);
  if (!Number.isInteger(count) || count < 1 || count > LIMIT_MAX)
    throw new Refusal('invalid_request', `limit: must be a whole number from 1 to ${LIMIT_MAX}.`);
  const after = startedAfter === undefined ? Number.NEGATIVE_INFINITY : Date.parse(startedAfter) / 1000;
  if (Number.isNaN(after)) throw new Refusal('invalid_request', 'startedAfter: must be a time, as in RFC 3339.');
  return {
    metadata: [...new URLSearchParams(metadata)].map(([name, value]) => [decoded(name), decoded(value)]),
    isRunningWanted: state.split(',').includes('running'),
    template,
    startedAfter: after,
    isAscending: order === 'asc',
    limit: count,
    next: nextToken,
  };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Refusal('invalid_request', 'metadata: is not encoded as a query.');
  }
}
