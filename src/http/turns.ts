import type { Tenant } from '../ledger/tenant.ts';

/** Things of many tenants that wait for what does one at a time. */
export type Turns<T> = {
  add(tenant: Tenant, it: T): void;
  /** Takes the next one out. */
  next(): T | undefined;
};

/**
 * Creates a line in which accounts take turns, and in the turn of an account its trees of wallets do. What one tenant adds stays
 * in its order.
 */
export function createTurns<T>(): Turns<T> {
  /** By account and tree, each in the order of their turns. */
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
          if (others.length) trees.set(treeId, others); // After all that wait by now.
          accounts.delete(accountId);
          if (trees.size) accounts.set(accountId, trees);
          return next;
        }
      return undefined;
    },
  };
}
