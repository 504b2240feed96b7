/** Serializes work by key: extend, stop and destroy of one resource never overlap (design, section 7). */
export type KeyedMutex = {
  <T>(id: string, run: () => Promise<T>): Promise<T>;
  /**
   * Coalesces equal work: while one call waits for its turn, later calls share its result, so that no queue forms behind
   * work that hangs. All calls with the same id must be for the same work.
   */
  shared<T>(id: string, run: () => Promise<T>): Promise<T>;
  /** Returns whether anything is running or waiting for this id. */
  isBusy(id: string): boolean;
};

/** Creates a mutex with nothing running. */
export function createKeyedMutex(): KeyedMutex {
  const last = new Map<string, Promise<unknown>>();
  const waiting = new Map<string, Promise<unknown>>();

  function serialize<T>(id: string, run: () => Promise<T>): Promise<T> {
    const mine = (last.get(id) ?? Promise.resolve()).then(run, run);
    const ended = mine.catch(() => {});
    last.set(id, ended);
    void ended.then(() => {
      if (last.get(id) === ended) last.delete(id);
    });
    return mine;
  }
  return Object.assign(serialize, {
    isBusy: (id: string) => last.has(id),
    shared<T>(id: string, run: () => Promise<T>): Promise<T> {
      const before = waiting.get(id) as Promise<T> | undefined;
      if (before) return before;
      const mine = serialize(id, () => {
        waiting.delete(id);
        return run();
      });
      waiting.set(id, mine);
      return mine;
    },
  });
}
