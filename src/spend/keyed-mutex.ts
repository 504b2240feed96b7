/** Runs what concerns one thing one after the other: a resource's extend, stop and destroy never overlap (design, section 7). */
export type KeyedMutex = {
  <T>(id: string, run: () => Promise<T>): Promise<T>;
  /**
   * The same for what many ask for alike: while one waits for its turn, whoever asks gets that one's answer. So what hangs
   * gathers no queue behind it. All that share an id have to ask for the same.
   */
  shared<T>(id: string, run: () => Promise<T>): Promise<T>;
  /** Whether anything runs or waits. */
  isBusy(id: string): boolean;
};

export function createKeyedMutex(): KeyedMutex {
  const last = new Map<string, Promise<unknown>>();
  const waiting = new Map<string, Promise<unknown>>();

  function serially<T>(id: string, run: () => Promise<T>): Promise<T> {
    const mine = (last.get(id) ?? Promise.resolve()).then(run, run);
    const ended = mine.catch(() => {});
    last.set(id, ended);
    void ended.then(() => {
      if (last.get(id) === ended) last.delete(id);
    });
    return mine;
  }
  return Object.assign(serially, {
    isBusy: (id: string) => last.has(id),
    shared<T>(id: string, run: () => Promise<T>): Promise<T> {
      const before = waiting.get(id) as Promise<T> | undefined;
      if (before) return before;
      const mine = serially(id, () => {
        waiting.delete(id);
        return run();
      });
      waiting.set(id, mine);
      return mine;
    },
  });
}
