import type { Limit } from '../access/limits.ts';
import type { Clock } from '../clock.ts';
import type { Tx } from '../db/handle.ts';
import type { NotPromise } from '../db/writer.ts';
import type { Events } from '../events.ts';
import { newId } from '../id.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { findOperationByKey, HOLD_REFUSALS, type HoldOrder, type Operation, placeHold } from '../ledger/operation.ts';
import { Refusal, type RefusalCode } from '../refusal.ts';
import type { AnswerNow, GiveUp, Running, Started } from './running.ts';

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

/** What differs between one paid request and another. */
export type Walk<Q, A> = {
  /** Runs the whole walk when it is its turn, where it must not overlap with another. */
  inTurn?: (walk: () => Promise<A>) => Promise<A>;
  /** What it costs at most. Asked only for a new attempt; refuses what the catalogue does not allow. */
  quote: () => Quote<Q> | Promise<Quote<Q>>;
  /** Rows that stand or fall with the hold. */
  intend?: (tx: Tx, operation: Operation, quote: Quote<Q>) => void;
  /** Asks the outside, once, and settles by what came back. Whatever it cannot know it leaves `uncertain`. */
  finish: (operation: Operation, quote: Quote<Q>, giveUp: GiveUp, answerNow: AnswerNow<A>) => Promise<A>;
  /** What an operation that is not running any more answers to its key; refuses while it is not decided. */
  replay: (operation: Operation) => A | Promise<A>;
};

export type Answered<A> = { answer: A; replayed: boolean };
export type RoadApp = {
  /** Of each wallet: operations that were held, and then refused outside. They cost nothing and stay in the books. */
  limits: { released: Limit };
  ledger: Ledger;
  clock: Clock;
  events: Events;
  running: Running;
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
 * The one road of money: hold, call, settle. Two committed writes and one call between them (design, section 6).
 *
 * The same key and body never have a second effect: while the first attempt runs the second joins it; afterwards it gets
 * its answer again. Refusals: `idempotency_conflict`, `idempotency_in_progress`, those of `placeHold`, and whatever the
 * walk refuses with.
 */
export async function spend<Q, A>(app: RoadApp, request: PaidRequest, walk: Walk<Q, A>): Promise<Answered<A>> {
  const { walletId, route, idempotencyKey } = request;
  const attempt = app.running.find(walletId, route, idempotencyKey);
  if (attempt) {
    if (!attempt.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    return { answer: (await attempt.join(JOIN_SECONDS, inProgress)) as A, replayed: true };
  }
  const earlier = findOperationByKey(app.ledger.read, walletId, route, idempotencyKey);
  if (earlier) {
    if (!earlier.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    return { answer: await walk.replay(earlier), replayed: true };
  }
  // No await since the look: in this process nobody else can drive this key, and there is no other process.
  return {
    answer: await app.running.drive<A>(request, (started, giveUp, answerNow) => {
      const go = () => drive(app, request, walk, started, giveUp, answerNow);
      return walk.inTurn ? walk.inTurn(go) : go();
    }),
    replayed: false,
  };
}

/** The first attempt with this key has run for too long to be waited for. */
export function inProgress(): Refusal {
  return new Refusal('idempotency_in_progress', undefined, { retryAfterSeconds: JOIN_RETRY_SECONDS });
}

/** The outcome is not known (yet): the operation keeps its hold. */
export function uncertain(): Refusal {
  return new Refusal('operation_uncertain', undefined, { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS });
}

async function drive<Q, A>(
  app: RoadApp,
  request: PaidRequest,
  walk: Walk<Q, A>,
  started: Started,
  giveUp: GiveUp,
  answerNow: AnswerNow<A>,
): Promise<A> {
  const quote = await walk.quote();
  const { detail: _, ...hold } = quote;
  const id = newId('op');
  started(id); // Before the write: nobody finds a hold that seems to have no driver.
  const now = app.clock.now();
  const blocked = app.clock.holdsBlocked();
  const operation = await app.ledger.write((tx) => {
    const placed = placeHold(tx, { id, ...request, ...hold }, now, blocked);
    walk.intend?.(tx, placed, quote);
    return placed;
  });
  app.events.held(operation);
  return walk.finish(operation, quote, giveUp, answerNow);
}

const AGAIN_MILLISECONDS = 500;

/**
 * Writes what came back from outside. Where nothing can be written at the moment (a full disk, a database that another
 * program has locked) whoever waits hears that the outcome is uncertain, and it is tried again for as long as this process
 * runs: the attempt stays driven, so nobody else decides it meanwhile.
 */
export async function writeOutcome<T>(
  app: Pick<RoadApp, 'ledger' | 'running' | 'events'>,
  change: (tx: Tx) => NotPromise<T>,
  giveUp: GiveUp,
): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await app.ledger.write(change);
    } catch (error) {
      if (!(error instanceof Refusal) || error.code !== 'read_only') throw error;
      if (attempt === 1) app.events.failed('settle', error); // Said once: a disk may be full for hours.
      giveUp(uncertain());
      if (app.running.isCutOff()) throw uncertain(); // The next start finds it in flight.
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}
