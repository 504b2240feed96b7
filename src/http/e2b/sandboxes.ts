import type { Context } from 'hono';
import { admit } from '../../access/principal.ts';
import { fingerprint } from '../../base/fingerprint.ts';
import { refuseFault } from '../../base/health.ts';
import { formatUsd } from '../../base/money.ts';
import { parseJson } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
import type { Templates } from '../../compute/templates.ts';
import { createLease, stopLease } from '../../lease/create.ts';
import type { Resource } from '../../ledger/resource.ts';
import {
  deliverSandbox,
  endOfSandbox,
  hasSandboxEnded,
  LENGTHEN_ROUTE,
  liveSandbox,
  liveSandboxes,
  SANDBOX_ROUTE,
  type SandboxLease,
  sandboxLabel,
} from '../../ledger/sandbox.ts';
import { findWallet, shownAvailable, type Wallet } from '../../ledger/wallet.ts';
import { ComputeRequest, specOf } from '../../wire/compute.ts';
import { parseBody, readBody, readQuery, validate } from '../body.ts';
import { authenticateAndLimit } from '../caller.ts';
import { BODY_BYTES_MAX, countAnswer, type Env, type HttpApp, readIdempotencyKey, requestIdOf } from '../endpoint.ts';
import { onceClosed } from '../exchange.ts';
import { paidHeaders } from '../paid.ts';
import { active } from '../routes/compute.ts';
import { hostsOf } from '../routes/ports.ts';
import { tagsOf, tagsOfBody } from '../tags.ts';
import type { Attempts } from './attempts.ts';
import { runningOf } from './envd.ts';
import { sealVariables } from './environment.ts';
import { headersFor } from './errors.ts';
import { prolong, setTimeoutOf } from './lifetime.ts';
import { readMetrics } from './metrics.ts';
import { ConnectSandbox, CreateSandbox, listingOf, refuseUnserved, TimeoutOfSandbox } from './requests.ts';
import { startTemplate } from './template-start.ts';
import { sandboxToken } from './tokens.ts';

/** The control plane: E2B's API of sandboxes, over the leases of a wallet. */

/** The version of E2B's agent whose features are served. */
const ENVD_VERSION = '0.5.2';
/** The shortest lease that is sold; a sandbox with less ends earlier. */
const LEASE_SECONDS_MIN = 60;
/** The SDKs give up after 60 s. */
const CREATE_WAIT_SECONDS = 50;
const CLIENT = 'purser';

/** A request to the API, from a wallet. */
type SandboxCall = {
  app: HttpApp;
  c: Context<Env>;
  wallet: Wallet;
  requestId: string;
};
export type ApiHandler = (call: SandboxCall) => Promise<Response> | Response;

/** Turns an operation of the API into a handler: authenticates its wallet, and shows what that may still spend. */
export const serveApi = (app: HttpApp, run: ApiHandler) => async (c: Context<Env>) => {
  refuseFault(app.health);
  const { wallet } = admit(await authenticateAndLimit(app, c), 'wallet');
  return run({ app, c, wallet: findWallet(app.ledger.read, wallet.id) as Wallet, requestId: requestIdOf(c) });
};

/** Reads the body of a request, an empty one as an empty object. */
async function bodyOf({ app, c, wallet }: SandboxCall): Promise<unknown> {
  const share = app.memory.open(app.tenantOf(wallet.id).treeId);
  try {
    const bytes = await readBody(c.env.incoming, BODY_BYTES_MAX, share);
    return bytes.length ? parseBody(bytes, share).value : {};
  } finally {
    share.close();
  }
}

/** Answers with a body, what it cost, and what the wallet may still spend. */
function answer(
  { app, c, wallet }: SandboxCall,
  status: number,
  body: object | undefined,
  more: object = {},
): Response {
  const now = findWallet(app.ledger.read, wallet.id) as Wallet;
  const headers = { ...headersFor(c), 'x-purser-available-usd': formatUsd(shownAvailable(now)), ...more };
  const text = body && JSON.stringify(body);
  if (text) countAnswer(app, c, app.tenantOf(wallet.id).treeId, text);
  return new Response(text, { status, headers });
}

const noSandbox = () => new Refusal('not_found', 'There is no such sandbox.');
/** Returns a live sandbox of the wallet. Throws `not_found`, alike for another wallet's and for one that is over. */
function sandboxOf({ app, c, wallet }: SandboxCall): SandboxLease {
  const found = liveSandbox(app.ledger.read, wallet.id, `res_${c.req.param('id')}`, app.clock.now());
  if (!found) throw noSandbox();
  return found;
}

/** Returns the domain under which a sandbox's ports have host names, with its port. */
function domainOf(app: HttpApp): string {
  return hostsOf(app)?.suffix ?? new URL(app.state.baseUrl).host;
}

/** The answer of create and connect. It always has the tokens: the SDKs send none that they were not given. */
function connected({ app, wallet }: SandboxCall, { sandbox, resource }: SandboxLease) {
  return {
    templateID: sandbox.template,
    sandboxID: sandboxLabel(resource),
    clientID: CLIENT,
    envdVersion: ENVD_VERSION,
    envdAccessToken: sandboxToken(app, wallet, resource, 'envd'),
    trafficAccessToken: sandboxToken(app, wallet, resource, 'traffic'),
    domain: domainOf(app),
  };
}

const timeOf = (seconds: number) => new Date(seconds * 1000).toISOString();
const whole = (it: unknown, unit = 1) => (typeof it === 'number' ? Math.max(1, Math.round(it * unit)) : 0);

/** The description of a sandbox. A size that its offer does not state is 0. */
function described({ sandbox, resource }: SandboxLease) {
  const spec = parseJson(resource.spec) as Record<string, unknown>;
  return {
    templateID: sandbox.template,
    sandboxID: sandboxLabel(resource),
    clientID: CLIENT,
    envdVersion: ENVD_VERSION,
    startedAt: timeOf(resource.readyAt ?? resource.createdAt),
    endAt: timeOf(endOfSandbox(sandbox, resource) ?? resource.expiresAt),
    cpuCount: whole(spec.cpus),
    memoryMB: whole(spec.memory_gib, 1024),
    diskSizeMB: whole(spec.disk_gb, 1000),
    state: 'running',
    metadata: parseJson(sandbox.metadata) as Record<string, string>,
    lifecycle: { onTimeout: 'kill', autoResume: false },
  };
}

type Template = Templates[string];
function templateOf({ config }: HttpApp, name: string): Template {
  const { templates = {} } = config.compute;
  if (Object.hasOwn(templates, name)) return templates[name] as Template;
  const names = Object.keys(templates).join(', ') || 'none';
  throw new Refusal(
    'invalid_request',
    `templateID: there is no template ${JSON.stringify(name)}. Those of this installation: ${names}.`,
  );
}

/** Creates a sandbox: a lease of the template's offer, paid for `timeout` seconds. */
export const createSandbox = (attempts: Attempts): ApiHandler =>
  async function create(call) {
    const { app, c, wallet, requestId } = call;
    const raw = await bodyOf(call);
    const order = validate(CreateSandbox, raw);
    const { start, ...offer } = templateOf(app, order.templateID);
    refuseUnserved(order);
    const max_seconds = Math.max(order.timeout, LEASE_SECONDS_MIN);
    const machine = validate(ComputeRequest, { ...offer, spec: { ...offer.spec, max_seconds } });
    const { headers } = c.env.incoming;
    const given = headers['idempotency-key'];
    const own = given === undefined ? undefined : readIdempotencyKey(given);
    const print = fingerprint(raw);
    const attempt = own === undefined ? attempts.begin(wallet.id, print, requestId) : undefined;
    let isGone = false;
    /** The lease, once its client is about to have the answer. */
    let answered: string | undefined;
    onceClosed(c, (isDelivered) => {
      isGone = true;
      attempt?.leave();
      // The next identical create finds it by its row.
      if (attempt && answered !== undefined && !isDelivered)
        app.ledger
          .write(deliverSandbox, { id: answered, deliveredAt: null })
          .catch((error) => app.events.failed('sandbox', error));
    });
    try {
      const operation = {
        walletId: wallet.id,
        route: SANDBOX_ROUTE,
        idempotencyKey: own ?? (attempt?.key as string),
        fingerprint: print,
        requestId,
        tags: tagsOf(headers, tagsOfBody({ metadata: order.metadata })),
      };
      const { answer: leased, paid } = await createLease(app, {
        ...operation,
        traceparent: headers.traceparent,
        slot: machine.provider,
        spec: specOf(machine),
        waitSeconds: CREATE_WAIT_SECONDS,
        sandbox: {
          template: order.templateID,
          metadata: JSON.stringify(order.metadata ?? {}),
          environment: sealVariables(app, wallet, order.envVars ?? {}),
          seconds: order.timeout,
          deliveredAt: own === undefined ? null : app.clock.now(),
        },
      });
      const created = await readySandbox(app, wallet, leased);
      if (start !== undefined) await startTemplate(app, runningOf(app, { wallet, ...created }), start);
      const seconds = order.timeout;
      if (attempt?.isTakenOver)
        await prolong(app, leased.id, { seconds, requestId, tags: operation.tags }).catch(tellPaid);
      // Before the answer: a crash between the two must not give one machine to two clients.
      answered = leased.id;
      if (attempt && !isGone) await deliver(app, leased.id);
      app.wakeAt(endOfSandbox(created.sandbox, created.resource) as number);
      return answer(call, 201, connected(call, created), paidHeaders(app, operation, paid));
    } finally {
      attempt?.end();
    }
  };

/** Notes that a client has a sandbox: no later create takes it over. */
const deliver = (app: HttpApp, id: string): Promise<void> =>
  app.ledger.write(deliverSandbox, { id, deliveredAt: app.clock.now() }).catch(tellPaid);

/** Throws the error of a write after a sandbox was paid for: a refusal's 503 would mean that nothing has happened. */
function tellPaid(cause: unknown): never {
  if (!(cause instanceof Refusal) || cause.code !== 'read_only') throw cause;
  throw new Refusal('operation_uncertain', 'The sandbox is paid for. The same create again takes it over.', { cause });
}

/** Returns a sandbox that runs. Throws `operation_uncertain` while it is not ready, and `resource_not_active` when it is over. */
async function readySandbox(app: HttpApp, wallet: Wallet, leased: Resource): Promise<SandboxLease> {
  const found = liveSandbox(app.ledger.read, wallet.id, leased.id, app.clock.now());
  if (!found) throw new Refusal('resource_not_active', 'The sandbox of this request is over. Create another.');
  if (found.resource.status !== 'running')
    throw new Refusal(
      'operation_uncertain',
      'The sandbox is still starting. The same create again waits for it, and rents no second one.',
    );
  return found;
}

type SandboxView = ReturnType<typeof described>;
const isMatching = (metadata: [string, string][]) => (it: SandboxView) =>
  metadata.every(([name, value]) => Object.hasOwn(it.metadata, name) && it.metadata[name] === value);

/** Lists the running sandboxes of the wallet. */
export const listSandboxes: ApiHandler = (call) => {
  const { app, c, wallet } = call;
  const wanted = listingOf(readQuery(c.env.incoming));
  const now = app.clock.now();
  const rows = liveSandboxes(app.ledger.read, wallet.id)
    .filter(({ resource }) => resource.readyAt !== null && !hasSandboxEnded(app.ledger.read, resource, now))
    .filter(({ sandbox, resource }) => {
      const isAfter = (resource.readyAt as number) > wanted.startedAfter;
      return wanted.isRunningWanted && isAfter && [undefined, sandbox.template].includes(wanted.template);
    })
    .map(described)
    .filter(isMatching(wanted.metadata))
    .sort((a, b) => (a.sandboxID < b.sandboxID ? 1 : -1));
  if (wanted.isAscending) rows.reverse();
  const from = wanted.next === undefined ? 0 : rows.findIndex((it) => isBeyond(it, wanted.next as string, wanted));
  const page = from < 0 ? [] : rows.slice(from, from + wanted.limit);
  const hasMore = from >= 0 && rows.length > from + wanted.limit;
  return answer(call, 200, page, hasMore ? { 'x-next-token': page.at(-1)?.sandboxID } : {});
};
const isBeyond = ({ sandboxID }: SandboxView, token: string, { isAscending }: { isAscending: boolean }) =>
  isAscending ? sandboxID > token : sandboxID < token;

/** Describes a sandbox. */
export const readSandbox: ApiHandler = (call) => answer(call, 200, described(sandboxOf(call)));

const lengtheningOf = ({ c, requestId }: SandboxCall, seconds: number) => ({
  seconds,
  requestId,
  tags: tagsOf(c.env.incoming.headers),
});

/** Returns the headers of what this request has bought, if anything. */
const boughtHeaders = ({ app, wallet, requestId }: SandboxCall) =>
  paidHeaders(app, { walletId: wallet.id, route: LENGTHEN_ROUTE, idempotencyKey: requestId });

/** Connects to a sandbox, which lives for at least `timeout` seconds from then if its wallet can pay for that. */
export const connectSandbox: ApiHandler = async (call) => {
  const { timeout } = validate(ConnectSandbox, await bodyOf(call));
  const found = await readySandbox(call.app, call.wallet, sandboxOf(call).resource);
  const prolonged = await prolong(call.app, found.resource.id, lengtheningOf(call, timeout));
  // Its client found it in a list, where the answer of its create was lost.
  if (prolonged.sandbox.deliveredAt === null) await deliver(call.app, found.resource.id);
  return answer(call, 200, connected(call, prolonged), boughtHeaders(call));
};

/** Sets the end of a sandbox, earlier or later. */
export const setSandboxTimeout: ApiHandler = async (call) => {
  const { timeout } = validate(TimeoutOfSandbox, await bodyOf(call));
  const found = await readySandbox(call.app, call.wallet, sandboxOf(call).resource);
  await setTimeoutOf(call.app, found.resource.id, lengtheningOf(call, timeout));
  return answer(call, 204, undefined, boughtHeaders(call));
};

/** Ends a sandbox. */
export const killSandbox: ApiHandler = async (call) => {
  await stopLease(call.app, sandboxOf(call).resource.id);
  return answer(call, 204, undefined);
};

/** Measures a sandbox now. */
export const measureSandbox: ApiHandler = async (call) => {
  const { app, wallet } = call;
  const { resource } = sandboxOf(call);
  const { backend, ref } = active(app, wallet, resource.id);
  const metric = await readMetrics(app, resource, backend, ref);
  return answer(call, 200, metric ? [metric] : []);
};

/** Refuses what a lease cannot do. */
export const refuseOperation =
  (what: string): ApiHandler =>
  (call) => {
    sandboxOf(call);
    throw new Refusal('invalid_request', what);
  };
