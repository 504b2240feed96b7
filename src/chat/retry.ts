import type { Clock } from '../base/clock.ts';
import { Refusal } from '../base/refusal.ts';
import { createKept } from '../base/shares.ts';
import type { Ledger } from '../ledger/ledger.ts';
import {
  answerBytes,
  dropAnswer,
  findOperationByKey,
  isUnanswered,
  keepAnswer,
  type Operation,
  operationsWithAnswers,
  type UncertainCursor,
  uncertainOperations,
} from '../ledger/operation.ts';
import type { TenantOf } from '../ledger/tenant.ts';
import type { WhenOver } from '../spend/audience.ts';
import type { InFlight } from '../spend/in-flight.ts';
import type { Answered, PaidRequest } from '../spend/spend.ts';
import type { Events } from '../telemetry/events.ts';
import type { KeptAnswers } from './kept-answers.ts';

/** Seconds for which a paid but undelivered answer waits for the retry of its request. */
const UNDELIVERED_SECONDS = 600;
/**
 * Beyond this many vacant places, of a tree of wallets and of all, the oldest places of the largest owner are given up:
 * their retries are new requests.
 */
const VACANT_COUNT_MAX = { each: 2500, all: 10_000 };

type RetryApp = {
  ledger: Ledger;
  clock: Pick<Clock, 'now'>;
  inFlight: Pick<InFlight, 'find'>;
  events: Events;
  tenantOf: TenantOf;
  keptAnswers: KeptAnswers;
};

/** A request without a key. Its fingerprint covers its question and its gateway key. */
type Asking = Pick<PaidRequest, 'walletId' | 'route' | 'fingerprint' | 'requestId'>;

/** The place of one client in an attempt. Other clients may have had it before, and may get it when this one has gone. */
export type Place = {
  /** The key of the attempt. */
  readonly idempotencyKey: string;
  /** Records that the attempt has become a new request, with a key of its own. */
  moveTo(idempotencyKey: string): void;
  /** True if the client took the place of an earlier one, which had this key. */
  takesOver: boolean;
  /** Returns the seconds for which the answer is to be stored: 0 while a client waits for it. */
  keptSeconds(): number;
  /** Returns whether another client than the first has waited for this attempt. */
  isShared(): boolean;
  /** Records that the answer has begun: a policy's charge for it pays for no other answer. */
  begin(): void;
  /** Sets the function that returns the answer, in its stored form, once it has come. */
  offer(answer: () => Buffer | null): void;
  /** Follows the attempt to its end and the answer to its client. Resolves and rejects as the attempt does. */
  follow<A>(attempt: Promise<Answered<A>>): Promise<Answered<A>>;
};

/**
 * Recognises the retry of a request without an Idempotency-Key: most clients send none, and repeat the request. A place
 * becomes vacant when its client leaves without its answer, or is refused because the outcome is not known. The next
 * request with the same question under the same gateway key takes it (design, section 14).
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
  /** An answer has begun, complete or not. */
  hasBegun: boolean;
  /** Returns the answer in the form that is stored, between its arrival and its delivery. */
  answer: () => Buffer | null;
  /** Resolves when an answer that could not be delivered is stored. */
  stored: Promise<unknown>;
};

/** Creates the record of vacant places. */
export function createRetries(
  { ledger, clock, inFlight, events, tenantOf, keptAnswers }: RetryApp,
  countMax = VACANT_COUNT_MAX,
): Retries {
  const vacant = new Map<string, Attempt[]>();
  /** The number of clients that wait for an attempt, by its fingerprint. */
  const waiting = new Map<string, number>();
  const kept = createKept<Attempt>(countMax, occupy);
  const ownerOf = ({ walletId }: Attempt) => tenantOf(walletId).treeId;

  function vacate(attempt: Attempt): void {
    if (attempt.isVacant) return;
    attempt.isVacant = true;
    const list = vacant.get(attempt.name);
    if (list) list.push(attempt);
    else vacant.set(attempt.name, [attempt]);
    kept.keep(ownerOf(attempt), attempt);
  }

  function occupy(attempt: Attempt): void {
    if (!attempt.isVacant) return;
    attempt.isVacant = false;
    kept.drop(ownerOf(attempt), attempt);
    const left = (vacant.get(attempt.name) as Attempt[]).filter((it) => it !== attempt);
    if (left.length) vacant.set(attempt.name, left);
    else vacant.delete(attempt.name);
  }

  const operationOf = ({ walletId, route, key }: Attempt) => findOperationByKey(ledger.read, walletId, route, key);

  /** Returns whether the attempt has something for a retry: a call in flight, an answer, or a hold without one. */
  function isWorth(attempt: Attempt): boolean {
    const running = inFlight.find(attempt.walletId, attempt.route, attempt.key);
    if (running) return !running.audience.isGivenUp();
    const operation = operationOf(attempt);
    if (!operation) return false;
    return isOpen(attempt, operation) || hasAnswer(operation);
  }
  const hasAnswer = ({ id }: Operation) => answerBytes(ledger.read, id, now()) !== undefined;
  const now = () => clock.now();

  /** Returns whether the hold of an attempt may be taken over. A policy's charge pays for the first answer that begins. */
  function isOpen({ hasBegun }: Attempt, it: Operation): boolean {
    if (!isUnanswered(it) || (hasBegun && it.state === 'settled')) return false;
    return (it.settledAt ?? now()) > now() - UNDELIVERED_SECONDS;
  }

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
    if (!keptAnswers.tryKeep(tenantOf(attempt.walletId), answer.length, UNDELIVERED_SECONDS)) return;
    const until = now() + UNDELIVERED_SECONDS;
    attempt.stored = ledger
      .write(keepAnswer, { id: operation.id, body: answer, keptUntil: until })
      .catch((error) => events.failed('answer', error));
  }

  /** Drops the answer, which is given to one retry only. */
  function forget(attempt: Attempt): void {
    const operation = operationOf(attempt);
    if (!operation || !hasAnswer(operation)) return;
    ledger.write(dropAnswer, { id: operation.id }).catch((error) => events.failed('answer', error));
  }

  function placeIn(attempt: Attempt, takesOver: boolean, whenOver: WhenOver): Place {
    let isDelivered: boolean | undefined;
    let end: 'answered' | 'failed' | undefined;
    waiting.set(attempt.name, (waiting.get(attempt.name) ?? 0) + 1);

    /** Runs when the attempt has been answered and the client's response is over. */
    function finish(): void {
      if (isDelivered && takesOver) forget(attempt);
      // A client that left earlier may have given its place to another, which needs the answer and handles the rest.
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
      begin() {
        attempt.hasBegun = true;
      },
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
          const isLost = error instanceof Refusal && error.code === 'answer_lost'; // The next request is a new one.
          // A client that left while its answer waited has left its place already, perhaps to another.
          if (isDelivered === false && operation && hasAnswer(operation)) throw error;
          // There is still no answer: the place is vacant even if the client got this refusal.
          if (operation && !isLost && (operation.state === 'reserved' || isOpen(attempt, operation))) vacate(attempt);
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
        if (kind !== 'chat' || key !== requestId) return; // Its caller sent a key.
        vacate(newAttempt({ walletId, route, name: fingerprint.toString('base64'), key }));
      };
      let cursor: UncertainCursor | undefined;
      do {
        const page = uncertainOperations(ledger.read, Number.MAX_SAFE_INTEGER, cursor);
        page.forEach(leave);
        cursor = page.at(-1);
      } while (cursor);
      // Answers to requests with keys are stored for days: those that are about to expire are included here.
      operationsWithAnswers(ledger.read, now(), now() + UNDELIVERED_SECONDS).forEach(leave);
    },
    vacantCount: kept.count,
  };
}

const nothing = () => null;
const newAttempt = (it: Pick<Attempt, 'walletId' | 'route' | 'name' | 'key'>): Attempt => ({
  ...it,
  isVacant: false,
  isShared: false,
  hasBegun: false,
  answer: nothing,
  stored: Promise.resolve(),
});
const nextTurn = () => new Promise<void>((resolve) => setImmediate(resolve));
