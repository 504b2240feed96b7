import { createShares } from '../base/shares.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { type Audience, beginWait } from './audience.ts';
import { stopping } from './in-flight.ts';

/** Maximum number of waiting requests of one wallet, of a tree of wallets, and of all. */
const WAITING_COUNT_MAX = { wallet: 64, tree: 256, all: 1024 };
/** The most wallets remembered for their lack of money; beyond it the first of them are forgotten. */
const SHORT_COUNT_MAX = 10_000;
/** Number of wallets whose first request is checked in one turn of the event loop. */
const LOOKED_AT_COUNT = 32;

/** The reason why a wait is over without a hold: its time is up, its clients have gone, or the server is stopping. */
type GivenUp = 'late' | 'left' | 'stopped';
/** The end of a wait: with a hold, with another refusal, or without either. */
export type WaitEnd = 'held' | 'refused' | GivenUp;

/** The turn of one request in the line of its wallet. */
type FundsTurn = {
  /**
   * Resolves with `first` once the request is the first of its line and `isWorth` returns true. `isWorth` is called when
   * the request becomes the first, and after each possible change of its wallet.
   */
  come(isWorth: () => boolean, audience: Audience): Promise<'first' | GivenUp>;
  /** Leaves the line, so that the next request becomes the first. */
  leave(end: WaitEnd): void;
};

/**
 * The lines of requests that wait for money held by requests in flight only: one for each wallet, first come first served
 * (docs/decisions/0077).
 */
export type FundsQueue = {
  /** Returns whether requests wait when waiting can help. */
  isOn(): boolean;
  /** Returns whether requests wait in this wallet. */
  hasLine(walletId: string): boolean;
  /**
   * Enters the line of a wallet. Returns undefined if too many requests wait: of it, of its tree, or of all. Throws
   * `read_only` when the server is stopping.
   */
  join(walletId: string): FundsTurn | undefined;
  /** Checks the line of this wallet again, as a hold has ended or begun. */
  wake(walletId: string): void;
  /**
   * Takes the number of writes that may have changed any wallet: if it differs from the last one, all lines are checked
   * again.
   */
  changed(count: number): void;
  /** Returns whether the last request of a wallet found less money than it asked for: a guess, so that the next one looks first. */
  isShort(walletId: string): boolean;
  setShort(walletId: string, isShort: boolean): void;
  /** Ends all waits. */
  stop(): void;
  count(): number;
};

type FundsWaiter = {
  /** True if something may have changed since the last check. */
  isStale: boolean;
  /** Undefined while the request tries to place its hold. */
  waiting: { isWorth: () => boolean; end: (how: 'first' | GivenUp) => void } | undefined;
};

/**
 * Creates the lines, all empty. `seconds` returns the time for which a request may wait, 0 for not at all; `ended` is
 * called for each wait.
 */
export function createFundsQueue(
  seconds: () => number,
  tenantOf: (walletId: string) => Tenant,
  ended: (end: WaitEnd, seconds: number) => void,
): FundsQueue {
  const lines = new Map<string, FundsWaiter[]>();
  const shares = createShares({ each: WAITING_COUNT_MAX.tree, all: WAITING_COUNT_MAX.all });
  let count = 0;
  let seen: number | undefined;
  let isStopped = false;
  const lookAtAll = inTurns(look);
  const short = new Set<string>();

  function look(walletId: string): void {
    const first = lines.get(walletId)?.[0];
    if (!first) return;
    first.isStale = true;
    consider(first);
  }

  return {
    isOn: () => seconds() > 0,
    hasLine: (walletId) => lines.has(walletId),
    count: () => count,
    wake: look,

    join(walletId) {
      if (isStopped) throw stopping();
      const line = lines.get(walletId) ?? [];
      const { treeId } = tenantOf(walletId);
      if (line.length >= WAITING_COUNT_MAX.wallet || !shares.tryTake(treeId, 1)) return undefined;
      const began = performance.now();
      const limit = AbortSignal.timeout(seconds() * 1000);
      const waiter: FundsWaiter = { isStale: true, waiting: undefined };
      line.push(waiter);
      lines.set(walletId, line);
      count++;

      return {
        come(isWorth, audience) {
          if (isStopped) return Promise.resolve('stopped');
          if (limit.aborted) return Promise.resolve('late');
          const ended = wait(waiter, isWorth, audience, limit);
          if (line[0] === waiter) consider(waiter);
          return ended;
        },
        leave(end) {
          line.splice(line.indexOf(waiter), 1);
          if (!line.length) lines.delete(walletId);
          shares.release(treeId, 1);
          count--;
          ended(end, (performance.now() - began) / 1000);
          look(walletId);
        },
      };
    },

    changed(now) {
      if (now === seen) return;
      seen = now;
      lookAtAll(lines.keys());
    },

    isShort: (walletId) => short.has(walletId),
    setShort(walletId, isShort) {
      if (isShort) short.add(walletId);
      else short.delete(walletId);
      if (short.size > SHORT_COUNT_MAX) short.delete(short.values().next().value as string);
    },

    stop() {
      isStopped = true;
      for (const line of lines.values()) for (const it of line) it.waiting?.end('stopped');
    },
  };
}

/** Spreads the checks of many wallets over turns of the event loop. Those that are waiting for one are not added again. */
function inTurns(look: (walletId: string) => void): (walletIds: Iterable<string>) => void {
  /** The wallets still to be checked, the longest waiting first. */
  const unseen = new Set<string>();
  function lookAtSome(): void {
    for (const walletId of [...unseen].slice(0, LOOKED_AT_COUNT)) {
      unseen.delete(walletId);
      look(walletId);
    }
    if (unseen.size) setImmediate(lookAtSome);
  }
  return (walletIds) => {
    const isIdle = unseen.size === 0;
    for (const it of walletIds) unseen.add(it);
    if (isIdle && unseen.size) setImmediate(lookAtSome);
  };
}

/** Begins the wait of a request; resolves with how it ended. */
function wait(
  waiter: FundsWaiter,
  isWorth: () => boolean,
  audience: Audience,
  limit: AbortSignal,
): Promise<'first' | GivenUp> {
  const { ended, end } = beginWait<'first' | 'stopped'>(
    audience,
    limit,
    () => 0,
    () => {
      waiter.waiting = undefined;
    },
  );
  waiter.waiting = { isWorth, end };
  return ended;
}

/** Ends the wait of the first request of a line if that is worth it now. */
function consider(it: FundsWaiter): void {
  if (!it.waiting || !it.isStale) return;
  it.isStale = false;
  let isWorth = true;
  try {
    isWorth = it.waiting.isWorth();
  } catch {} // The error concerns the waiting request, not the code that woke it: the request gets it when it tries.
  if (isWorth) it.waiting.end('first');
}
