import type { Clock } from '../clock.ts';
import type { Events } from '../events.ts';
import type { Ledger } from '../ledger/ledger.ts';
import {
  findAnswer,
  findOperationByKey,
  isUnanswered,
  type Operation,
  operationsWithAnswers,
  type UncertainCursor,
  uncertainOperations,
} from '../ledger/operation.ts';
import { dropAnswer, keepAnswer } from '../ledger/writes.ts';
import { Refusal } from '../refusal.ts';
import type { InFlight } from '../spend/in-flight.ts';
import type { Answered, PaidRequest } from '../spend/spend.ts';

/** Seconds for which an answer that was paid and not delivered waits for the retry of its request. */
const UNDELIVERED_SECONDS = 600;
/** Beyond this many vacant places the oldest are given up: their retries are new requests. */
const VACANT_COUNT_MAX = 10_000;

type RetryApp = { ledger: Ledger; clock: Pick<Clock, 'now'>; inFlight: Pick<InFlight, 'find'>; events: Events };

/** Calls the listener when the client's response is over, at once if it already is, and says whether all of it was sent. */
export type WhenOver = (listener: (isDelivered: boolean) => void) => void;

/** A request without a key. Its fingerprint is that of its bytes and its gateway key. */
type Asking = Pick<PaidRequest, 'walletId' | 'route' | 'fingerprint' | 'requestId'>;

/** The place of one client in an attempt. Others may have had it before, and may get it when this one has gone. */
export type Place = {
  /** The key of the attempt. */
  readonly idempotencyKey: string;
  /** Says that the attempt has become a new request, with a key of its own. */
  moveTo(idempotencyKey: string): void;
  /** True if the client took the place of an earlier one, whose key this is. */
  takesOver: boolean;
  /** Returns the seconds for which the answer is to be stored: 0 while a client waits for it. */
  keptSeconds(): number;
  /** Returns whether another client than the first has waited for this attempt. */
  isShared(): boolean;
  /** Says how to get the answer, once it has come, in the form that is stored. */
  offer(answer: () => Buffer | null): void;
  /** Follows the attempt to its end and the answer to its client. Resolves and rejects as the attempt does. */
  follow<A>(attempt: Promise<Answered<A>>): Promise<Answered<A>>;
};

/**
 * Recognises the retry of a request without an Idempotency-Key: most clients send none, and repeat the same bytes. The place
 * of a client that has gone without its answer is vacant, and so is that of a client that was told that the outcome is not
 * known. The next request with the same bytes under the same gateway key takes it (design, section 14).
 */
export type Retries = {
  take(asking: Asking, whenOver: WhenOver): Promise<Place>;
  /** Loads the places that the last process left vacant. */
  recall(): void;
  vacantCount(): number;
};

type Attempt = {
  walletId: string;
  route: string;
  key: string;
  /** The fingerprint of the request, in base64. */
  name: string;
  isVacant: boolean;
  isShared: boolean;
  /** Returns the answer in the form that is stored, between its arrival and its delivery. */
  answer: () => Buffer | null;
  /** Resolves when an answer that could not be delivered is stored. */
  stored: Promise<unknown>;
};

/** Creates the record of vacant places. */
export function createRetries({ ledger, clock, inFlight, events }: RetryApp): Retries {
  const vacant = new Map<string, Attempt[]>();
  /** The number of clients that wait for an attempt, by its fingerprint. */
  const waiting = new Map<string, number>();
  let count = 0;

  function vacate(attempt: Attempt): void {
    if (attempt.isVacant) return;
    attempt.isVacant = true;
    count++;
    const list = vacant.get(attempt.name);
    if (list) list.push(attempt);
    else vacant.set(attempt.name, [attempt]);
    for (const [oldest] of vacant.values()) {
      if (count <= VACANT_COUNT_MAX) return;
      occupy(oldest as Attempt);
    }
  }

  function occupy(attempt: Attempt): void {
    if (!attempt.isVacant) return;
    attempt.isVacant = false;
    count--;
    const left = (vacant.get(attempt.name) as Attempt[]).filter((it) => it !== attempt);
    if (left.length) vacant.set(attempt.name, left);
    else vacant.delete(attempt.name);
  }

  const operationOf = ({ walletId, route, key }: Attempt) => findOperationByKey(ledger.read, walletId, route, key);

  /** Returns whether there is something to take: a running attempt, an answer, or a hold without one. */
  function isWorth(attempt: Attempt): boolean {
    if (inFlight.find(attempt.walletId, attempt.route, attempt.key)) return true;
    const operation = operationOf(attempt);
    return operation !== undefined && (isOpen(operation) || findAnswer(ledger.read, operation.id, now()) !== undefined);
  }
  const now = () => clock.now();
  const isOpen = (it: Operation) => isUnanswered(it) && (it.settledAt ?? now()) > now() - UNDELIVERED_SECONDS;

  async function takeVacant(name: string): Promise<Attempt | undefined> {
    for (;;) {
      const attempt = vacant.get(name)?.at(-1);
      if (!attempt) return undefined;
      occupy(attempt);
      await attempt.stored;
      if (isWorth(attempt)) return attempt;
    }
  }

  function store(attempt: Attempt, answer: Buffer): void {
    const operation = operationOf(attempt);
    if (operation?.outcome !== 'charged') return;
    const until = now() + UNDELIVERED_SECONDS;
    attempt.stored = ledger
      .write(keepAnswer, { id: operation.id, body: answer, keptUntil: until })
      .catch((error) => events.failed('answer', error));
  }

  /** An answer is given to one retry, not to the next. */
  function forget(attempt: Attempt): void {
    const operation = operationOf(attempt);
    if (!operation || findAnswer(ledger.read, operation.id, now()) === undefined) return;
    ledger.write(dropAnswer, { id: operation.id }).catch((error) => events.failed('answer', error));
  }

  function placeIn(attempt: Attempt, takesOver: boolean, whenOver: WhenOver): Place {
    let isDelivered: boolean | undefined;
    let end: 'answered' | 'failed' | undefined;
    waiting.set(attempt.name, (waiting.get(attempt.name) ?? 0) + 1);

    /** Runs when the attempt has been answered and the client's response is over. */
    function finish(): void {
      if (isDelivered && takesOver) forget(attempt);
      // A client that has gone earlier may have given its place to another, who needs the answer and takes care of the rest.
      if (isDelivered || !attempt.isVacant) return;
      const bytes = attempt.answer();
      attempt.answer = nothing;
      if (bytes) store(attempt, bytes);
    }
    whenOver((delivered) => {
      isDelivered = delivered;
      const left = (waiting.get(attempt.name) as number) - 1;
      if (left) waiting.set(attempt.name, left);
      else waiting.delete(attempt.name);
      if (!delivered && end !== 'failed') vacate(attempt);
      if (end === 'answered') finish();
    });

    return {
      get idempotencyKey() {
        return attempt.key;
      },
      moveTo(key) {
        attempt.key = key;
      },
      takesOver,
      keptSeconds: () => (attempt.isVacant ? UNDELIVERED_SECONDS : 0),
      isShared: () => attempt.isShared,
      offer(given) {
        attempt.answer = given;
      },
      async follow(running) {
        try {
          const answered = await running;
          end = 'answered';
          if (isDelivered !== undefined) finish();
          return answered;
        } catch (error) {
          end = 'failed';
          const operation = operationOf(attempt);
          const isLost = error instanceof Refusal && error.code === 'answer_lost'; // What is asked next is a new request.
          // There is still no answer: the place is vacant even if the client was told so.
          if (operation && !isLost && (operation.state === 'reserved' || isOpen(operation))) vacate(attempt);
          else occupy(attempt);
          throw error;
        }
      },
    };
  }

  return {
    async take({ walletId, route, fingerprint, requestId }, whenOver) {
      const name = fingerprint.toString('base64');
      // A client that closed its connection asks again on another; its new request may be read before the close is noticed.
      for (let turn = 0; turn < 2 && waiting.has(name) && !vacant.has(name); turn++) await nextTurn();
      const found = await takeVacant(name);
      if (found) found.isShared = true;
      const attempt = found ?? newAttempt({ walletId, route, name, key: requestId });
      return placeIn(attempt, found !== undefined, whenOver);
    },
    recall() {
      const leave = ({ walletId, route, idempotencyKey: key, requestId, fingerprint, kind }: Operation) => {
        if (kind !== 'chat' || key !== requestId) return; // A key that its caller sent.
        vacate(newAttempt({ walletId, route, name: fingerprint.toString('base64'), key }));
      };
      let cursor: UncertainCursor | undefined;
      do {
        const page = uncertainOperations(ledger.read, Number.MAX_SAFE_INTEGER, cursor);
        page.forEach(leave);
        cursor = page.at(-1);
      } while (cursor);
      // Answers to requests with keys are stored for days: those that are about to expire are among these, too.
      operationsWithAnswers(ledger.read, now(), now() + UNDELIVERED_SECONDS).forEach(leave);
    },
    vacantCount: () => count,
  };
}

const nothing = () => null;
const newAttempt = (it: Pick<Attempt, 'walletId' | 'route' | 'name' | 'key'>): Attempt => ({
  ...it,
  isVacant: false,
  isShared: false,
  answer: nothing,
  stored: Promise.resolve(),
});
const nextTurn = () => new Promise<void>((resolve) => setImmediate(resolve));
