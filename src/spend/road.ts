import type { Clock } from '../clock.ts';
import type { Events } from '../events.ts';
import type { Ledger } from '../ledger/ledger.ts';
import {
  findAnswer,
  findOperationByKey,
  type HoldOrder,
  type Operation,
  type Outcome,
  placeHold,
  settle,
} from '../ledger/operation.ts';
import { formatUsd, type Nanos } from '../money.ts';
import { Refusal } from '../refusal.ts';
import type { Running } from './running.ts';

/** A retry of an uncertain operation makes sense after about this long. */
const UNCERTAIN_RETRY_SECONDS = 30;
/** How long a second request with the same key waits for the first (design 2.7). */
export const JOIN_SECONDS = 30;
const JOIN_RETRY_SECONDS = 5;

export type PaidRequest<Q> = Pick<
  HoldOrder,
  'walletId' | 'kind' | 'route' | 'idempotencyKey' | 'fingerprint' | 'requestId'
> & {
  /** What it costs at most. Called only when this is a new attempt; refuses what the catalogue does not allow. */
  quote: () => Quote<Q>;
};
export type Quote<Q> = Pick<HoldOrder, 'hold' | 'price' | 'subject' | 'advice'> & { detail: Q };
/** Asks the outside, once. Whatever it throws is an unknown outcome. */
export type Call<Q> = (operation: Operation, quote: Quote<Q>) => Promise<Outcome<Buffer>>;

export type Answered = { body: Buffer; replayed: boolean };
export type RoadApp = {
  ledger: Ledger;
  clock: Clock;
  events: Events;
  running: Running;
  /** Tells the reaper of a deadline, in Unix seconds. */
  wakeAt: (at: number) => void;
};

/**
 * The one road of money: hold, call, settle. Two committed writes and one call between them (design, section 6).
 *
 * The same key and body never have a second effect: while the first attempt runs the second joins it; afterwards it gets
 * the stored answer. Refusals: `idempotency_conflict`, `idempotency_in_progress`, `idempotency_key_expired`,
 * `answer_lost`, `operation_uncertain`, those of `placeHold`, and whatever the outside refused with.
 */
export async function spend<Q>(app: RoadApp, request: PaidRequest<Q>, call: Call<Q>): Promise<Answered> {
  const { walletId, route, idempotencyKey } = request;
  const attempt = app.running.find(walletId, route, idempotencyKey);
  if (attempt) {
    if (!attempt.fingerprint.equals(request.fingerprint)) throw new Refusal('idempotency_conflict');
    return { body: await attempt.join(JOIN_SECONDS, inProgress), replayed: true };
  }
  const earlier = findOperationByKey(app.ledger.read, walletId, route, idempotencyKey);
  if (earlier) return { body: replay(app, earlier, request.fingerprint), replayed: true };
  // No await since the look: in this process nobody else can drive this key, and there is no other process.
  return { body: await app.running.drive(request, (started) => drive(app, request, call, started)), replayed: false };
}

function inProgress(): Refusal {
  return new Refusal('idempotency_in_progress', undefined, { retryAfterSeconds: JOIN_RETRY_SECONDS });
}

/** The outcome is not known (yet): the operation keeps its hold. */
export function uncertain(): Refusal {
  return new Refusal('operation_uncertain', undefined, { retryAfterSeconds: UNCERTAIN_RETRY_SECONDS });
}

/** What an operation that is not running any more answers to its key. */
function replay(app: RoadApp, operation: Operation, fingerprint: Buffer): Buffer {
  if (!operation.fingerprint.equals(fingerprint)) throw new Refusal('idempotency_conflict');
  if (operation.state !== 'settled') throw uncertain();
  const answer = findAnswer(app.ledger.read, operation.id, app.clock.now());
  if (answer) return answer;
  if (operation.settledBy === 'answer') throw new Refusal('idempotency_key_expired');
  throw new Refusal(
    'answer_lost',
    `The answer to this request was lost and ${formatUsd(operation.charge as Nanos)} USD were charged for it. That is final; a new key is safe now.`,
  );
}

async function drive<Q>(
  app: RoadApp,
  request: PaidRequest<Q>,
  call: Call<Q>,
  started: (operationId: string) => void,
): Promise<Buffer> {
  const { quote: makeQuote, ...key } = request;
  const quote = makeQuote();
  const blocked = app.clock.holdsBlocked();
  if (blocked) throw new Refusal('read_only', `No new holds: ${blocked}. Retry later.`, { retryAfterSeconds: 60 });

  const { detail: _, ...hold } = quote;
  const now = app.clock.now();
  const operation = await app.ledger.write((tx) => placeHold(tx, { ...key, ...hold }, now));
  started(operation.id);
  app.events.held(operation);

  let outcome: Outcome<Buffer>;
  try {
    outcome = await call(operation, quote);
  } catch (cause) {
    outcome = { kind: 'unknown', reason: `the call ended without an answer: ${(cause as Error).message}` };
  }

  const then = app.clock.now();
  const moved = await app.ledger.write((tx) => settle(tx, operation.id, outcome, 'answer', then));
  app.events.settled(operation, outcome, moved);
  if (!moved) throw uncertain();
  if (outcome.kind === 'done') return outcome.answer;
  if (outcome.kind === 'unknown') {
    app.wakeAt(then);
    throw uncertain();
  }
  const { code, reason, retryAfterSeconds } = outcome;
  throw new Refusal(code, reason, retryAfterSeconds === undefined ? {} : { retryAfterSeconds });
}
