import type { Tenant } from '../ledger/tenant.ts';

/** Items of many tenants that wait for a worker that takes one at a time. */
type Turns<T> = {
  add(tenant: Tenant, it: T): void;
  /** Removes and returns the next one. */
  next(): T | undefined;
};

/**
 * Creates a queue in which accounts take turns, and within the turn of an account its trees of wallets. Items of one tenant
 * keep their order.
 */
export function createTurns<T>(): Turns<T> {
  /** The items by account and tree, each in the order of their turns. */
  const accounts = new Map<string, Map<string, T[]>>();
  return {
    add({ accountId, treeId }, it) {
      const trees = accounts.get(accountId) ?? new Map<string, T[]>();
      accounts.set(accountId, trees);
      trees.set(treeId, [...(trees.get(treeId) ?? []), it]);
    },
    next() {
      for (const [accountId, trees] of accounts)
        for (const [treeId, [next, ...others]] of trees) {
          trees.delete(treeId);
          if (others.length) trees.set(treeId, others); // Behind all that are waiting now.
          accounts.delete(accountId);
          if (trees.size) accounts.set(accountId, trees);
          return next;
        }
      return undefined;
    },
  };
}
