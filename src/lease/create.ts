import assert from 'node:assert/strict';
import type { Backend, Quote as BackendQuote, Created, Slot, Spec } from '../compute/backend.ts';
import { tagOf } from '../compute/backend.ts';
import { type ConfiguredSlot, leasePriceSnapshot, priceOfSeconds, type Slots } from '../compute/slots.ts';
import type { Config } from '../config/config.ts';
import type { Tx } from '../db/handle.ts';
import { newId } from '../id.ts';
import { keepKey, type Operation, type Outcome, operationOf } from '../ledger/operation.ts';
import {
  findResource,
  insertResource,
  type Resource,
  resourceOfOperation,
  updateIfLive,
  updateResource,
} from '../ledger/resource.ts';
import { findWallet, refuseInactive, type Wallet } from '../ledger/wallet.ts';
import { Nanos, ZERO } from '../money.ts';
import { Refusal } from '../refusal.ts';
import type { KeyedMutex } from '../spend/keyed-mutex.ts';
import {
  type Answered,
  type Called,
  type PaidApp,
  type PaidRequest,
  type Quote,
  spend,
  uncertain,
  type Waiters,
  writeOutcome,
} from '../spend/spend.ts';
import { advance, markEnded } from './step.ts';

export type LeaseApp = PaidApp & {
  config: Pick<Config, 'closeWaitSeconds'>;
  slots: Slots;
  leaseMutex: KeyedMutex;
  installationId: string;
  /** `create` answers within so many seconds, ready or not (design 2.18). */
  answerSeconds: number;
};

const POLL_MILLISECONDS = 250;
/** So long a backend may think about a price: nothing is held yet, and `create` has to answer. */
const QUOTE_SECONDS = 20;

export type CreateRequest = Omit<PaidRequest, 'kind'> & { slot: Slot; spec: Spec };
type Detail = { configured: ConfiguredSlot; quote: BackendQuote };

/**
 * Prepays a lease: hold the whole price with the resource's row, ask the backend, capture when the machine is ready.
 * Answers the resource: `running` if it is ready within 30 s, else as it then is, mostly `provisioning`; the backend's
 * create goes on under its driver, and then the reaper.
 */
export async function createLease(
  app: LeaseApp,
  { slot, spec, ...request }: CreateRequest,
): Promise<Answered<Resource>> {
  const answerAt = performance.now() + app.answerSeconds * 1000;
  const { answer, replayed } = await spend<Detail, Resource>(
    app,
    { ...request, kind: 'compute_create' },
    {
      quote() {
        const configured = app.slots.find(slot);
        // Told at once, not after a provider was asked for a price; the hold looks again.
        refuseInactive(findWallet(app.ledger.read, request.walletId) as Wallet, app.clock.now());
        return quoteLease(app, configured, spec);
      },
      insertRows: (tx, operation, { detail: { configured, quote } }) => {
        const now = operation.createdAt;
        insertResource(tx, {
          id: operation.resourceId as string,
          walletId: operation.walletId,
          operationId: operation.id,
          slot,
          backend: configured.backend.name,
          tag: tagOf(app.installationId, operation.resourceId as string),
          ref: null,
          spec: JSON.stringify(quote.spec),
          status: 'provisioning',
          priceHourly: Nanos(quote.priceHourly),
          charged: ZERO,
          purchasedSeconds: quote.spec.max_seconds,
          maxSeconds: quote.maxSeconds,
          endsBy: quote.endsBy ?? null,
          createdAt: now,
          readyBy: now + configured.provisionSeconds,
          expiresAt: now + configured.provisionSeconds + quote.spec.max_seconds,
          dueAt: now + configured.provisionSeconds,
          attempts: 0,
          absentCount: 0,
        });
      },
      call: (operation, { detail }, waiters) => startLease(app, operation, detail, { ...waiters, answerAt }),
      settleRows: (tx, operation, outcome, now) => noteFailure(tx, operation, outcome, now),
      refuse: (_, outcome) => {
        if (outcome.kind === 'unknown') return uncertain();
        return new Refusal(outcome.code, outcome.told ?? outcome.reason, { retryAfterSeconds: 10 });
      },
      replay: (operation) => replayCreate(app, operation),
    },
  );
  // Whoever joins an attempt that has answered already hears how things are now.
  return { answer: findResource(app.ledger.read, answer.id) as Resource, replayed };
}

async function quoteLease(app: LeaseApp, configured: ConfiguredSlot, spec: Spec): Promise<Quote<Detail>> {
  const noQuote = (cause?: unknown) =>
    new Refusal('provider_unavailable', 'The provider cannot be asked for a price. Nothing was charged.', {
      retryAfterSeconds: 5,
      cause,
    });
  const asked = configured.backend.quote(spec).catch((cause: unknown) => {
    throw cause instanceof Refusal ? cause : noQuote(cause);
  });
  const quote = await app.inFlight.waitFor(asked, QUOTE_SECONDS);
  if (!quote) throw noQuote();
  const seconds = spec.max_seconds;
  if (seconds > quote.maxSeconds)
    throw new Refusal(
      'lease_limit_exceeded',
      `max_seconds is ${seconds}; this offer allows at most ${quote.maxSeconds}.`,
    );
  return {
    hold: priceOfSeconds(quote.priceHourly, seconds),
    price: leasePriceSnapshot(quote.priceHourly, seconds),
    subject: configured.slot,
    resourceId: newId('res'),
    detail: { configured, quote },
    limits: (_, wallet) => {
      // The lease is sold from when it is ready, so the time it may take until then has to fit too.
      const end = app.clock.now() + configured.provisionSeconds + seconds;
      if (wallet.expiresAt !== null && end > wallet.expiresAt)
        throw new Refusal(
          'lease_limit_exceeded',
          `The lease could last until ${end}, and the wallet expires at ${wallet.expiresAt}. Ask for fewer seconds.`,
        );
      if (quote.endsBy !== undefined && end > quote.endsBy)
        throw new Refusal(
          'lease_limit_exceeded',
          `The lease could last until ${end}, and the provider ends this offer at ${quote.endsBy}. Ask for fewer seconds.`,
        );
    },
  };
}

type Waiting = Waiters<Resource> & {
  /** When `create` has to answer, in milliseconds of the monotonic clock. */
  answerAt: number;
};

/**
 * Asks the backend for the machine and notes its reference the moment it is known: no step of the lease comes between. A
 * machine that was made is not settled here; its lease captures the price when it is ready.
 */
async function startLease(
  app: LeaseApp,
  operation: Operation,
  { configured, quote }: Detail,
  { answerAt, answer, reject }: Waiting,
): Promise<Called<Resource>> {
  const id = operation.resourceId as string;
  const current = () => findResource(app.ledger.read, id) as Resource;
  const timer = setTimeout(
    () => {
      if (app.inFlight.isCutOff()) return;
      answered(app, current()).then(answer, reject);
    },
    Math.max(0, answerAt - performance.now()),
  );
  const untilAnswered = async () => {
    try {
      return await answered(app, await untilReady(app, id, answerAt));
    } finally {
      clearTimeout(timer);
    }
  };
  try {
    const created = await app.leaseMutex(id, async () => {
      const made = await ask(configured.backend, current(), quote);
      if (made.kind !== 'created') return made;
      const values = { ref: made.ref, dueAt: app.clock.now() };
      await writeOutcome(app, (tx) => updateIfLive(tx, id, values), reject);
      return made;
    });
    if (created.kind === 'created') return { pending: untilAnswered };
    clearTimeout(timer);
    return { outcome: created.kind === 'unknown' ? created : refusedWith(created), answer: current };
  } catch (error) {
    clearTimeout(timer);
    throw error;
  }
}

async function ask(backend: Backend, { tag, expiresAt }: Resource, quote: BackendQuote): Promise<Created> {
  try {
    return await backend.create({ tag, quote, deadline: expiresAt });
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}

/** The operator gets what the backend itself said with the reason, which may name sockets and addresses; callers do not. */
function refusedWith({ words, ...refused }: Created & { kind: 'refused' }): Outcome<never> {
  return { ...refused, reason: words ? `${refused.reason} (${words})` : refused.reason, told: refused.reason };
}

/** A clear no ends the row of the lease; after doubt its machine is looked for at once. */
function noteFailure(tx: Tx, { resourceId }: Operation, outcome: Outcome<Buffer | null>, now: number): void {
  const id = resourceId as string;
  if (outcome.kind === 'unknown') updateIfLive(tx, id, { status: 'unknown', lastError: outcome.reason, dueAt: now });
  if (outcome.kind !== 'refused') return;
  const failed = { status: 'failed', endWanted: 'create_failed', endReason: 'create_failed' } as const;
  updateIfLive(tx, id, { ...failed, endedAt: now, lastError: outcome.reason });
}

/** Steps a lease until it is ready or has ended, at most until `answerAt`, in milliseconds of the monotonic clock. */
async function untilReady(app: LeaseApp, id: string, answerAt: number): Promise<Resource> {
  for (;;) {
    // What cannot be written at the moment is not known to the row either: it is provisioning, and looked at again.
    const resource = await advance(app, id).catch(() => findResource(app.ledger.read, id) as Resource);
    if (resource.readyAt !== null || resource.endedAt !== null) return resource;
    if (performance.now() > answerAt || app.inFlight.isCutOff()) return resource;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

/**
 * The resource as the answer of its create. What has not been captured yet may still be released; that it was answered
 * 200 is written first, so that its key rents no second machine (design 2.7). Refuses where it was released before.
 */
async function answered(app: LeaseApp, { id, operationId }: Resource): Promise<Resource> {
  const { outcome, answeredAt } = operationOf(app.ledger.read, operationId);
  const isKept =
    outcome === 'charged' ||
    answeredAt !== null ||
    (await app.ledger.write((tx) => keepKey(tx, operationId, app.clock.now())).catch(unwritten));
  const resource = findResource(app.ledger.read, id) as Resource;
  if (!isKept) throw neverReady(resource);
  return resource;
}

/** A 200 that cannot be written is not given: the caller repeats the request under its key. */
function unwritten(error: unknown): never {
  throw error instanceof Refusal && error.code === 'read_only' ? uncertain() : error;
}

function neverReady(resource: Resource): Refusal {
  // What the backend said is in the log and on the operation: it may name sockets and addresses.
  return new Refusal(
    'provider_unavailable',
    `The machine never became ready (${resource.endReason}), and nothing was charged.`,
    { retryAfterSeconds: 10 },
  );
}

/** Leases answer from their current rows; a doubtful one is looked for first (design 2.9). */
async function replayCreate(app: LeaseApp, operation: Operation): Promise<Resource> {
  const resource = resourceOfOperation(app.ledger.read, operation.id);
  assert(resource, 'a create writes its resource with its hold');
  if (operation.state === 'settled') return resource;
  const looked =
    (await app.inFlight.waitFor(advance(app, resource.id), app.answerSeconds)) ??
    (findResource(app.ledger.read, resource.id) as Resource);
  if (operation.answeredAt === null && looked.endedAt === null && looked.ref === null) throw uncertain();
  return answered(app, looked);
}

/**
 * Ends a lease early, without a refund. That it is to end is written at once, whatever the backend is busy with; then one
 * step is waited for, at most `close_wait_seconds`, and the reaper goes on. Idempotent.
 */
export async function stopLease(app: LeaseApp, id: string): Promise<Resource> {
  const now = app.clock.now();
  const row = await app.ledger.write((tx) => updateIfLive(tx, id, { endWanted: 'requested', dueAt: now, attempts: 0 }));
  if (row.endedAt !== null) return row;
  app.wakeAt(now);
  const stepped = await app.inFlight.waitFor(advance(app, id), app.config.closeWaitSeconds);
  return stepped ?? (findResource(app.ledger.read, id) as Resource);
}

/** Ends the row of a lease by the operator's word alone; what was never captured is released. The alarm stays in the log. */
export async function abandonLease(app: LeaseApp, id: string, reason: string): Promise<Resource> {
  return app.leaseMutex(id, async () => {
    const resource = findResource(app.ledger.read, id) as Resource;
    if (resource.endedAt !== null) return resource;
    await app.ledger.write((tx) => updateResource(tx, id, { abandonedReason: reason }));
    app.events.leaseAbandoned(resource, reason);
    return markEnded(app, resource, resource.endWanted ?? 'requested', 'operator');
  });
}
