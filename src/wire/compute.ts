import * as v from 'valibot';
import { formatUsd, Nanos, ZERO } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { type Offer, SLOTS, type Slot, type Spec, type Usage } from '../compute/backend.ts';
import { canExtend } from '../compute/slots.ts';
import { RESOURCE_STATUSES } from '../db/enums.ts';
import type { Reader } from '../db/handle.ts';
import { parseEntry } from '../egress/list.ts';
import type { LeaseApp } from '../lease/create.ts';
import { isPaused, shownStatus } from '../lease/pausing.ts';
import { whyProvisioning } from '../lease/why.ts';
import { keepOf } from '../ledger/keep.ts';
import { operationOf } from '../ledger/operation.ts';
import type { Resource } from '../ledger/resource.ts';
import { checked, Id, Time, text, Usd, wholeNumber } from './parts.ts';

const maxSeconds = wholeNumber(60, 30 * 86_400);
const POSITIVE = 'must be a number above 0 with at most two decimals';
const positive = v.pipe(
  v.number(POSITIVE),
  v.gtValue(0, POSITIVE),
  v.maxValue(1_000_000, POSITIVE),
  v.check((it) => Number(it.toFixed(2)) === it, POSITIVE),
);

/** Compute request (interface, section 2; the members of spec: design, section 7). */
export const ComputeRequest = v.variant(
  'provider',
  [
    v.strictObject({
      provider: v.literal('provider_one'),
      spec: v.pipe(
        v.strictObject({
          gpu: v.optional(v.nullable(text(1, 100))),
          gpus: v.optional(wholeNumber(0, 64)),
          cpus: positive,
          memory_gib: positive,
          max_seconds: maxSeconds,
        }),
        v.check(
          ({ gpu, gpus }) => ((gpus ?? 0) === 0 ? gpu == null : gpu != null),
          'gpus must be 0 exactly when gpu is null; both may be left out together',
        ),
      ),
    }),
    v.strictObject({
      provider: v.literal('provider_two'),
      spec: v.strictObject({ chip: text(1, 100), max_seconds: maxSeconds }),
    }),
    v.strictObject({
      provider: v.literal('provider_three'),
      spec: v.strictObject({ offer_id: text(1, 100), disk_gb: wholeNumber(1, 1_000_000), max_seconds: maxSeconds }),
    }),
  ],
  'must be provider_one, provider_two or provider_three',
);

const WAIT = 'must be a whole number of seconds from 0 to 600';
/** The time that a create waits for its machine, as a parameter of the query. */
export const CreateQuery = v.strictObject({
  wait_seconds: v.optional(
    v.pipe(
      v.string(WAIT),
      checked((it: string) => /^\d{1,3}$/.test(it) && Number(it) <= 600, WAIT, {
        type: 'integer',
        minimum: 0,
        maximum: 600,
        default: 30,
        description:
          'seconds for which the answer waits for the machine to run and, where it is given, for the slot to have room; no part of what a key compares',
      }),
    ),
  ),
  snapshot: v.optional(
    v.pipe(Id, v.description('the snapshot of this wallet that the machine is made from, in place of its image')),
  ),
});
export const ResourceId = v.object({ id: Id });
export const ExtendRequest = v.strictObject({ id: Id, additional_seconds: wholeNumber(1, 86_400) });
/** Shortest and longest step of a lease that is kept while it is busy, in seconds. */
const STEP_SECONDS = { min: 60, max: 3600 };
const STEP = `must be 0, or a whole number from ${STEP_SECONDS.min} to ${STEP_SECONDS.max}`;
export const KeepRequest = v.pipe(
  v.strictObject({
    id: Id,
    extend_seconds: v.pipe(
      v.number(STEP),
      v.safeInteger(STEP),
      checked((it: number) => it === 0 || (it >= STEP_SECONDS.min && it <= STEP_SECONDS.max), STEP, {
        anyOf: [{ const: 0 }, { minimum: STEP_SECONDS.min, maximum: STEP_SECONDS.max }],
        description: 'the length of a step; 0 ends it',
      }),
    ),
    max_seconds: v.optional(maxSeconds),
  }),
  v.forward(
    v.partialCheck(
      [['extend_seconds'], ['max_seconds']],
      ({ extend_seconds: step, max_seconds: max }) => step === 0 || (max !== undefined && max >= step),
      'must be given, and be at least extend_seconds, unless that is 0',
    ),
    ['max_seconds'],
  ),
);
const faultOf = (entry: string) => (parseEntry(entry) as { fault?: string }).fault;
/** The row of a lease has the list, and rows are read in hundreds. */
const ENTRIES = 'must be a list of at most 100 entries, with at most 4096 characters in all';
export const EgressRequest = v.strictObject({
  id: Id,
  allow: v.pipe(
    v.array(
      v.pipe(
        text(1, 300),
        checked(
          (it: string) => faultOf(it) === undefined,
          ({ input }) => faultOf(input) ?? '',
          {
            description: 'public, a name, *.NAME, an address or a network, each with :PORT unless it is for 80 and 443',
          },
        ),
      ),
      ENTRIES,
    ),
    v.maxLength(100, ENTRIES),
    checked((it: string[]) => it.join('').length <= 4096, ENTRIES, {
      description:
        'what the lease may reach, within the operator’s list; nothing where it is empty. At most 4096 characters in all',
    }),
  ),
});
export const EgressAnswer = v.object({ id: v.string(), allow: v.array(v.string()) });
/** Returns a schema action that refuses text which no program can get as an argument. */
export const withoutNul = (description: string) =>
  checked((it: string) => !it.includes('\0'), 'must not contain NUL', {
    pattern: '^[^\\u0000]*$',
    description,
  });
export const Command = v.pipe(text(1, 65_536), withoutNul('a command line for sh -c; no NUL'));
/** The directory that a command starts in. */
export const WorkingDirectory = v.optional(
  v.pipe(
    text(1, 4096),
    withoutNul('the directory in which it starts, absolute or from where commands start without it'),
  ),
);
const NAME = 'must be a name of a shell variable (letters, digits and _) that does not begin with PURSER_';
/** Variables of a command. */
export const EnvironmentVariables = v.optional(
  v.pipe(
    v.record(
      v.pipe(v.string(), v.regex(/^(?!PURSER_)[A-Za-z_][A-Za-z0-9_]{0,255}$/, NAME)),
      v.pipe(v.string('must be a string'), withoutNul('no NUL')),
      'must be an object of names and strings',
    ),
    v.description('variables of its environment, beside those that commands have'),
  ),
);

/** Returns whether a text is base64. Line breaks may be anywhere, as in the output of many programs (RFC 2045, section 6.8). */
function isBase64(text: string): boolean {
  const characters = text.replace(/[\r\n]+/g, '');
  return characters.length % 4 === 0 && /^[0-9A-Za-z+/]*={0,2}$/.test(characters);
}

/** Returns the schema of base64, with a description of its purpose. */
const base64 = (description: string) =>
  v.pipe(
    v.string('must be a string'),
    // valibot's own pattern overflows the stack on a string of several megabytes.
    checked(isBase64, 'must be base64', { contentEncoding: 'base64', description }),
  );

export const ExecRequest = v.object({
  id: Id,
  command: Command,
  timeout: v.optional(wholeNumber(1, 3600), 300),
  cwd: WorkingDirectory,
  env: EnvironmentVariables,
  stdin: v.optional(v.pipe(v.string('must be a string'), v.description('its standard input, as text'))),
  stdin_base64: v.optional(base64('its standard input, as base64; not beside stdin')),
});

const UploadPath = v.pipe(
  text(1, 4096),
  v.description(
    'the path of a file: no control characters, no part that is . or .., no slash at its end, not in /proc, /sys, /dev or /run/purser',
  ),
);
/** The target of a body that is no JSON: a file, or a directory for an archive. */
export const UploadQuery = v.strictObject({ id: Id, path: UploadPath });
export const UploadRequest = v.object({
  id: Id,
  path: UploadPath,
  content_base64: base64('base64 of at most 8 MiB; may have line breaks'),
});

const count = v.pipe(v.number(), v.integer());
const bytes = v.optional(count);
/** The use of a machine, as `status` returns it. */
const UsageSummary = v.pipe(
  v.object({
    cpu_seconds: v.optional(v.number()),
    memory_bytes: bytes,
    disk_bytes: bytes,
    network_bytes: bytes,
    gpus: v.optional(
      v.pipe(
        v.array(v.object({ utilization_percent: v.optional(count), memory_bytes: bytes })),
        v.description(
          'each of its GPUs at present, as nvidia-smi in it says; what that does not tell is left out, and all while a keep measures',
        ),
      ),
    ),
  }),
  v.description(
    'what the machine uses, as of a few seconds ago (disk: about a minute); in status only, while it runs. What its engine cannot tell is left out, and all of it while the engine does not answer',
  ),
);

/** Resource summary (design, section 3): the Compute resource of the interface and the additions of lists. */
export const ResourceSummary = v.object({
  id: v.string(),
  provider_id: v.nullable(v.string()),
  provider: v.picklist(SLOTS),
  status: v.picklist(RESOURCE_STATUSES),
  status_reason: v.optional(
    v.pipe(v.string(), v.description('there while provisioning, if it is known what the resource waits for')),
  ),
  billing_state: v.picklist(['reserved', 'uncertain', 'settled']),
  billing_policy: v.literal('prepaid_time'),
  charged_usd: Usd,
  reserved_usd: Usd,
  expires_at: Time,
  purchased_seconds: v.pipe(v.number(), v.integer()),
  seconds_left: v.optional(v.pipe(count, v.description('the paid time that is kept; there while it is paused'))),
  price_hourly_usd: Usd,
  supports_extension: v.boolean(),
  wallet_id: v.string(),
  spec: v.record(v.string(), v.unknown()),
  snapshot_id: v.optional(v.pipe(v.string(), v.description('the snapshot that it was made from'))),
  created_at: Time,
  ready_at: v.nullable(Time),
  ended_at: v.nullable(Time),
  end_reason: v.nullable(
    v.picklist(['requested', 'lease_expired', 'wallet_closed', 'provider_ended', 'create_failed', 'disk_exceeded']),
  ),
  egress: v.optional(
    v.pipe(
      v.array(v.object({ host: v.string(), bytes: count, refused: count })),
      v.description(
        'in the answer of status, where the resource has a way out: what it exchanged with each host, both ways together, and how often it was refused, since the server started; further hosts are `other`',
      ),
    ),
  ),
  keep: v.optional(
    v.pipe(
      v.object({
        state: v.picklist(['active', 'uncertain', 'ended']),
        extend_seconds: v.pipe(v.number(), v.integer()),
        max_seconds: v.pipe(v.number(), v.integer()),
        bought_seconds: v.pipe(v.number(), v.integer()),
        watches: v.pipe(
          v.nullable(v.array(v.picklist(['cpu', 'connections']))),
          v.description('what tells that the machine is busy; null before it was first asked'),
        ),
        reason: v.pipe(
          v.nullable(v.string()),
          v.description('why it has ended, or why a step that is due is not bought: a word, or the code of a refusal'),
        ),
        message: v.nullable(v.string()),
      }),
      v.description('there if the lease was ever kept while busy: its newest keep'),
    ),
  ),
  usage: v.optional(UsageSummary),
});

function keepSummary(read: Reader, resourceId: string): v.InferOutput<typeof ResourceSummary>['keep'] {
  const keep = keepOf(read, resourceId);
  if (!keep) return undefined;
  const isInDoubt = keep.operationId !== null && operationOf(read, keep.operationId).state === 'uncertain';
  return {
    state: keep.endedAt !== null ? 'ended' : isInDoubt ? 'uncertain' : 'active',
    extend_seconds: keep.extendSeconds,
    max_seconds: keep.maxSeconds,
    bought_seconds: keep.boughtSeconds,
    watches: keep.cpuSource && (keep.cpuSource === 'none' ? ['connections'] : ['cpu', 'connections']),
    reason: keep.endReason ?? keep.waiting,
    message: keep.endMessage,
  };
}

/** Renders what a machine uses; undefined where nothing is known. */
export function usageSummary(usage: Usage | undefined): v.InferOutput<typeof UsageSummary> | undefined {
  const { cpuSeconds, memoryBytes, diskBytes, networkBytes, gpus } = usage ?? {};
  const members = {
    cpu_seconds: cpuSeconds === undefined ? undefined : Math.round(cpuSeconds * 1000) / 1000,
    memory_bytes: memoryBytes,
    disk_bytes: diskBytes,
    network_bytes: networkBytes,
    gpus: gpus?.map((it) => ({ utilization_percent: it.utilizationPercent, memory_bytes: it.memoryBytes })),
  };
  const known = Object.entries(members).filter(([, it]) => it !== undefined);
  return known.length ? Object.fromEntries(known) : undefined;
}

/** Renders a resource row; reads the operation that created it. */
export function summaryOf(
  app: { ledger: { read: Reader } } & Pick<LeaseApp, 'waitingFor'>,
  it: Resource,
): v.InferOutput<typeof ResourceSummary> {
  const operation = operationOf(app.ledger.read, it.operationId);
  const statusReason = whyProvisioning(app, it);
  const keep = keepSummary(app.ledger.read, it.id);
  return {
    id: it.id,
    provider_id: it.ref,
    provider: it.slot as Slot,
    status: shownStatus(it),
    ...(statusReason === undefined ? {} : { status_reason: statusReason }),
    billing_state: operation.state,
    billing_policy: 'prepaid_time',
    charged_usd: formatUsd(it.charged),
    reserved_usd: formatUsd(operation.state === 'settled' ? ZERO : operation.hold),
    expires_at: it.expiresAt,
    purchased_seconds: it.purchasedSeconds,
    ...(isPaused(it) ? { seconds_left: it.secondsLeft as number } : {}),
    price_hourly_usd: formatUsd(it.priceHourly),
    supports_extension: canExtend(it.slot),
    wallet_id: it.walletId,
    spec: parseJson(it.spec) as Record<string, unknown>,
    ...(it.snapshotId === null ? {} : { snapshot_id: it.snapshotId }),
    created_at: it.createdAt,
    ready_at: it.readyAt,
    ended_at: it.endedAt,
    end_reason: it.endReason,
    ...(keep === undefined ? {} : { keep }),
  };
}

export const ResourceList = v.object({ resources: v.array(ResourceSummary) });
export const ResourcePage = v.object({ resources: v.array(ResourceSummary), next_cursor: v.string() });

export const Offers = v.object({
  offers: v.array(
    v.object({
      provider: v.picklist(SLOTS),
      offer_id: v.nullable(v.string()),
      description: v.string(),
      spec: v.record(v.string(), v.unknown()),
      size: v.optional(
        v.pipe(
          v.object({ cpus: v.number(), memory_gib: v.number(), gpus: v.pipe(v.number(), v.integer()) }),
          v.description('the most that it has; there where it is known'),
        ),
      ),
      unit_prices: v.optional(
        v.pipe(
          v.object({ cpu_hourly_usd: Usd, memory_gib_hourly_usd: Usd }),
          v.description('of one more CPU and one more GiB; there where the spec says how many'),
        ),
      ),
      runtime: v.optional(
        v.pipe(
          v.string(),
          v.description('what its machines run under, where the operator chose that: runsc is gVisor'),
        ),
      ),
      price_hourly_usd: Usd,
      min_seconds: v.pipe(v.number(), v.integer()),
      max_seconds: v.pipe(v.number(), v.integer()),
      supports_extension: v.boolean(),
      available: v.boolean(),
    }),
  ),
  as_of: Time,
});

/** Builds the body of one offer of a slot. */
export function offer(slot: Slot, it: Offer): v.InferOutput<typeof Offers>['offers'][number] {
  return {
    provider: slot,
    offer_id: it.offerId,
    description: it.description,
    spec: it.spec,
    ...(it.size ? { size: { cpus: it.size.cpus, memory_gib: it.size.memoryGib, gpus: it.size.gpus } } : {}),
    ...(it.unitPrices
      ? {
          unit_prices: {
            cpu_hourly_usd: formatUsd(Nanos(it.unitPrices.cpu)),
            memory_gib_hourly_usd: formatUsd(Nanos(it.unitPrices.memoryGib)),
          },
        }
      : {}),
    ...(it.runtime === undefined ? {} : { runtime: it.runtime }),
    price_hourly_usd: formatUsd(Nanos(it.priceHourly)),
    min_seconds: it.minSeconds,
    max_seconds: it.maxSeconds,
    supports_extension: canExtend(slot),
    available: it.available,
  };
}

/** Returns the spec for the backends, with an omitted GPU as null and 0. */
export function specOf({ provider, spec }: v.InferOutput<typeof ComputeRequest>): Spec {
  return provider === 'provider_one' ? { ...spec, gpu: spec.gpu ?? null, gpus: spec.gpus ?? 0 } : spec;
}

export const ExecResult = v.object({
  id: v.string(),
  exit_code: v.number(),
  stdout: v.string(),
  stderr: v.string(),
  stdout_truncated: v.boolean(),
  stderr_truncated: v.boolean(),
  timed_out: v.boolean(),
  ended_by: v.optional(
    v.pipe(v.literal('lease'), v.description('there when the end of the lease cut the command short')),
  ),
  duration_ms: count,
});
export const UploadResult = v.object({
  id: v.string(),
  path: v.string(),
  bytes: count,
  sha256: v.string(),
  entries: v.optional(v.pipe(count, v.description('the entries of an archive, which bytes and sha256 are of'))),
});
export const SshAccess = v.object({
  id: v.string(),
  host: v.string(),
  port: count,
  username: v.string(),
  private_key: v.string(),
  host_key: v.string(),
  command: v.string(),
  expires_at: Time,
});
