import type { Limit } from '../access/limits.ts';
import type { Clock } from '../clock.ts';
import type { Tx } from '../db/handle.ts';
import type { NotPromise } from '../db/writer.ts';
import type { Events } from '../events.ts';
import { newId } from '../id.ts';
import type { Ledger } from '../ledger/ledger.ts';
import {
  findOperationByKey,
  HOLD_REFUSALS,
  type HoldOrder,
  type Operation,
  type Outcome,
  placeHold,
  settle,
} from '../ledger/operation.ts';
import { Refusal, type RefusalCode } from '../refusal.ts';
import type { InFlight, RegisterId, RejectWaiters, RespondEarly } from './in-flight.ts';

/** Suggested wait before retrying an uncertain operation. */
export const UNCERTAIN_RETRY_SECONDS = 30;
/** How long a second request with the same key waits for the first (design 2.7). */
export const JOIN_SECONDS = 30;
const JOIN_RETRY_SECONDS = 5;

export type PaidRequest = Pick<
  HoldOrder,
  'walletId' | 'kind' | 'route' | 'idempotencyKey' | 'fingerprint' | 'requestId'
>;
export type Quote<Q> = Pick<
  HoldOrder,
  'hold' | 'price' | 'subject' | 'resourceId' | 'targetAt' | 'advice' | 'reduce' | 'limits'
> & {
  detail: Q;
};

/** Settles the callers waiting for an attempt, while the attempt itself continues. */
export type Waiters<A> = { reject: RejectWaiters; answer: RespondEarly<A> };

/** The result of a call. */
export type Called<A> =
  /** An outcome to settle. `answer` runs once it is on disk and is `done`; what it throws, the caller gets. */
  | { outcome: Outcome<Buffer | null>; answer: () => A | Promise<A> }
  /** Nothing to settle yet: the operation keeps its hold, and another step settles it. */
  | { pending: () => Promise<A> };

/** The steps in which kinds of paid requests differ. */
export type PaidSteps<Q, A> = {
  /** Runs the whole request while holding a lock, where it must not overlap with others. */
  serialize?: (run: () => Promise<A>) => Promise<A>;
  /**
   * Prices the request at its maximum. Called only for a new attempt; throws a refusal for what the catalogue does not
   * allow.
   */
  quote: () => Quote<Q> | Promise<Quote<Q>>;
  /** Inserts rows in the same write as the hold. */
  insertRows?: (tx: Tx, operation: Operation, quote: Quote<Q>) => void;
  /** Makes the external call, once. Never throws; if the result cannot be known, the outcome is `unknown`. */
  call: (operation: Operation, quote: Quote<Q>, waiters: Waiters<A>) => Promise<Called<A>>;
  /** Adjusts an outcome to what the rows allow, in the write that settles it. */
  judge?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>) => Outcome<Buffer | null>;
  /** Updates rows in the same write as the settlement. Not called if the operation had been settled before. */
  settleRows?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>, now: number) => void;
  /** Returns the refusal for an outcome that is on disk and not `done`. */
  refuse?: (operation: Operation, outcome: NotDone) => Refusal;
  /** Returns the answer of an operation that is no longer running; throws a refusal while it is unresolved. */
  replay: (operation: Operation) => A | Promise<A>;
};
export type NotDone = Exclude<Outcome<never>, { kind: 'done' }>;

export type Answered<A> = { answer: A; replayed: boolean };
export type PaidApp = {
  /** Of each wallet: operations that were held, and then refused outside. They cost nothing and stay in the books. */
  limits: { released: Limit };
  ledger: Ledger;
  clock: Clock;
  events: Events;
  inFlight: InFlight;
  /** Wakes the reaper by this time (Unix seconds). */
  wakeAt: (at: number) => void;
};

/** The refusals of every paid request, besides those of any request; the API document is generated from this. */
export const PAID_REFUSALS = [
  ...HOLD_REFUSALS,
  'idempotency_conflict',
  'idempotency_in_progress',
  'operation_uncertain',
] as const satisfies readonly RefusalCode[];

/**
 * The paid path: hold, call, settle. It makes two committed writes with one call between them (design, section 6).
 *
 * The same key and body never have a second effect: while the first attempt runs, a second request joins it; afterwards
 * the second request gets the same answer. Throws PAID_REFUSALS and the refusals of the steps.
 */
export async function spend<Q, A>(app: PaidApp, request: PaidRequest, steps: PaidSteps<Q, A>): Promise<Answered<A>> {
  const { walletId, route, idempotencyKey } = request;
  const attempt = app.inFlight.find(walletId, route, idempotencyKey);
  if (attempt) {
    if (!attempt.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    return { answer: (await attempt.join(JOIN_SECONDS, inProgress)) as A, replayed: true };
  }
  const earlier = findOperationByKey(app.ledger.read, walletId, route, idempotencyKey);
  if (earlier) {
    if (!earlier.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    return { answer: await steps.replay(earlier), replayed: true };
  }
  // No await since the lookup: nothing else in this process can drive this key, and there is no other process.
  return {
    answer: await app.inFlight.drive<A>(request, (registerId, reject, answer) => {
      const run = () => attemptOnce(app, request, steps, registerId, { reject, answer });
      return steps.serialize ? steps.serialize(run) : run();
    }),
    replayed: false,
  };
}

async function attemptOnce<Q, A>(
  app: PaidApp,
  request: PaidRequest,
  steps: PaidSteps<Q, A>,
  registerId: RegisterId,
  waiters: Waiters<A>,
): Promise<A> {
  const quote = await steps.quote();
  const { detail: _, ...hold } = quote;
  const id = newId('op');
  registerId(id); // Before the write, so that nobody finds a hold without a driver.
  const now = app.clock.now();
  const blocked = app.clock.holdsBlocked();
  const operation = await app.ledger.write((tx) => {
    const limits: HoldOrder['limits'] = (tx, wallet) => {
      app.limits.released.check(wallet.id);
      hold.limits?.(tx, wallet);
    };
    const placed = placeHold(tx, { id, ...request, ...hold, limits }, now, blocked);
    steps.insertRows?.(tx, placed, quote);
    return placed;
  });
  app.events.held(operation);

  const called = await steps.call(operation, quote, waiters);
  if ('pending' in called) return called.pending();
  const { outcome, moved } = await settleCalled(app, operation, called.outcome, steps, waiters.reject);
  // If something else settled it in the meantime, a retry gets that outcome.
  if (outcome.kind === 'done' && moved) return called.answer();
  throw refusalOf(operation, outcome.kind === 'done' || !moved ? LOST : outcome, steps);
}

const LOST: NotDone = { kind: 'unknown', reason: 'the operation was settled meanwhile' };

/** Writes the outcome with the rows that change with it, and announces it once it is on disk. */
async function settleCalled(
  app: PaidApp,
  operation: Operation,
  called: Outcome<Buffer | null>,
  { judge, settleRows }: Pick<PaidSteps<never, never>, 'judge' | 'settleRows'>,
  reject: RejectWaiters,
): Promise<{ outcome: Outcome<Buffer | null>; moved: boolean }> {
  const now = app.clock.now();
  const settled = await writeOutcome(
    app,
    (tx) => {
      const outcome = judge?.(tx, operation, called) ?? called;
      const moved = settle(tx, operation.id, outcome, 'answer', now);
      if (moved) settleRows?.(tx, operation, outcome, now);
      return { outcome, moved };
    },
    reject,
  );
  app.events.settled(operation, settled.outcome, settled.moved);
  if (settled.moved && settled.outcome.kind === 'refused') app.limits.released.count(operation.walletId);
  // A policy or evidence decides what is unknown, and the end of a lease may have moved.
  if (settled.outcome.kind === 'unknown' || operation.resourceId !== null) app.wakeAt(now);
  return settled;
}

function refusalOf(
  operation: Operation,
  outcome: NotDone,
  { refuse }: Pick<PaidSteps<never, never>, 'refuse'>,
): Refusal {
  if (refuse) return refuse(operation, outcome);
  return outcome.kind === 'unknown' ? uncertain() : refusedOutside(outcome);
}

/** Returns the refusal of an outcome that the outside refused, in its own code and words. */
export function refusedOutside({ code, reason, retryAfterSeconds }: NotDone & { kind: 'refused' }): Refusal {
  return new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}

/** Returns the refusal for a request that waited too long for the first attempt with its key. */
export function inProgress(): Refusal {
  return new Refusal('idempotency_in_progress', undefined, { retryAfterSeconds: JOIN_RETRY_SECONDS });
}

/** Returns the refusal while the outcome is unknown and the operation keeps its hold. */
export function uncertain(): Refusal {
  return new Refusal('operation_uncertain', undefined, { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS });
}

const AGAIN_MILLISECONDS = 500;

/**
 * Writes the outcome of a call. If nothing can be written (disk full, database locked), waiting callers get
 * `operation_uncertain` and the write is retried until shutdown. The attempt stays registered, so nothing else resolves
 * it.
 */
export async function writeOutcome<T>(
  app: Pick<PaidApp, 'ledger' | 'inFlight' | 'events'>,
  change: (tx: Tx) => NotPromise<T>,
  reject: RejectWaiters,
): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await app.ledger.write(change);
    } catch (error) {
      if (!(error instanceof Refusal) || error.code !== 'read_only') throw error;
      if (attempt === 1) app.events.failed('settle', error); // Logged once: a disk may stay full for hours.
      reject(uncertain());
      if (app.inFlight.isCutOff()) throw uncertain(); // The next start finds it in flight.
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}
