import type { Clock } from '../base/clock.ts';
import { Refusal } from '../base/refusal.ts';
import { createKept } from '../base/shares.ts';
import { nextTurn } from '../base/turn.ts';
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
import type { OnResponseEnd } from '../spend/audience.ts';
import type { InFlight } from '../spend/in-flight.ts';
import type { Answered, PaidRequest } from '../spend/spend.ts';
import type { Events } from '../telemetry/events.ts';
import type { KeptAnswers } from './kept-answers.ts';

/** Seconds for which a paid but undelivered answer waits for the retry of its request. */
const UNDELIVERED_SECONDS = 600;
/**
 * Beyond this many abandoned attempts, of a tree of wallets and of all, the oldest of the largest owner are forgotten: their
 * retries are new requests.
 */
const ABANDONED_COUNT_MAX = { each: 2500, all: 10_000 };

type RetryApp = {
  ledger: Ledger;
  clock: Pick<Clock, 'now'>;
  inFlight: Pick<InFlight, 'find'>;
  events: Events;
  tenantOf: TenantOf;
  keptAnswers: KeptAnswers;
};

/** A request without a key. Its fingerprint covers its question and its gateway key. */
type UnkeyedRequest = Pick<PaidRequest, 'walletId' | 'route' | 'fingerprint' | 'requestId'>;

/** The claim of one client to an attempt. Other clients may have had it before, and may get it when this one has gone. */
export type RetryClaim = {
  /** The key of the attempt. */
  readonly idempotencyKey: string;
  /** Records that the attempt has become a new request, with a key of its own. */
  moveTo(idempotencyKey: string): void;
  /** True if the client claimed the attempt of an earlier one, which had this key. */
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
 * Recognises the retry of a request without an Idempotency-Key: most clients send none, and repeat the request. An attempt is
 * abandoned when its client leaves without its answer, or is refused because the outcome is not known. The next request with the
 * same question under the same gateway key claims it (design, section 14).
 */
export type Retries = {
  /** Claims the latest abandoned attempt at this request, or a new one. */
  claim(request: UnkeyedRequest, onResponseEnd: OnResponseEnd): Promise<RetryClaim>;
  /** Loads the attempts that were abandoned when the last process ended. */
  recall(): void;
  abandonedCount(): number;
};

type UnkeyedAttempt = {
  walletId: string;
  route: string;
  key: string;
  /** The fingerprint of the request, in base64. */
  name: string;
  isAbandoned: boolean;
  isShared: boolean;
  /** An answer has begun, complete or not. */
  hasBegun: boolean;
  /** Returns the answer in the form that is stored, between its arrival and its delivery. */
  answer: () => Buffer | null;
  /** Resolves when an answer that could not be delivered is stored. */
  stored: Promise<unknown>;
};

/** Creates the record of attempts, with nothing abandoned. */
export function createRetries(app: RetryApp, countMax = ABANDONED_COUNT_MAX): Retries {
  const abandoned = createAbandoned(app, countMax);
  const books = inBooks(app);
  /** The number of clients that wait for an attempt, by its fingerprint. */
  const waiting = new Map<string, number>();

  function countClient(name: string, change: 1 | -1): void {
    const count = (waiting.get(name) ?? 0) + change;
    if (count) waiting.set(name, count);
    else waiting.delete(name);
  }

  async function claimAbandoned(name: string): Promise<UnkeyedAttempt | undefined> {
    for (;;) {
      const attempt = abandoned.latest(name);
      if (!attempt) return undefined;
      abandoned.remove(attempt);
      await attempt.stored;
      if (books.isWorth(attempt)) return attempt;
    }
  }

  return {
    async claim({ walletId, route, fingerprint, requestId }, onResponseEnd) {
      const name = fingerprint.toString('base64');
      // A client that closed its connection asks again on another; its new request may be read before the close is noticed.
      for (let turn = 0; turn < 2 && waiting.has(name) && !abandoned.latest(name); turn++) await nextTurn();
      const earlier = await claimAbandoned(name);
      if (earlier) earlier.isShared = true;
      const attempt = earlier ?? newAttempt({ walletId, route, name, key: requestId });
      countClient(name, 1);
      return claimOf(attempt, earlier !== undefined, { abandoned, books }, (ended) =>
        onResponseEnd((isDelivered) => {
          countClient(name, -1);
          ended(isDelivered);
        }),
      );
    },
    recall() {
      for (const { walletId, route, idempotencyKey: key, requestId, fingerprint, kind } of books.recalled()) {
        if (kind !== 'chat' || key !== requestId) continue; // Its caller sent a key.
        abandoned.add(newAttempt({ walletId, route, name: fingerprint.toString('base64'), key }));
      }
    },
    abandonedCount: abandoned.count,
  };
}

type Abandoned = ReturnType<typeof createAbandoned>;

/** Creates the list of abandoned attempts, empty. */
function createAbandoned({ tenantOf }: Pick<RetryApp, 'tenantOf'>, countMax: typeof ABANDONED_COUNT_MAX) {
  const byName = new Map<string, UnkeyedAttempt[]>();
  const kept = createKept<UnkeyedAttempt>(countMax, remove);
  const ownerOf = ({ walletId }: UnkeyedAttempt) => tenantOf(walletId).treeId;

  function remove(attempt: UnkeyedAttempt): void {
    if (!attempt.isAbandoned) return;
    attempt.isAbandoned = false;
    kept.drop(ownerOf(attempt), attempt);
    const others = (byName.get(attempt.name) as UnkeyedAttempt[]).filter((it) => it !== attempt);
    if (others.length) byName.set(attempt.name, others);
    else byName.delete(attempt.name);
  }

  return {
    add(attempt: UnkeyedAttempt): void {
      if (attempt.isAbandoned) return;
      attempt.isAbandoned = true;
      const list = byName.get(attempt.name);
      if (list) list.push(attempt);
      else byName.set(attempt.name, [attempt]);
      kept.keep(ownerOf(attempt), attempt);
    },
    remove,
    latest: (name: string) => byName.get(name)?.at(-1),
    count: kept.count,
  };
}

type InBooks = ReturnType<typeof inBooks>;

/** Reads and writes what the books have of attempts. */
function inBooks({ ledger, clock, inFlight, events, tenantOf, keptAnswers }: RetryApp) {
  const now = () => clock.now();
  const operationOf = ({ walletId, route, key }: UnkeyedAttempt) =>
    findOperationByKey(ledger.read, walletId, route, key);
  const hasAnswer = ({ id }: Operation) => answerBytes(ledger.read, id, now()) !== undefined;

  /** Returns whether the hold of an attempt may be taken over. A policy's charge pays for the first answer that begins. */
  function isOpen({ hasBegun }: UnkeyedAttempt, it: Operation): boolean {
    if (!isUnanswered(it) || (hasBegun && it.state === 'settled')) return false;
    return (it.settledAt ?? now()) > now() - UNDELIVERED_SECONDS;
  }

  return {
    operationOf,
    hasAnswer,
    isOpen,

    /** Returns whether the attempt has something for a retry: a call in flight, an answer, or a hold without one. */
    isWorth(attempt: UnkeyedAttempt): boolean {
      const running = inFlight.find(attempt.walletId, attempt.route, attempt.key);
      if (running) return !running.audience.isGivenUp();
      const operation = operationOf(attempt);
      if (!operation) return false;
      return isOpen(attempt, operation) || hasAnswer(operation);
    },

    /** Stores an answer that could not be delivered, unless its settlement has stored it. */
    store(attempt: UnkeyedAttempt, answer: Buffer): void {
      const operation = operationOf(attempt);
      if (operation?.outcome !== 'charged' || hasAnswer(operation)) return;
      if (!keptAnswers.tryKeep(tenantOf(attempt.walletId), answer.length, UNDELIVERED_SECONDS)) return;
      const until = now() + UNDELIVERED_SECONDS;
      attempt.stored = ledger
        .write(keepAnswer, { id: operation.id, body: answer, keptUntil: until })
        .catch((error) => events.failed('answer', error));
    },

    /** Drops the answer, which is given to one retry only. */
    forget(attempt: UnkeyedAttempt): void {
      const operation = operationOf(attempt);
      if (!operation || !hasAnswer(operation)) return;
      ledger.write(dropAnswer, { id: operation.id }).catch((error) => events.failed('answer', error));
    },

    /** Returns the operations without an answer that was delivered, and those whose stored answer is about to expire. */
    *recalled(): Iterable<Operation> {
      let cursor: UncertainCursor | undefined;
      do {
        const page = uncertainOperations(ledger.read, Number.MAX_SAFE_INTEGER, cursor);
        yield* page;
        cursor = page.at(-1);
      } while (cursor);
      // Answers to requests with keys are stored for days: those that are about to expire are included here.
      yield* operationsWithAnswers(ledger.read, now(), now() + UNDELIVERED_SECONDS);
    },
  };
}

/** Claims an attempt for a client. `onResponseEnd` calls back once the client's response is over. */
function claimOf(
  attempt: UnkeyedAttempt,
  takesOver: boolean,
  { abandoned, books }: { abandoned: Abandoned; books: InBooks },
  onResponseEnd: OnResponseEnd,
): RetryClaim {
  let isDelivered: boolean | undefined;
  let end: 'answered' | 'failed' | undefined;

  /** Runs when the attempt has been answered and the client's response is over. */
  function finish(): void {
    if (isDelivered && takesOver) books.forget(attempt);
    // A client that left earlier may have lost its claim to another, which needs the answer and handles the rest.
    if (isDelivered || !attempt.isAbandoned) return;
    const bytes = attempt.answer();
    attempt.answer = nothing;
    if (bytes) books.store(attempt, bytes);
  }

  /** Runs when the attempt has failed: it is abandoned if it still has something for a retry, though its client got a refusal. */
  function finishFailed(error: unknown): void {
    const operation = books.operationOf(attempt);
    const isLost = error instanceof Refusal && error.code === 'answer_lost'; // The next request is a new one.
    // A client that left while its answer waited has given up its claim already, perhaps to another.
    if (isDelivered === false && operation && books.hasAnswer(operation)) return;
    const isOpen = operation && (operation.state === 'reserved' || books.isOpen(attempt, operation));
    if (isOpen && !isLost) abandoned.add(attempt);
    else abandoned.remove(attempt);
  }

  onResponseEnd((delivered) => {
    isDelivered = delivered;
    if (!delivered && end !== 'failed') abandoned.add(attempt);
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
    keptSeconds: () => (attempt.isAbandoned ? UNDELIVERED_SECONDS : 0),
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
        finishFailed(error);
        throw error;
      }
    },
  };
}

const nothing = () => null;
const newAttempt = (it: Pick<UnkeyedAttempt, 'walletId' | 'route' | 'name' | 'key'>): UnkeyedAttempt => ({
  ...it,
  isAbandoned: false,
  isShared: false,
  hasBegun: false,
  answer: nothing,
  stored: Promise.resolve(),
});
