/** A tree of wallets may take one part in so many, for its stored answers, of what would be free on the disk without them. */
const DISK_PART = 8;
/** Bytes that a tree of wallets may have stored in any case, however full the disk is. */
const BYTES_MIN = 16 * 1024 * 1024;
/** Answers are counted by the time at which they are deleted, in steps of so many seconds. */
const STEP_SECONDS = 600;
/** Beyond so many owners those whose answers have all been deleted are forgotten. */
const OWNER_COUNT_MAX = 1000;

/** Counts what is stored of answers for replays, since the start. */
export type KeptAnswers = {
  /** Counts an answer that is to be stored for so long. Returns false where it is not to be stored: its owner has too much. */
  tryKeep(owner: string, bytes: number, seconds: number): boolean;
};

/**
 * Creates the count, with nothing stored. An answer of many MiB may cost its wallet a millionth of a dollar, and all of them are on one
 * disk: without a bound one tree of wallets would fill it, and nobody could hold anything more (docs/decisions/0017). `now` returns
 * Unix seconds, `freeBytes` what is free on the disk.
 */
export function createKeptAnswers(now: () => number, freeBytes: () => number): KeptAnswers {
  /** The bytes of each owner, by the step in which they are deleted. */
  const owners = new Map<string, Map<number, number>>();

  /** Returns what an owner has, and forgets what has been deleted. */
  function bytesOf(steps: Map<number, number>): number {
    const step = Math.floor(now() / STEP_SECONDS);
    let all = 0;
    for (const [until, bytes] of steps) {
      if (until < step) steps.delete(until);
      else all += bytes;
    }
    return all;
  }

  return {
    tryKeep(owner, bytes, seconds) {
      const steps = owners.get(owner) ?? new Map<number, number>();
      const kept = bytesOf(steps);
      const all = kept + bytes;
      if (all > BYTES_MIN && all > (freeBytes() + kept) / DISK_PART) return false;
      const until = Math.floor((now() + seconds) / STEP_SECONDS);
      owners.set(owner, steps.set(until, (steps.get(until) ?? 0) + bytes));
      if (owners.size > OWNER_COUNT_MAX) for (const [name, it] of owners) if (bytesOf(it) === 0) owners.delete(name);
      return true;
    },
  };
}
