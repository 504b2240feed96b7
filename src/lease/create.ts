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
  /** `create` answers within this many seconds, ready or not (design 2.18). */
  answerSeconds: number;
};

const POLL_MILLISECONDS = 250;
/** How long a backend may take to quote a price: nothing is held yet, and `create` has to answer. */
const QUOTE_SECONDS = 20;

export type CreateRequest = Omit<PaidRequest, 'kind'> & { slot: Slot; spec: Spec };
type Detail = { configured: ConfiguredSlot; quote: BackendQuote };

/**
 * Creates a prepaid lease: holds the whole price together with the resource's row, asks the backend, and captures the
 * price when the machine is ready. Returns the resource: `running` if it is ready within `answerSeconds`, else in its
 * current state, usually `provisioning`; the backend's create then continues under its driver and the reaper.
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
        // Fail fast, before asking a provider for a price; the hold checks again.
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
  // A caller that joins an attempt which has answered already gets the current state.
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
      // The lease is sold from when it is ready, so the provisioning time has to fit as well.
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
 * Asks the backend for the machine and records its reference as soon as it is known; holds the lease's lock, so that no
 * step comes between. A machine that was made is not settled here: its lease captures the price when it is ready.
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

/**
 * Adds the backend's own message to the operator's reason; it may name sockets and addresses, so callers do not get it.
 */
function refusedWith({ words, ...refused }: Created & { kind: 'refused' }): Outcome<never> {
  return { ...refused, reason: words ? `${refused.reason} (${words})` : refused.reason, told: refused.reason };
}

/**
 * After a definite refusal, ends the row of the lease; after an unknown outcome, has its machine searched for at once.
 */
function noteFailure(tx: Tx, { resourceId }: Operation, outcome: Outcome<Buffer | null>, now: number): void {
  const id = resourceId as string;
  if (outcome.kind === 'unknown') updateIfLive(tx, id, { status: 'unknown', lastError: outcome.reason, dueAt: now });
  if (outcome.kind !== 'refused') return;
  const failed = { status: 'failed', endWanted: 'create_failed', endReason: 'create_failed' } as const;
  updateIfLive(tx, id, { ...failed, endedAt: now, lastError: outcome.reason });
}

/**
 * Takes steps of a lease until it is ready or has ended, at most until `answerAt`, in milliseconds of the monotonic
 * clock.
 */
async function untilReady(app: LeaseApp, id: string, answerAt: number): Promise<Resource> {
  for (;;) {
    // A step that cannot be written leaves the row as it was: provisioning, and due again.
    const resource = await advance(app, id).catch(() => findResource(app.ledger.read, id) as Resource);
    if (resource.readyAt !== null || resource.endedAt !== null) return resource;
    if (performance.now() > answerAt || app.inFlight.isCutOff()) return resource;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

/**
 * Returns the resource as the answer of its create. An uncaptured price may still be released, so the fact that it was
 * answered 200 is written first; its key then rents no second machine (design 2.7). Throws a refusal if it was already
 * released.
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

/** Withholds a 200 that cannot be recorded: the caller repeats the request with its key. */
function unwritten(error: unknown): never {
  throw error instanceof Refusal && error.code === 'read_only' ? uncertain() : error;
}

function neverReady(resource: Resource): Refusal {
  // The backend's message is in the log and on the operation only: it may name sockets and addresses.
  return new Refusal(
    'provider_unavailable',
    `The machine never became ready (${resource.endReason}), and nothing was charged.`,
    { retryAfterSeconds: 10 },
  );
}

/**
 * Replays a create from the lease's current row. If the create is uncertain, searches for its machine first (design
 * 2.9).
 */
async function replayCreate(app: LeaseApp, operation: Operation): Promise<Resource> {
  const resource = resourceOfOperation(app.ledger.read, operation.id);
  assert(resource, 'a create writes its resource with its hold');
  if (operation.state === 'settled') return resource;
  const current =
    (await app.inFlight.waitFor(advance(app, resource.id), app.answerSeconds)) ??
    (findResource(app.ledger.read, resource.id) as Resource);
  if (operation.answeredAt === null && current.endedAt === null && current.ref === null) throw uncertain();
  return answered(app, current);
}

/**
 * Ends a lease early, without a refund. Records that it is to end at once, even if the backend is busy; then waits for
 * one step, at most `close_wait_seconds`, and the reaper continues. Idempotent.
 */
export async function stopLease(app: LeaseApp, id: string): Promise<Resource> {
  const now = app.clock.now();
  const row = await app.ledger.write((tx) => updateIfLive(tx, id, { endWanted: 'requested', dueAt: now, attempts: 0 }));
  if (row.endedAt !== null) return row;
  app.wakeAt(now);
  const stepped = await app.inFlight.waitFor(advance(app, id), app.config.closeWaitSeconds);
  return stepped ?? (findResource(app.ledger.read, id) as Resource);
}

/**
 * Ends the row of a lease on the operator's word alone, without confirmation from the backend. Releases what was never
 * captured, and logs an error.
 */
export async function abandonLease(app: LeaseApp, id: string, reason: string): Promise<Resource> {
  return app.leaseMutex(id, async () => {
    const resource = findResource(app.ledger.read, id) as Resource;
    if (resource.endedAt !== null) return resource;
    await app.ledger.write((tx) => updateResource(tx, id, { abandonedReason: reason }));
    app.events.leaseAbandoned(resource, reason);
    return markEnded(app, resource, resource.endWanted ?? 'requested', 'operator');
  });
}
