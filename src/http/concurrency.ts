import { Refusal } from '../base/refusal.ts';

/** Limits on concurrent calls. Each call needs a process in the resource and a connection to its backend. */
const COUNT_MAX = { resource: 16, wallet: 64 };
/** Limits on connections to ports. A page in a browser opens several and keeps some of them open. */
export const PORT_COUNT_MAX = { resource: 64, wallet: 128 };
const RETRY_SECONDS = 2;

export type Concurrency = {
  /**
   * Counts one more command, upload or other limited call. Call the returned function once, when the call has ended. Throws
   * `rate_limited` when the resource or its wallet is at its limit.
   */
  enter(resourceId: string, walletId: string): () => void;
};

/** Limits the concurrent calls on each resource and of each wallet: commands and uploads by default. */
export function createConcurrency(countMax = COUNT_MAX, plural = 'commands and uploads'): Concurrency {
  const counts = new Map<string, number>();
  function add(id: string, more: 1 | -1) {
    const count = (counts.get(id) ?? 0) + more;
    if (count) counts.set(id, count);
    else counts.delete(id);
  }
  return {
    enter(resourceId, walletId) {
      for (const [id, max, what] of [
        [resourceId, countMax.resource, 'on this resource'],
        [walletId, countMax.wallet, 'of this wallet'],
      ] as const)
        if ((counts.get(id) ?? 0) >= max)
          throw new Refusal(
            'rate_limited',
            `At most ${max} ${plural} ${what} may run at once. Retry when some have ended.`,
            { retryAfterSeconds: RETRY_SECONDS },
          );
      add(resourceId, 1);
      add(walletId, 1);
      return () => {
        add(resourceId, -1);
        add(walletId, -1);
      };
    },
  };
}
