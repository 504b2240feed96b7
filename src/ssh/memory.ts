/** Counts what is kept in memory, in the budget of a wallet: what the SSH gateway uses of a `Share` of the door. */
export type Memory = {
  /** So many bytes more. False where there is no room for them. */
  tryTake(bytes: number): boolean;
  /** So many of these bytes are not kept any more. */
  release(bytes: number): void;
  /** Nothing is kept any more. */
  close(): void;
};
