import type { Tenant } from '../ledger/tenant.ts';

/**
 * Divisors of the disk space that would be free without stored answers: a tree of wallets, and an account with all its
 * trees, may take one part in this number for its answers.
 */
const DISK_PARTS = { tree: 8, account: 4 };
/** Bytes that each owner may store in any case, however full the disk is. */
const BYTES_MIN = 16 * 1024 * 1024;
/** Answers are counted by the time of their deletion, in steps of this many seconds. */
const STEP_SECONDS = 600;
/** Beyond this many owners, those without stored answers are removed, once in a step. */
const OWNER_COUNT_MAX = 1000;

/** Counts the answers stored for replays since the start. */
export type KeptAnswers = {
  /** Counts an answer that is to be stored for `seconds`. Returns false if it must not be stored, as its owner has too much. */
  tryKeep(owner: Tenant, bytes: number, seconds: number): boolean;
};

/**
 * Creates the count, with nothing stored. An answer of many MiB may cost its wallet a millionth of a dollar, and all answers share
 * one disk: without a bound one tree of wallets, or one account with many, would fill it, and no holds could be placed
 * (docs/decisions/0078). `now` returns Unix seconds, `freeBytes` the free disk space.
 */
export function createKeptAnswers(now: () => number, freeBytes: () => number): KeptAnswers {
  /** The bytes of each tree and account, by the step in which they are deleted. */
  const owners = new Map<string, Map<number, number>>();
  let sweptStep = 0;

  /** Returns an owner's stored bytes, and removes the deleted ones. */
  function bytesOf(steps: Map<number, number>): number {
    const step = stepAt(now());
    let all = 0;
    for (const [until, bytes] of steps) {
      if (until < step) steps.delete(until);
      else all += bytes;
    }
    return all;
  }

  /** Removes owners without stored answers. Not for each answer, as there may be many owners. */
  function sweep(): void {
    const step = stepAt(now());
    if (owners.size <= OWNER_COUNT_MAX || step === sweptStep) return;
    sweptStep = step;
    for (const [name, it] of owners) if (bytesOf(it) === 0) owners.delete(name);
  }

  const stepsOf = (name: string) => owners.get(name) ?? new Map<number, number>();

  /** Returns whether an owner may store `bytes` more. */
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
