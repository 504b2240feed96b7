/** Runs what concerns one thing one after the other: a resource's extend, stop and destroy never overlap (design, section 7). */
export type Serially = <T>(id: string, run: () => Promise<T>) => Promise<T>;

export function createSerially(): Serially {
  const last = new Map<string, Promise<unknown>>();
  return (id, run) => {
    const mine = (last.get(id) ?? Promise.resolve()).then(run, run);
    const ended = mine.catch(() => {});
    last.set(id, ended);
    void ended.then(() => {
      if (last.get(id) === ended) last.delete(id);
    });
    return mine;
  };
}
