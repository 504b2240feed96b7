import { Refusal } from '../refusal.ts';

/** Commands and uploads that may run at once. Each needs a process in the resource and a connection to its backend. */
const COUNT_MAX = { resource: 16, wallet: 64 };
const RETRY_SECONDS = 2;

export type Concurrency = {
  /**
   * Counts one more command or upload. Call the returned function once, when it has ended. Throws `rate_limited` when the
   * resource or its wallet is at its limit.
   */
  enter(resourceId: string, walletId: string): () => void;
};

/** Limits the concurrent commands and uploads of each resource and each wallet. */
export function createConcurrency(): Concurrency {
  const counts = new Map<string, number>();
  function add(id: string, more: 1 | -1) {
    const count = (counts.get(id) ?? 0) + more;
    if (count) counts.set(id, count);
    else counts.delete(id);
  }
  return {
    enter(resourceId, walletId) {
      for (const [id, max, what] of [
        [resourceId, COUNT_MAX.resource, 'on this resource'],
        [walletId, COUNT_MAX.wallet, 'of this wallet'],
      ] as const)
        if ((counts.get(id) ?? 0) >= max)
          throw new Refusal(
            'rate_limited',
            `At most ${max} commands and uploads ${what} may run at once. Retry when some have ended.`,
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
