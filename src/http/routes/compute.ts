import { hash } from 'node:crypto';
import { resourceKey } from '../../access/ssh-keys.ts';
import type { Backend, OutputBudget } from '../../compute/backend.ts';
import type { ConfiguredSlot } from '../../compute/slots.ts';
import { fingerprint } from '../../fingerprint.ts';
import { createLease, stopLease } from '../../lease/create.ts';
import { extendLease } from '../../lease/extend.ts';
import { listResourcesOfWallet, type Resource, resourceOf } from '../../ledger/resource.ts';
import { refuseInactive, type Wallet } from '../../ledger/wallet.ts';
import { inTime } from '../../net/deadline.ts';
import { Refusal } from '../../refusal.ts';
import { PAID_REFUSALS } from '../../spend/spend.ts';
import {
  ComputeRequest,
  ExecRequest,
  ExecResult,
  ExtendRequest,
  Offers,
  offer,
  ResourceId,
  ResourceList,
  ResourceSummary,
  SshAccess,
  specOf,
  summaryOf,
  UploadRequest,
  UploadResult,
} from '../../wire/compute.ts';
import { endpoint, type HttpApp } from '../endpoint.ts';
import type { Allowance } from '../memory-quota.ts';

const UPLOAD_BYTES_MAX = 12 * 1024 * 1024;
/** Standard output and standard error of a command are each truncated at 1 MiB (design, section 3). */
const STREAM_BYTES_MAX = 1024 * 1024;
const CONTENT_BYTES_MAX = 8 * 1024 * 1024;
/** The time limit for a backend's offers. A slower slot is left out of the list and does not delay the others. */
const OFFERS_MILLISECONDS = 20_000;
/**
 * How long after its time limit a command is still waited for. The machine's own guard ends it at the limit, but a tenant
 * may have stopped that guard.
 */
const GRACE_SECONDS = 15;
const UPLOAD_SECONDS = 120;
/** Added to a signal's number for the exit code of a command that the signal ended. */
const SIGNAL_EXIT = 128;
const ID = 'res_01k9v3c2mq8r5t7w1x4z6b0d2f';
const EXAMPLE = {
  id: ID,
  provider_id: 'f3a1',
  provider: 'provider_one',
  status: 'running',
  billing_state: 'settled',
  billing_policy: 'prepaid_time',
  charged_usd: '0.025',
  reserved_usd: '0.00',
  expires_at: 1795003600,
  purchased_seconds: 3600,
  price_hourly_usd: '0.025',
  supports_extension: false,
  wallet_id: 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f',
  spec: { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 3600 },
  created_at: 1795000000,
  ready_at: 1795000000,
  ended_at: null,
  end_reason: null,
};

/** The refusals of `active`. */
const ACTIVE_REFUSALS = [
  'not_found',
  'wallet_closed',
  'wallet_expired',
  'resource_not_active',
  'provider_not_configured',
] as const;
/** The refusals of commands and uploads inside a machine. */
const INSIDE_REFUSALS = [...ACTIVE_REFUSALS, 'provider_unavailable', 'operation_uncertain'] as const;

/** The bytes that each byte of output takes in the response: JSON may escape it, and invalid UTF-8 becomes U+FFFD. */
const ANSWER_BYTES = Uint8Array.from({ length: 256 }, (_, byte) =>
  byte < 0x80 ? JSON.stringify(String.fromCharCode(byte)).length - 2 : 3,
);

/**
 * Counts the output of a command in `share`, by its size in the response, until `letGo` is called: when the command has
 * ended or its client has disconnected.
 */
function countOutput(share: Allowance): { budget: OutputBudget; letGo(): void } {
  const unwanted = new AbortController();
  return {
    budget: {
      take: (piece) =>
        !unwanted.signal.aborted && share.tryTake(piece.reduce((sum, byte) => sum + (ANSWER_BYTES[byte] as number), 0)),
      unwanted: unwanted.signal,
    },
    letGo() {
      unwanted.abort();
      share.close();
    },
  };
}

/** Returns a running resource with paid time left, and its backend. Throws `ACTIVE_REFUSALS`. */
function active(app: HttpApp, wallet: Wallet, id: string): { resource: Resource; backend: Backend; ref: string } {
  const resource = resourceOf(app.ledger.read, wallet.id, id);
  const now = app.clock.now();
  refuseInactive(wallet, now);
  const { ref, status, expiresAt } = resource;
  if (status !== 'running' || ref === null) throw new Refusal('resource_not_active', `The resource is ${status}.`);
  if (expiresAt <= now) throw new Refusal('resource_not_active', 'The paid time of the resource is over.');
  const backend = app.slots.backendOf(resource);
  if (!backend) throw new Refusal('provider_not_configured');
  return { resource, backend, ref };
}

/** Calls a backend. Any error but a Refusal becomes `provider_unavailable`. */
async function reach<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (cause) {
    if (cause instanceof Refusal) throw cause;
    throw new Refusal('provider_unavailable', 'The provider of this resource cannot be reached. Retry later.', {
      retryAfterSeconds: 5,
      cause,
    });
  }
}

/** Tells whether a lease is over or being ended. */
function isEnding(app: HttpApp, wallet: Wallet, id: string): boolean {
  const { status, expiresAt, endWanted } = resourceOf(app.ledger.read, wallet.id, id);
  return status !== 'running' || endWanted !== null || expiresAt <= app.clock.now();
}

/** Replaces `provider_unavailable` by `resource_not_active` when the lease ended meanwhile: a retry is pointless. */
function explainLoss(app: HttpApp, wallet: Wallet, id: string, error: unknown): unknown {
  if (!(error instanceof Refusal) || error.code !== 'provider_unavailable' || !isEnding(app, wallet, id)) return error;
  return new Refusal('resource_not_active', 'The lease ended while the command ran: its output is lost.', {
    cause: error.cause,
  });
}

/** Returns the offers of a slot. When its backend fails, logs an event and returns undefined; other slots are unaffected. */
async function offersOf(app: HttpApp, { slot, backend }: ConfiguredSlot) {
  try {
    const offers = await inTime(backend.offers(), OFFERS_MILLISECONDS, 'The list of offers');
    return offers.map((it) => offer(slot, it));
  } catch (error) {
    app.events.failed('offers', error, { slot, backend: backend.name });
    return undefined;
  }
}

/**
 * Like `reach`, for calls that change a machine: limits the time to `seconds` and a grace period, and tracks the call so
 * that a stopping server waits for it or answers `operation_uncertain`. The call counts towards the concurrency limits
 * until the backend has finished. Throws `rate_limited` at those limits.
 */
function reachInside<T>(app: HttpApp, resource: Resource, seconds: number, call: () => Promise<T>): Promise<T> {
  async function counted(): Promise<T> {
    const over = app.concurrency.enter(resource.id, resource.walletId);
    return call().finally(over);
  }
  const cutShort = () =>
    new Refusal('operation_uncertain', 'The server is stopping: the outcome inside the resource is unknown.', {
      retryAfterSeconds: 5,
    });
  const milliseconds = (seconds + GRACE_SECONDS) * 1000;
  return app.inFlight.track(() => reach(() => inTime(counted(), milliseconds, 'The resource')), cutShort);
}

export const listOffers = endpoint({
  summary: 'List what can be leased; the spec of an offer can be posted back unchanged',
  scope: 'wallet',
  answer: Offers,
  refusals: ['provider_unavailable'],
  example: { answer: { offers: [], as_of: 1795000000 } },
  async run(app) {
    const lists = await Promise.all(app.slots.list.map((it) => offersOf(app, it)));
    if (lists.length && lists.every((it) => it === undefined))
      throw new Refusal('provider_unavailable', 'No provider can be reached at the moment. Retry later.', {
        retryAfterSeconds: 5,
      });
    return { body: { offers: lists.flatMap((it) => it ?? []), as_of: app.clock.now() } };
  },
});

export const listCompute = endpoint({
  summary: 'List the wallet’s resources',
  scope: 'wallet',
  answer: ResourceList,
  example: { answer: { resources: [] } },
  run: (app, { principal: { wallet } }) => ({
    body: { resources: listResourcesOfWallet(app.ledger.read, wallet.id).map((it) => summaryOf(app.ledger.read, it)) },
  }),
});

export const createCompute = endpoint({
  summary: 'Prepay a fixed-duration lease',
  scope: 'wallet',
  idempotent: true,
  body: ComputeRequest,
  answer: ResourceSummary,
  refusals: [
    ...PAID_REFUSALS,
    'provider_not_configured',
    'offer_not_found',
    'lease_limit_exceeded',
    'provider_unavailable',
    'capacity_unavailable',
  ],
  example: {
    body: { provider: 'provider_one', spec: { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 3600 } },
    answer: EXAMPLE,
  },
  async run(app, { principal, body, raw, idempotencyKey, requestId }) {
    const { answer, replayed } = await createLease(app, {
      walletId: principal.wallet.id,
      route: 'compute/create',
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
      slot: body.provider,
      spec: specOf(body),
    });
    return { body: summaryOf(app.ledger.read, answer), replayed };
  },
});

export const extendCompute = endpoint({
  summary: 'Prepay more seconds on an active lease',
  scope: 'wallet',
  idempotent: true,
  body: ExtendRequest,
  answer: ResourceSummary,
  refusals: [
    ...PAID_REFUSALS,
    'not_found',
    'provider_not_configured',
    'extension_not_supported',
    'resource_not_active',
    'lease_limit_exceeded',
  ],
  example: { body: { id: ID, additional_seconds: 600 }, answer: EXAMPLE },
  async run(app, { principal, body, raw, idempotencyKey, requestId }) {
    const { answer, replayed } = await extendLease(app, {
      walletId: principal.wallet.id,
      route: 'compute/extend',
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
      resource: resourceOf(app.ledger.read, principal.wallet.id, body.id),
      additionalSeconds: body.additional_seconds,
    });
    return { body: summaryOf(app.ledger.read, answer), replayed };
  },
});

export const stopCompute = endpoint({
  summary: 'Stop a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: ['not_found'],
  example: {
    body: { id: ID },
    answer: { ...EXAMPLE, status: 'stopped', ended_at: 1795000600, end_reason: 'requested' },
  },
  async run(app, { principal, body }) {
    const { id } = resourceOf(app.ledger.read, principal.wallet.id, body.id);
    return { body: summaryOf(app.ledger.read, await stopLease(app, id)) };
  },
});

export const sshCompute = endpoint({
  summary: 'Get ssh access to a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: SshAccess,
  refusals: ACTIVE_REFUSALS,
  example: {
    body: { id: ID },
    answer: {
      id: ID,
      host: '127.0.0.1',
      port: 7422,
      username: ID,
      private_key: '-----BEGIN OPENSSH PRIVATE KEY-----…',
      host_key: 'ssh-ed25519 AAAA…',
      command: `ssh -p 7422 ${ID}@127.0.0.1`,
      expires_at: 1795003600,
    },
  },
  run(app, { principal, body }) {
    const { resource } = active(app, principal.wallet, body.id);
    if (!app.state.ssh) throw new Refusal('provider_not_configured', 'The SSH gateway does not listen.');
    const { host, port, hostKey } = app.state.ssh;
    return {
      body: {
        id: resource.id,
        host,
        port,
        username: resource.id,
        private_key: resourceKey(app.keyring, principal.wallet, resource).privateKey,
        host_key: hostKey,
        command: `ssh -i KEY_FILE -p ${port} ${resource.id}@${host}`,
        expires_at: resource.expiresAt,
      },
    };
  },
});

export const readCompute = endpoint({
  summary: 'Read a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: ['not_found'],
  example: { body: { id: ID }, answer: EXAMPLE },
  run: (app, { principal, body }) => ({
    body: summaryOf(app.ledger.read, resourceOf(app.ledger.read, principal.wallet.id, body.id)),
  }),
});

export const execCompute = endpoint({
  summary: 'Run a command inside a resource',
  scope: 'wallet',
  body: ExecRequest,
  answer: ExecResult,
  refusals: INSIDE_REFUSALS,
  example: {
    body: { id: ID, command: 'uname -s', timeout: 60 },
    answer: {
      id: ID,
      exit_code: 0,
      stdout: 'Linux\n',
      stderr: '',
      stdout_truncated: false,
      stderr_truncated: false,
      timed_out: false,
      duration_ms: 12,
    },
  },
  async run(app, { principal: { wallet }, body, whenGone }) {
    const { resource, backend, ref } = active(app, wallet, body.id);
    const started = performance.now();
    const { budget, letGo } = countOutput(app.memory.open(wallet.id));
    whenGone(letGo);
    const { command, timeout: timeoutSeconds } = body;
    const order = { command, timeoutSeconds, streamBytesMax: STREAM_BYTES_MAX, budget };
    const it = await reachInside(app, resource, timeoutSeconds, () => backend.exec(ref, order))
      .finally(letGo)
      .catch((error) => {
        throw explainLoss(app, wallet, body.id, error);
      });
    const wasCutShort = it.exitCode > SIGNAL_EXIT && !it.timedOut && isEnding(app, wallet, body.id);
    return {
      body: {
        id: body.id,
        exit_code: it.exitCode,
        stdout: it.stdout.toString('utf8'),
        stderr: it.stderr.toString('utf8'),
        stdout_truncated: it.stdoutTruncated,
        stderr_truncated: it.stderrTruncated,
        timed_out: it.timedOut,
        ...(wasCutShort ? { ended_by: 'lease' as const } : {}),
        duration_ms: Math.round(performance.now() - started),
      },
    };
  },
});

export const uploadCompute = endpoint({
  summary: 'Upload a file of at most 8 MiB to a resource',
  scope: 'wallet',
  body: UploadRequest,
  bodyBytesMax: UPLOAD_BYTES_MAX,
  answer: UploadResult,
  refusals: INSIDE_REFUSALS,
  example: {
    body: { id: ID, path: 'work/hello.txt', content_base64: 'aGVsbG8K' },
    answer: {
      id: ID,
      path: 'work/hello.txt',
      bytes: 6,
      sha256: '5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03',
    },
  },
  async run(app, { principal, body, share }) {
    const content = Buffer.from(body.content_base64, 'base64');
    if (content.length > CONTENT_BYTES_MAX)
      throw new Refusal('payload_too_large', `At most ${CONTENT_BYTES_MAX} bytes of content may be uploaded.`);
    const { resource, backend, ref } = active(app, principal.wallet, body.id);
    share.take(content.length);
    await reachInside(app, resource, UPLOAD_SECONDS, () => backend.upload(ref, body.path, content));
    return { body: { id: body.id, path: body.path, bytes: content.length, sha256: hash('sha256', content, 'hex') } };
  },
});
