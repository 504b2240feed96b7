import { Refusal } from '../base/refusal.ts';
import { createShares } from '../base/shares.ts';
import { deadline } from '../net/deadline.ts';
import { type Audience, createAudience, type OnResponseEnd } from './audience.ts';

const BUSY_RETRY_SECONDS = 1;
/** Maximum share of the in-flight requests for one tree of wallets, and the part that is handed out freely. */
const TREE_SHARE = 1 / 4;
const FREE_SHARE = 1 / 2;

type AttemptKey = { walletId: string; route: string; idempotencyKey: string; fingerprint: Buffer };
/** The key of an attempt, and the client for which it runs. */
type Driving = AttemptKey & { onResponseEnd?: OnResponseEnd | undefined };

/** Registers the operation that an attempt drives, in place of an earlier one. Returns a function that removes it. */
export type RegisterId = (operationId: string) => () => void;
/** Rejects all waiting callers, while the attempt itself continues. */
export type RejectWaiters = (refusal: Refusal) => void;
export type RespondEarly<A> = (answer: A) => void;
/** Runs an attempt for the clients that wait for it. */
type RunAttempt<A> = (
  started: RegisterId,
  reject: RejectWaiters,
  answer: RespondEarly<A>,
  audience: Audience,
) => Promise<A>;

/** An attempt that this process is driving. */
export type Attempt = Pick<AttemptKey, 'walletId' | 'fingerprint'> & {
  /** Resolves or rejects as the first attempt does; after `seconds`, rejects with the refusal from `late`. */
  join(seconds: number, late: () => Refusal): Promise<unknown>;
  /** The clients that wait for it. */
  audience: Audience;
};

/**
 * The attempts that this process is driving: by key, so that a second request joins the first, and by operation, so
 * that nothing else resolves an operation that is being driven (design, section 6).
 */
export type InFlight = {
  find(walletId: string, route: string, idempotencyKey: string): Attempt | undefined;
  /**
   * Registers the attempt before its first await and removes it when it has ended. An attempt continues when its client
   * disconnects, unless it watches its audience. Throws `rate_limited` at the limit of attempts in flight, in all or of this wallet
   * and those of its tree, and `read_only` after the cut-off.
   */
  drive<A>(key: Driving, run: RunAttempt<A>): Promise<A>;
  /**
   * Runs something that is not an attempt but that shutdown waits for; at the cut-off it rejects with `refusal`. Throws
   * `read_only` after the cut-off.
   */
  track<A>(run: () => Promise<A>, refusal: () => Refusal): Promise<A>;
  /** Resolves with the value, or with undefined after `seconds` or at the cut-off. The promise itself continues. */
  waitFor<A>(promise: Promise<A>, seconds: number): Promise<A | undefined>;
  /** Returns whether this process is driving the operation. */
  drives(operationId: string): boolean;
  /** Resolves when no attempt of this wallet is running, after `seconds`, or at the cut-off. */
  whenWalletIdle(walletId: string, seconds: number): Promise<void>;
  /**
   * Rejects all waiting callers with `refusal`; the attempts themselves continue. Afterwards nothing new is accepted.
   */
  cutOff(refusal: () => Refusal): void;
  /** Resolves when all attempts that are running now have ended. */
  whenTheseEnd(): Promise<void>;
  /** Resolves when nothing is running; after the cut-off, when no attempt is. */
  drained(): Promise<void>;
  count(): number;
  isCutOff(): boolean;
};

/** Returns the refusal of a request that a stopping server does not begin. */
export const stopping = () =>
  new Refusal('read_only', 'The server is stopping. Retry in a moment.', { retryAfterSeconds: 5 });

/**
 * Creates the registry of attempts. At most `max` run at a time, and at most a quarter of them for one owner, the wallets of a
 * tree; beyond half of them each owner has an even share.
 */
export function createInFlight(
  max = Number.POSITIVE_INFINITY,
  ownerOf: (walletId: string) => string = (walletId) => walletId,
): InFlight {
  const byKey = new Map<string, RunningAttempt>();
  const shares = createShares({ each: Math.max(1, max * TREE_SHARE), all: max * FREE_SHARE });
  const operationIds = new Set<string>();
  const tracked = createTracked();
  const cutOff = new AbortController();
  function takeShare(owner: string) {
    if (byKey.size < max && shares.tryTake(owner, 1)) return;
    throw tooMany(byKey.size < max ? ' of this wallet, and of those above and below it,' : '');
  }
  async function waitFor<A>(promise: Promise<A>, seconds: number): Promise<A | undefined> {
    promise.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
    return deadline(promise, seconds * 1000, () => undefined, cutOff.signal);
  }

  return {
    find: (walletId, route, key) => byKey.get(keyOf(walletId, route, key)),
    drives: (operationId) => operationIds.has(operationId),
    count: () => byKey.size,
    isCutOff: () => cutOff.signal.aborted,

    async drive<A>(key: Driving, run: RunAttempt<A>) {
      if (cutOff.signal.aborted) throw stopping();
      const owner = ownerOf(key.walletId);
      takeShare(owner);
      const name = keyOf(key.walletId, key.route, key.idempotencyKey);
      const answer = Promise.withResolvers<A>();
      const end = Promise.withResolvers<void>();
      const entry = entryOf(key, answer, end.promise);
      byKey.set(name, entry);
      let operationId: string | undefined;
      const started = (id: string) => {
        if (operationId) operationIds.delete(operationId); // It was refused, and the request is tried again.
        operationId = id;
        operationIds.add(id);
        return () => void operationIds.delete(id);
      };
      run(started, answer.reject, answer.resolve, entry.audience)
        .then(answer.resolve, answer.reject)
        .finally(() => {
          byKey.delete(name);
          entry.audience.close();
          shares.release(owner, 1);
          if (operationId) operationIds.delete(operationId);
          end.resolve();
        });
      return answer.promise;
    },

    async track(run, refusal) {
      if (cutOff.signal.aborted) throw stopping();
      return tracked.track(run(), refusal);
    },

    waitFor,
    async whenWalletIdle(walletId, seconds) {
      const ends = [...byKey.values()].filter((it) => it.walletId === walletId).map((it) => it.ended);
      await waitFor(Promise.all(ends), seconds);
    },

    cutOff(refusal) {
      cutOff.abort();
      for (const entry of byKey.values()) entry.cut(refusal());
      tracked.cutOff();
    },

    async whenTheseEnd() {
      await Promise.all([...byKey.values()].map((it) => it.ended));
    },

    async drained() {
      // More may have started in the meantime.
      while (byKey.size + tracked.ends().length)
        await Promise.all([...[...byKey.values()].map((it) => it.ended), ...tracked.ends()]);
    },
  };
}

const keyOf = (walletId: string, route: string, key: string) => `${walletId}\n${route}\n${key}`;

type RunningAttempt = Attempt & { ended: Promise<void>; cut: (refusal: Refusal) => void };

/** Creates the entry of an attempt, with the client for which it runs. */
function entryOf<A>(
  { walletId, fingerprint, onResponseEnd }: Driving,
  answer: PromiseWithResolvers<A>,
  ended: Promise<void>,
): RunningAttempt {
  const audience = createAudience();
  audience.admit(onResponseEnd);
  answer.promise.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one if there are none.
  return {
    walletId,
    fingerprint,
    ended,
    cut: answer.reject,
    audience,
    join: (seconds, late) =>
      deadline(answer.promise, seconds * 1000, () => {
        throw late();
      }),
  };
}

const tooMany = (whose: string) =>
  new Refusal('rate_limited', `Too many requests${whose} are in flight. Nothing was charged.`, {
    retryAfterSeconds: BUSY_RETRY_SECONDS,
  });

/** Creates the registry of work other than attempts, with nothing running. */
function createTracked() {
  const running = new Map<Promise<void>, () => void>();
  return {
    /** Registers work until it has ended. At the cut-off it rejects with `refusal`, while the work itself continues. */
    track<A>(work: Promise<A>, refusal: () => Refusal): Promise<A> {
      const cut = Promise.withResolvers<never>();
      const ended = work.then(
        () => {},
        () => {},
      );
      running.set(ended, () => cut.reject(refusal()));
      void ended.then(() => running.delete(ended));
      return Promise.race([work, cut.promise]);
    },
    /** Rejects for all callers and forgets the work. */
    cutOff(): void {
      for (const cut of running.values()) cut();
      running.clear();
    },
    /** Returns the ends of what is running, each a promise that does not reject. */
    ends: () => [...running.keys()],
  };
}
