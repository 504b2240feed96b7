import type { Tenant } from '../ledger/tenant.ts';

/**
 * A tree of wallets, and an account with all its trees, may take one part in so many, for its stored answers, of what would be free
 * on the disk without them.
 */
const DISK_PARTS = { tree: 8, account: 4 };
/** Bytes that each of them may have stored in any case, however full the disk is. */
const BYTES_MIN = 16 * 1024 * 1024;
/** Answers are counted by the time at which they are deleted, in steps of so many seconds. */
const STEP_SECONDS = 600;
/** Beyond so many owners those whose answers have all been deleted are forgotten, once in a step. */
const OWNER_COUNT_MAX = 1000;

/** Counts what is stored of answers for replays, since the start. */
export type KeptAnswers = {
  /** Counts an answer that is to be stored for so long. Returns false where it is not to be stored: its owner has too much. */
  tryKeep(owner: Tenant, bytes: number, seconds: number): boolean;
};

/**
 * Creates the count, with nothing stored. An answer of many MiB may cost its wallet a millionth of a dollar, and all of them are on one
 * disk: without a bound one tree of wallets, or one account with many, would fill it, and nobody could hold anything more
 * (docs/decisions/0017). `now` returns Unix seconds, `freeBytes` what is free on the disk.
 */
export function createKeptAnswers(now: () => number, freeBytes: () => number): KeptAnswers {
  /** The bytes of each tree and account, by the step in which they are deleted. */
  const owners = new Map<string, Map<number, number>>();
  let sweptStep = 0;

  /** Returns what an owner has, and forgets what has been deleted. */
  function bytesOf(steps: Map<number, number>): number {
    const step = stepAt(now());
    let all = 0;
    for (const [until, bytes] of steps) {
      if (until < step) steps.delete(until);
      else all += bytes;
    }
    return all;
  }

  /** Forgets who has nothing. Not at each answer: there may be many who have. */
  function sweep(): void {
    const step = stepAt(now());
    if (owners.size <= OWNER_COUNT_MAX || step === sweptStep) return;
    sweptStep = step;
    for (const [name, it] of owners) if (bytesOf(it) === 0) owners.delete(name);
  }

  const stepsOf = (name: string) => owners.get(name) ?? new Map<number, number>();

  /** Returns whether an owner may store so much more. */
  function isWithin(name: string, bytes: number, part: number): boolean {
    const kept = bytesOf(stepsOf(name));
    const all = kept + bytes;
    return all <= BYTES_MIN || all <= (freeBytes() + kept) / part;
  }

  function count(name: string, bytes: number, until: number): void {
    const steps = stepsOf(name);
    owners.set(name, steps.set(until, (steps.get(until) ?? 0) + bytes));
  }

  return {
    tryKeep({ treeId, accountId }, bytes, seconds) {
      if (!isWithin(treeId, bytes, DISK_PARTS.tree) || !isWithin(accountId, bytes, DISK_PARTS.account)) return false;
      for (const name of [treeId, accountId]) count(name, bytes, stepAt(now() + seconds));
      sweep();
      return true;
    },
  };
}

const stepAt = (seconds: number): number => Math.floor(seconds / STEP_SECONDS);
