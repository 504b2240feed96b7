import type { Tenant } from '../ledger/tenant.ts';
import { createShares } from '../shares.ts';
import type { Audience } from './audience.ts';
import { stopping } from './in-flight.ts';

/** Requests that may wait in one wallet, in a tree of wallets, and in all. */
const WAITING_COUNT_MAX = { wallet: 64, tree: 256, all: 1024 };
/** Wallets whose first request is looked at in one turn of the event loop. */
const LOOKED_AT_COUNT = 32;

/** Why a request waits no longer: its time is over, nobody of its audience is there any more, or the server stops. */
type Over = 'late' | 'left' | 'stopped';
/** How a wait ended: with a hold, with another refusal, or without either. */
export type WaitEnd = 'held' | 'refused' | Over;

/** The place of one request in the line of its wallet. */
export type Turn = {
  /**
   * Resolves with `first` once the request is the first of its line and `isWorth` says that trying is worth it. That is asked when the
   * request has become the first, and whenever something may have changed in its wallet since.
   */
  come(isWorth: () => boolean, audience: Audience): Promise<'first' | Over>;
  /** Leaves the line, for the next to be the first. */
  leave(end: WaitEnd): void;
};

/**
 * The lines of requests that wait for money which only requests in flight keep from them: one for each wallet, first come first
 * served (docs/decisions/0077).
 */
export type FundsQueue = {
  /** Returns whether requests that can wait do so. */
  isOn(): boolean;
  /** Returns whether requests wait in this wallet. */
  hasLine(walletId: string): boolean;
  /** Enters the line of a wallet. Returns undefined where too many wait, of it, of its tree, or of all. Throws `read_only` when the server stops. */
  join(walletId: string): Turn | undefined;
  /** Says that a hold of this wallet has ended or begun. */
  wake(walletId: string): void;
  /** Says how many writes there were that may have changed any wallet: more than before let all lines be looked at. */
  changed(count: number): void;
  /** Ends all waits. */
  stop(): void;
  count(): number;
};

type Waiter = {
  /** Something may have changed since it was last looked at. */
  isStale: boolean;
  /** Undefined while it tries. */
  waiting: { isWorth: () => boolean; end: (how: 'first' | Over) => void } | undefined;
};

/** Creates the lines, with nobody in them. `seconds` returns how long a request may wait, 0 for not at all; `ended` is told of each wait. */
export function createFundsQueue(
  seconds: () => number,
  tenantOf: (walletId: string) => Tenant,
  ended: (end: WaitEnd, seconds: number) => void,
): FundsQueue {
  const lines = new Map<string, Waiter[]>();
  const shares = createShares({ each: WAITING_COUNT_MAX.tree, all: WAITING_COUNT_MAX.all });
  let count = 0;
  let seen: number | undefined;
  let isStopped = false;
  /** The wallets that are still to be looked at, the longest first. */
  const unseen = new Set<string>();

  function look(walletId: string): void {
    const first = lines.get(walletId)?.[0];
    if (!first) return;
    first.isStale = true;
    consider(first);
  }

  function consider(it: Waiter): void {
    if (!it.waiting || !it.isStale) return;
    it.isStale = false;
    let isWorth = true;
    try {
      isWorth = it.waiting.isWorth();
    } catch {} // Not the fault of whoever wakes it: it tries, and finds out.
    if (isWorth) it.waiting.end('first');
  }

  function lookAtSome(): void {
    for (const walletId of [...unseen].slice(0, LOOKED_AT_COUNT)) {
      unseen.delete(walletId);
      look(walletId);
    }
    if (unseen.size) setImmediate(lookAtSome);
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
      const waiter: Waiter = { isStale: true, waiting: undefined };
      line.push(waiter);
      lines.set(walletId, line);
      count++;

      return {
        come(isWorth, audience) {
          if (isStopped) return Promise.resolve('stopped');
          if (limit.aborted) return Promise.resolve('late');
          const { promise, resolve } = Promise.withResolvers<'first' | Over>();
          const late = () => end('late');
          const stopWatching = audience.watch(
            () => 0,
            () => end('left'),
          );
          limit.addEventListener('abort', late);
          const end = (how: 'first' | Over) => {
            waiter.waiting = undefined;
            limit.removeEventListener('abort', late);
            stopWatching();
            resolve(how);
          };
          waiter.waiting = { isWorth, end };
          if (line[0] === waiter) consider(waiter);
          return promise;
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
      if (!unseen.size && lines.size) setImmediate(lookAtSome);
      for (const walletId of lines.keys()) unseen.add(walletId);
    },

    stop() {
      isStopped = true;
      for (const line of lines.values()) for (const it of line) it.waiting?.end('stopped');
    },
  };
}
