/** Counts memory against a wallet's quota: the part of `Allowance` (http/memory-quota.ts) that the SSH gateway uses. */
export type MemoryShare = {
  /** Adds bytes, or returns false when they exceed the quota. */
  tryTake(bytes: number): boolean;
  /** Subtracts bytes that are no longer in memory. */
  release(bytes: number): void;
  /** Releases all bytes. */
  close(): void;
};
