/** Shares of a common capacity, in any unit. */
export type Shares = {
  /** Takes an amount for an owner, if there is room. Returns whether there was. */
  tryTake(owner: string, amount: number): boolean;
  /** Takes an amount, whether or not there is room. */
  add(owner: string, amount: number): void;
  /** Gives back an amount, at most what the owner has. */
  release(owner: string, amount: number): void;
};

/**
 * Creates shares, with nothing taken. An owner may have `each`. Beyond `all` together an owner is still admitted up to an even
 * share: a few cannot shut out the rest, and the sum grows at most logarithmically with their number.
 */
export function createShares(max: { each: number; all: number }): Shares {
  const taken = new Map<string, number>();
  let all = 0;
  const of = (owner: string) => taken.get(owner) ?? 0;
  function add(owner: string, amount: number) {
    taken.set(owner, of(owner) + amount);
    all += amount;
  }
  return {
    add,
    tryTake(owner, amount) {
      const own = of(owner) + amount;
      const owners = taken.size + (taken.has(owner) ? 0 : 1);
      if (own > max.each || (all + amount > max.all && own > max.all / owners)) return false;
      add(owner, amount);
      return true;
    },
    release(owner, amount) {
      const own = of(owner);
      const bytes = Math.min(amount, own);
      if (own > bytes) taken.set(owner, own - bytes);
      else taken.delete(owner);
      all -= bytes;
    },
  };
}

/** Things of many owners that are kept for a while. */
type KeptShare<T> = {
  /** Keeps one more. Where there are too many, drops the oldest of its owner, or of the owner with the most. */
  keep(owner: string, it: T): void;
  /** Removes one. */
  drop(owner: string, it: T): void;
  count(): number;
};

/** Creates a store for at most `each` things of one owner and `all` in total. Calls `dropped` with each that had to make room. */
export function createKept<T>(max: { each: number; all: number }, dropped: (it: T) => void): KeptShare<T> {
  const byOwner = new Map<string, Set<T>>();
  let all = 0;

  function drop(owner: string, it: T): void {
    const own = byOwner.get(owner);
    if (!own?.delete(it)) return;
    all--;
    if (own.size === 0) byOwner.delete(owner);
  }
  function ownerWithMost(): string {
    let [most, size] = ['', 0];
    for (const [owner, own] of byOwner) if (own.size > size) [most, size] = [owner, own.size];
    return most;
  }
  function makeRoom(owner: string): void {
    const [oldest] = byOwner.get(owner) as Set<T>;
    drop(owner, oldest as T);
    dropped(oldest as T);
  }

  return {
    keep(owner, it) {
      const own = byOwner.get(owner) ?? new Set();
      if (own.has(it)) return;
      byOwner.set(owner, own.add(it));
      all++;
      if (own.size > max.each) makeRoom(owner);
      else if (all > max.all) makeRoom(ownerWithMost());
    },
    drop,
    count: () => all,
  };
}
