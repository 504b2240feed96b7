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

/** A retry of an uncertain operation makes sense after about this long. */
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

/** Answers everybody who waits for an attempt, while the attempt itself goes on. */
export type Waiters<A> = { reject: RejectWaiters; answer: RespondEarly<A> };

/** What a call came back with. */
export type Called<A> =
  /** An outcome to be settled. `answer` runs once it is on disk and is `done`; what it throws is what the caller gets. */
  | { outcome: Outcome<Buffer | null>; answer: () => A | Promise<A> }
  /** Nothing to settle yet: the operation keeps its hold, and something else settles it. */
  | { pending: () => Promise<A> };

/** What one paid request does differently from another. */
export type PaidSteps<Q, A> = {
  /** Runs the whole request in its turn, where it must not overlap with another. */
  serialize?: (run: () => Promise<A>) => Promise<A>;
  /** Prices the request at most. Called only for a new attempt; refuses what the catalogue does not allow. */
  quote: () => Quote<Q> | Promise<Quote<Q>>;
  /** Writes rows that stand or fall with the hold. */
  insertRows?: (tx: Tx, operation: Operation, quote: Quote<Q>) => void;
  /** Asks the outside, once. What it cannot know is the outcome `unknown`; it does not throw. */
  call: (operation: Operation, quote: Quote<Q>, waiters: Waiters<A>) => Promise<Called<A>>;
  /** Turns an outcome into the one that the rows allow, in the write that settles it. */
  judge?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>) => Outcome<Buffer | null>;
  /** Changes rows with the settlement, in the same write. Not called where the operation had been settled before. */
  settleRows?: (tx: Tx, operation: Operation, outcome: Outcome<Buffer | null>, now: number) => void;
  /** The refusal that the caller gets for an outcome on disk that is not `done`. */
  refuse?: (operation: Operation, outcome: NotDone) => Refusal;
  /** The answer of an operation that is not running any more; refuses while it is not decided. */
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
  /** Tells the reaper of a deadline, in Unix seconds. */
  wakeAt: (at: number) => void;
};

/** What every paid request may be refused with, beside what any request may be: the API document is made of it. */
export const PAID_REFUSALS = [
  ...HOLD_REFUSALS,
  'idempotency_conflict',
  'idempotency_in_progress',
  'operation_uncertain',
] as const satisfies readonly RefusalCode[];

/**
 * The one path of money: hold, call, settle. Two committed writes and one call between them (design, section 6).
 *
 * The same key and body never have a second effect: while the first attempt runs the second joins it; afterwards it gets
 * its answer again. Refuses with PAID_REFUSALS, and with whatever the steps refuse with.
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
  // No await since the look-up: in this process nobody else can drive this key, and there is no other process.
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
  registerId(id); // Before the write: nobody finds a hold that seems to have no driver.
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
  // What somebody else has settled meanwhile is told to a retry.
  if (outcome.kind === 'done' && moved) return called.answer();
  throw refusalOf(operation, outcome.kind === 'done' || !moved ? LOST : outcome, steps);
}

const LOST: NotDone = { kind: 'unknown', reason: 'the operation was settled meanwhile' };

/** Writes the outcome, with the rows that change with it, and tells of it once it is on disk. */
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
  if (outcome.kind === 'unknown') return uncertain();
  const { code, reason, retryAfterSeconds } = outcome;
  return new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}

/** The first attempt with this key has run for too long to be waited for. */
export function inProgress(): Refusal {
  return new Refusal('idempotency_in_progress', undefined, { retryAfterSeconds: JOIN_RETRY_SECONDS });
}

/** The outcome is not known (yet): the operation keeps its hold. */
export function uncertain(): Refusal {
  return new Refusal('operation_uncertain', undefined, { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS });
}

const AGAIN_MILLISECONDS = 500;

/**
 * Writes what came back from outside. If nothing can be written (disk full, database locked), waiting callers get
 * `operation_uncertain` and the write is retried until shutdown. The attempt stays registered, so nothing else resolves it.
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
      if (attempt === 1) app.events.failed('settle', error); // Said once: a disk may be full for hours.
      reject(uncertain());
      if (app.inFlight.isCutOff()) throw uncertain(); // The next start finds it in flight.
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}
