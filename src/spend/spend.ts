import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { newId } from '../base/id.ts';
import type { Limit } from '../base/limits.ts';
import type { Nanos } from '../base/money.ts';
import { Refusal, type RefusalCode, type RefusalData, refusalOf as refusalFrom } from '../base/refusal.ts';
import type { Data, Write } from '../db/write.ts';
import { type Funds, HOLD_REFUSALS, type HoldOrder } from '../ledger/hold.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { answerBytes, findOperationByKey, isUnanswered, type Operation, type Outcome } from '../ledger/operation.ts';
import type { TenantOf } from '../ledger/tenant.ts';
import type { Events } from '../telemetry/events.ts';
import { type Audience, COME_BACK_SECONDS, type OnResponseEnd } from './audience.ts';
import type { FundsQueue } from './funds-queue.ts';
import { holdInTurn, holdNow, refusedNow } from './hold.ts';
import type { InFlight, RegisterId, RejectWaiters, RespondEarly } from './in-flight.ts';
import { type PaidWrites, takeOverHold } from './writes.ts';

/** Suggested wait before retrying an uncertain operation. */
export const UNCERTAIN_RETRY_SECONDS = 30;
/** Seconds that a second request with the same key waits for the first (design 2.7). */
export const JOIN_SECONDS = 30;
/** Seconds for which a client waits for the attempt that it took over from an earlier client. Longer than any call. */
const TAKE_OVER_SECONDS = 2 * 3600;

export type PaidRequest = Pick<
  HoldOrder,
  'walletId' | 'kind' | 'route' | 'idempotencyKey' | 'fingerprint' | 'requestId' | 'tags'
> & {
  /** The caller sent no key, so there is no earlier attempt to look for. */
  isKeyMadeUp?: boolean;
  /** The header `traceparent` of the request: its span in the caller's trace. */
  traceparent?: string | string[] | undefined;
  /** The time that it waits for an earlier request with its key, instead of `JOIN_SECONDS`. */
  joinSeconds?: number;
  /** The request has the key of an earlier attempt: it waits for the attempt's end, or takes over its hold. */
  takesOver?: boolean;
  /** Calls its listener when the client has gone. Without it, the client is assumed to stay. */
  onResponseEnd?: OnResponseEnd | undefined;
  /** True if the request waits a while before it is refused when only requests in flight hold the money that it needs. */
  waitsForFunds?: boolean;
};
/** The part of an order that prices a request. */
type PricedOrder = Pick<HoldOrder, 'hold' | 'holdMin' | 'price' | 'subject' | 'resourceId' | 'targetAt'>;

/** A priced request, with its call. */
export type PaidQuote<A, T> = {
  order: PricedOrder;
  /** The part of the quote that the writes of this kind need. */
  terms: T;
  /** Makes the external call, once. A failed call is not thrown: if its result cannot be known, the outcome is `unknown`. */
  call: (operation: Operation, waiters: Waiters<A>) => Promise<Called<A>>;
  /** Returns the quote for a wallet that lacks the money for this one: of a smaller order, or of the same. */
  cut?: (funds: Funds) => PaidQuote<A, T>;
  /** A sentence for a caller whose wallet lacks the money. */
  advice?: string;
  /**
   * Returns the reason why nothing may be held for this caller, whatever its wallet has. Called again as long as the request
   * waits.
   */
  forbidden?: (() => RefusalData | undefined) | undefined;
  /**
   * Acquires the resources of the call other than money, right before the hold. Returns the refusal if they are not
   * available.
   */
  enter?: () => Refusal | undefined;
  /** Gives back the resources from `enter`, as nothing is held yet. */
  leave?: () => void;
};

/** The callers waiting for an attempt. They can be answered or refused while the attempt itself continues. */
export type Waiters<A> = { reject: RejectWaiters; answer: RespondEarly<A>; audience: Audience };

/** The result of a call. */
export type Called<A> =
  /** An outcome to settle. Once a `done` outcome is on disk, `answer` runs; its result or error goes to the caller. */
  | { outcome: Outcome<Buffer | null>; answer: () => A | Promise<A> }
  /** Nothing to settle yet: the operation keeps its hold, and another step settles it. */
  | { pending: () => Promise<A> };

/** The steps in which kinds of paid requests differ. */
type PaidSteps<A, T> = {
  /** The writes of its kind. */
  writes: PaidWrites<T>;
  /**
   * Runs the whole request when it may: while holding a lock, where it must not overlap with others, or in its turn. May run it again
   * after a definite refusal that its caller has not seen.
   */
  schedule?: <T>(run: () => Promise<T>, audience: Audience) => Promise<T>;
  /** Prices the request at its maximum. Not called for a replay; throws the refusals of the catalogue. */
  quote: () => PaidQuote<A, T> | Promise<PaidQuote<A, T>>;
  /** Prices the request within the hold of an earlier attempt at it. Returns undefined if that hold does not cover it. */
  quoteWithin?: (earlier: Operation) => PaidQuote<A, T> | undefined;
  /** Returns the refusal for an outcome that is on disk and not `done`. */
  refuse?: (operation: Operation, outcome: NotDone) => Refusal;
  /** Returns the answer of an operation that is no longer running; throws a refusal while it is unresolved. */
  replay: (operation: Operation) => A | Promise<A>;
};
export type NotDone = Exclude<Outcome<never>, { kind: 'done' }>;

/** The charge of an operation, and the available money of its wallet after the settlement. */
export type Paid = { charge: Nanos; available: Nanos };
/** An answer and, if it was charged in this call, the payment. */
type Given<A> = { answer: A; paid: Paid | undefined };
export type Answered<A> = Given<A> & { replayed: boolean };
export type PaidApp = {
  /**
   * Counts, for each wallet, the operations that were held and then refused by the model server or the backend. They cost nothing
   * and stay in the books.
   */
  limits: { released: Limit };
  tenantOf: TenantOf;
  ledger: Ledger;
  clock: Clock;
  events: Events;
  inFlight: InFlight;
  /** The requests that wait for money. */
  fundsQueue: FundsQueue;
  /** Confirms that the books are still this process's where it stood still since the hold (docs/decisions/0078). */
  storage: { confirmAfterPause(): Promise<void> | undefined };
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
 * The same key and body never have a second effect: while the first attempt runs, a second request joins it; afterwards the second
 * request gets the same answer. Throws PAID_REFUSALS and the refusals of the steps.
 */
export async function spend<A, T extends Data>(
  app: PaidApp,
  request: PaidRequest,
  steps: PaidSteps<A, T>,
): Promise<Answered<A>> {
  const { walletId, route, idempotencyKey, isKeyMadeUp } = request;
  const attempt = isKeyMadeUp ? undefined : app.inFlight.find(walletId, route, idempotencyKey);
  if (attempt) {
    if (!attempt.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    attempt.audience.admit(request.onResponseEnd);
    const given = await attempt.join(
      request.takesOver ? TAKE_OVER_SECONDS : (request.joinSeconds ?? JOIN_SECONDS),
      inProgress,
    );
    return { ...(given as Given<A>), replayed: true };
  }
  const earlier = isKeyMadeUp ? undefined : findOperationByKey(app.ledger.read, walletId, route, idempotencyKey);
  if (earlier) {
    if (!earlier.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    // An answer may have been stored since a policy's charge, by a retry whose client has gone as well.
    const asksAgain = isUnanswered(earlier) && answerBytes(app.ledger.read, earlier.id, app.clock.now()) === undefined;
    if (!request.takesOver || !asksAgain) return { ...unpaid(await steps.replay(earlier)), replayed: true };
    const given = await app.inFlight.drive<Given<A>>(request, (registerId, ...waiting) =>
      attemptAgain(app, request, earlier, steps, registerId, waitersOf(...waiting)),
    );
    return { ...given, replayed: false };
  }
  // No await since the lookup: no other code can have begun to drive this key, and there is no other process.
  const given = await app.inFlight.drive<Given<A>>(request, (registerId, ...waiting) => {
    const waiters = waitersOf<A>(...waiting);
    const run = () => attemptOnce(app, request, steps, registerId, waiters);
    return steps.schedule ? steps.schedule(run, waiters.audience) : run();
  });
  return { ...given, replayed: false };
}

const unpaid = <A>(answer: A): Given<A> => ({ answer, paid: undefined });
const waitersOf = <A>(reject: RejectWaiters, respond: RespondEarly<Given<A>>, audience: Audience): Waiters<A> => ({
  reject,
  answer: (answer) => respond(unpaid(answer)),
  audience,
});

async function attemptOnce<A, T extends Data>(
  app: PaidApp,
  {
    isKeyMadeUp: _,
    takesOver: __,
    onResponseEnd: ___,
    joinSeconds: ____,
    traceparent,
    waitsForFunds,
    ...request
  }: PaidRequest,
  steps: PaidSteps<A, T>,
  registerId: RegisterId,
  waiters: Waiters<A>,
): Promise<Given<A>> {
  const quote = await steps.quote();
  const id = newId('op');
  registerId(id); // Before the write, so that there is never a hold without a driver.
  const held = await (waitsForFunds ? holdInTurn : holdNow)(app, steps.writes, { id, ...request }, quote, waiters);
  app.fundsQueue.wake(request.walletId); // The hold may have refilled the wallet.
  app.events.held(held.operation, traceparent);
  return callAndSettle(app, held.operation, held.quote, steps, waiters);
}

/**
 * Repeats the call on the hold of an unanswered operation. A definite refusal does not resolve the first attempt, so the hold
 * stays. Makes a new request where the hold is too small, or the operation has been answered or released.
 */
async function attemptAgain<A, T extends Data>(
  app: PaidApp,
  request: PaidRequest,
  earlier: Operation,
  steps: PaidSteps<A, T>,
  registerId: RegisterId,
  waiters: Waiters<A>,
): Promise<Given<A>> {
  const startAgain = () => {
    // Also registered under its own key, so that a later retry can join it.
    const own = { ...request, idempotencyKey: request.requestId };
    return app.inFlight.drive<Given<A>>(own, (registerId, ...waiting) =>
      attemptOnce(app, own, steps, registerId, waitersOf(...waiting)),
    );
  };
  const quote = steps.quoteWithin?.(earlier);
  if (!quote) return startAgain();
  const refused = refusedNow(app, quote, request.walletId);
  if (refused) throw refusalFrom(refused);
  const now = app.clock.now();
  const release = registerId(earlier.id); // Before the write: from now on no policy resolves it.
  const operation = await app.ledger.write(takeOverHold, { id: earlier.id, now, blocked: app.clock.holdsBlocked() });
  if (!operation) {
    release();
    return startAgain();
  }
  app.events.takenOver(operation, request.requestId, request.traceparent);
  return callAndSettle(app, operation, quote, steps, waiters);
}

/** Makes the call and settles its outcome. An operation that is not `reserved` is an earlier attempt's. */
async function callAndSettle<A, T>(
  app: PaidApp,
  operation: Operation,
  { call }: Pick<PaidQuote<A, T>, 'call'>,
  steps: PaidSteps<A, T>,
  waiters: Waiters<A>,
): Promise<Given<A>> {
  const confirmed = app.storage.confirmAfterPause();
  if (confirmed) await confirmed;
  const called = await call(operation, waiters);
  if ('pending' in called) return unpaid(await called.pending());
  if (operation.state !== 'reserved' && called.outcome.kind === 'refused') {
    app.limits.released.count(operation.walletId);
    throw refusalOf(operation, called.outcome, steps);
  }
  // A full charge by a policy pays for the answer: it is delivered, and nothing more is charged.
  if (operation.state === 'settled') {
    if (called.outcome.kind === 'done') return unpaid(await called.answer());
    throw refusalOf(operation, called.outcome, steps);
  }
  const { outcome, moved, paid } = await settleCalled(app, operation, called.outcome, steps, waiters.reject);
  if (outcome.kind === 'done' && moved) return { answer: await called.answer(), paid };
  // If it was settled by other means in the meantime, a retry gets that outcome.
  throw refusalOf(operation, outcome.kind === 'done' || !moved ? LOST : outcome, steps);
}

const LOST: NotDone = { kind: 'unknown', reason: 'the operation was settled meanwhile' };

/** Writes the outcome with the rows that change with it, and announces it once it is on disk. */
async function settleCalled(
  app: PaidApp,
  operation: Operation,
  called: Outcome<Buffer | null>,
  { writes }: { writes: Pick<PaidWrites<never>, 'settle'> },
  reject: RejectWaiters,
): Promise<{ outcome: Outcome<Buffer | null>; moved: boolean; paid: Paid | undefined }> {
  const now = app.clock.now();
  const { judged, moved, available } = await writeOutcome(
    app,
    writes.settle,
    { id: operation.id, outcome: called, now },
    reject,
  );
  app.fundsQueue.wake(operation.walletId);
  const outcome = judged ?? called;
  app.events.settled(operation, outcome, moved);
  if (moved && outcome.kind === 'refused') app.limits.released.count(operation.walletId);
  // A policy or evidence resolves an unknown outcome, and the end of a lease may have moved.
  if (outcome.kind === 'unknown' || operation.resourceId !== null) app.wakeAt(now);
  const isPaid = outcome.kind === 'done' && available !== undefined;
  return { outcome, moved, paid: isPaid ? { charge: outcome.charge, available } : undefined };
}

function refusalOf(
  operation: Operation,
  outcome: NotDone,
  { refuse }: Pick<PaidSteps<never, never>, 'refuse'>,
): Refusal {
  if (refuse) return refuse(operation, outcome);
  return outcome.kind === 'unknown' ? uncertain() : refusedOutside(outcome);
}

/** Returns the refusal of an outcome that the model server or the backend refused, in its own code and words. */
export function refusedOutside({ code, reason, retryAfterSeconds }: NotDone & { kind: 'refused' }): Refusal {
  return new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}

/** Returns the refusal for a request that waited too long for the first attempt with its key. */
export function inProgress(): Refusal {
  return new Refusal('idempotency_in_progress', undefined, { retryAfterSeconds: COME_BACK_SECONDS });
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
export async function writeOutcome<D, R>(
  app: Pick<PaidApp, 'ledger' | 'inFlight' | 'events'>,
  write: Write<D, R>,
  data: NoInfer<D>,
  reject: RejectWaiters,
): Promise<R> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await app.ledger.write(write, data);
    } catch (error) {
      if (!(error instanceof Refusal) || error.code !== 'read_only') throw error;
      if (attempt === 1) app.events.failed('settle', error); // Logged once: a disk may stay full for hours.
      reject(uncertain());
      if (app.inFlight.isCutOff()) throw uncertain(); // The next start finds it in flight.
    }
    await sleep(AGAIN_MILLISECONDS);
  }
}
