import { deadline } from '../net/deadline.ts';
import { Refusal } from '../refusal.ts';

const BUSY_RETRY_SECONDS = 1;
/** No wallet alone can take what all share. */
const WALLET_SHARE = 1 / 4;

type Key = { walletId: string; route: string; idempotencyKey: string; fingerprint: Buffer };

/** Tells which operation an attempt drives. */
export type RegisterId = (operationId: string) => void;
/** Answers whoever waits, while the attempt itself goes on. */
export type RejectWaiters = (refusal: Refusal) => void;
export type RespondEarly<A> = (answer: A) => void;

/** One attempt that this process is driving. */
export type Attempt = Pick<Key, 'walletId' | 'fingerprint'> & {
  /** The first attempt's answer, its refusal included; after `seconds` the refusal that `late` makes. */
  join(seconds: number, late: () => Refusal): Promise<unknown>;
};

/**
 * The attempts that this process is driving: by key, so that a second request joins the first, and by operation, because
 * what is being driven is never resolved by anybody else (design, section 6).
 */
export type InFlight = {
  find(walletId: string, route: string, idempotencyKey: string): Attempt | undefined;
  /**
   * Registers the attempt before its first await, and forgets it when it has ended. Refuses with `rate_limited` where as
   * many run as may: clients that went away leave theirs behind.
   */
  drive<A>(
    key: Key,
    run: (started: RegisterId, giveUp: RejectWaiters, answerNow: RespondEarly<A>) => Promise<A>,
  ): Promise<A>;
  /** Runs what is no attempt and is waited for all the same when the server stops; at the cut-off it is refused. */
  track<A>(run: () => Promise<A>, refusal: () => Refusal): Promise<A>;
  /** The value, or undefined after `seconds` or at the cut-off; what is waited for goes on. */
  waitFor<A>(promise: Promise<A>, seconds: number): Promise<A | undefined>;
  drives(operationId: string): boolean;
  /** Resolves when no attempt of this wallet runs any more, after `seconds`, or at the cut-off. */
  whenWalletIdle(walletId: string, seconds: number): Promise<void>;
  /** Answers everybody who waits with `refusal`; the attempts themselves go on. Nothing new is driven afterwards. */
  cutOff(refusal: () => Refusal): void;
  /** Resolves when nothing runs; after the cut-off, when no attempt does. */
  drained(): Promise<void>;
  count(): number;
  isCutOff(): boolean;
};

/** `most` attempts run at a time, a quarter of them of one wallet. */
export function createInFlight(most = Number.POSITIVE_INFINITY): InFlight {
  type Entry = Attempt & { ended: Promise<void>; cut: (refusal: Refusal) => void };
  const byKey = new Map<string, Entry>();
  const countOf = new Map<string, number>();
  const operationIds = new Set<string>();
  const attended = new Map<Promise<void>, () => void>();
  const cutOff = new AbortController();
  const stopping = () =>
    new Refusal('read_only', 'The server is stopping. Retry in a moment.', { retryAfterSeconds: 5 });
  function refuseBusy(walletId: string) {
    const own = countOf.get(walletId) ?? 0;
    if (byKey.size < most && own < most * WALLET_SHARE) return;
    const whose = byKey.size < most ? ' of this wallet' : '';
    throw new Refusal('rate_limited', `As many requests${whose} are in flight as may be. Nothing was charged.`, {
      retryAfterSeconds: BUSY_RETRY_SECONDS,
    });
  }
  async function waitFor<A>(promise: Promise<A>, seconds: number): Promise<A | undefined> {
    promise.catch(() => {}); // Whoever waits hears of it; afterwards it is nobody's error.
    return deadline(promise, seconds * 1000, () => undefined, cutOff.signal);
  }
  const nameOf = (walletId: string, route: string, key: string) => `${walletId}\n${route}\n${key}`;

  return {
    find: (walletId, route, key) => byKey.get(nameOf(walletId, route, key)),
    drives: (operationId) => operationIds.has(operationId),
    count: () => byKey.size,
    isCutOff: () => cutOff.signal.aborted,

    async drive<A>(
      key: Key,
      run: (started: RegisterId, giveUp: RejectWaiters, answerNow: RespondEarly<A>) => Promise<A>,
    ) {
      if (cutOff.signal.aborted) throw stopping();
      refuseBusy(key.walletId);
      countOf.set(key.walletId, (countOf.get(key.walletId) ?? 0) + 1);
      const name = nameOf(key.walletId, key.route, key.idempotencyKey);
      const answer = Promise.withResolvers<A>();
      const end = Promise.withResolvers<void>();
      answer.promise.catch(() => {}); // Whoever asked hears of it; without anybody left it is nobody's error.
      byKey.set(name, {
        walletId: key.walletId,
        fingerprint: key.fingerprint,
        ended: end.promise,
        cut: answer.reject,
        join: (seconds, late) =>
          deadline(answer.promise, seconds * 1000, () => {
            throw late();
          }),
      });
      let operationId: string | undefined;
      const started = (id: string) => {
        operationId = id;
        operationIds.add(id);
      };
      run(started, answer.reject, answer.resolve)
        .then(answer.resolve, answer.reject)
        .finally(() => {
          byKey.delete(name);
          const left = (countOf.get(key.walletId) as number) - 1;
          if (left) countOf.set(key.walletId, left);
          else countOf.delete(key.walletId);
          if (operationId) operationIds.delete(operationId);
          end.resolve();
        });
      return answer.promise;
    },

    async track(run, refusal) {
      if (cutOff.signal.aborted) throw stopping();
      const cut = Promise.withResolvers<never>();
      const running = run();
      const ended = running.then(
        () => {},
        () => {},
      );
      attended.set(ended, () => cut.reject(refusal()));
      void ended.then(() => attended.delete(ended));
      return Promise.race([running, cut.promise]);
    },

    waitFor,
    async whenWalletIdle(walletId, seconds) {
      const ends = [...byKey.values()].filter((it) => it.walletId === walletId).map((it) => it.ended);
      await waitFor(Promise.all(ends), seconds);
    },

    cutOff(refusal) {
      cutOff.abort();
      for (const entry of byKey.values()) entry.cut(refusal());
      for (const cut of attended.values()) cut();
      attended.clear();
    },

    async drained() {
      // Some may have begun meanwhile.
      while (byKey.size + attended.size)
        await Promise.all([...[...byKey.values()].map((it) => it.ended), ...attended.keys()]);
    },
  };
}
