import type { Database as Client } from 'better-sqlite3';
import { parseJson } from '../base/parse-json.ts';
import { findBadChecksums } from '../db/checksum.ts';
import { findMissingRows } from '../db/tally.ts';
import { verifyCheckouts } from './verify-checkouts.ts';
import { verifyJournal } from './verify-journal.ts';
import { verifyOperations } from './verify-operations.ts';
import { verifyResources } from './verify-resources.ts';

export type Verification = {
  ok: boolean;
  entries: number;
  head: { seq: number; hash: string };
  /** The faults; of a list that is too long only the first and the number of the others. */
  problems: string[];
  /** The number of faults, including those that are not listed. */
  faults: number;
};

/** Returns a verdict as `ledger verify --json` prints it (design, section 4): with `faults` only where not all are listed. */
export function printVerdict({ faults, ...verdict }: Verification): string {
  return JSON.stringify(faults > verdict.problems.length ? { ...verdict, faults } : verdict);
}

/** Reads what `ledger verify --json` printed. Throws for anything else. */
export function readVerdict(text: string): Verification {
  const verdict = parseJson(text) as Partial<Verification>;
  if (!verdict.problems) throw new Error(text);
  return { faults: verdict.problems.length, ...verdict } as Verification;
}

/** Cap of listed faults; the rest are only counted. */
const PROBLEM_COUNT_MAX = 1000;
/** The faults found, the first of them listed. */
export type Faults = { listed: string[]; count: number };

/** Runs a check and returns the faults that it reports. */
export function faultsOf(check: (fault: (text: string) => void) => void): Faults {
  const faults: Faults = { listed: [], count: 0 };
  check((text) => {
    if (faults.count++ < PROBLEM_COUNT_MAX) faults.listed.push(text);
  });
  return faults;
}

/** Returns the verdict on the journal, with the faults of the books and of the rows. */
export function verdictOf(head: Verification['head'], ...parts: readonly Faults[]): Verification {
  const problems = parts.flatMap(({ listed }) => listed).slice(0, PROBLEM_COUNT_MAX);
  const faults = parts.reduce((sum, { count }) => sum + count, 0);
  if (faults > problems.length) problems.push(`and ${faults - problems.length} more`);
  return { ok: faults === 0, entries: head.seq, head, problems, faults };
}

/**
 * Rebuilds every balance from the journal and lists every fault: those of `verifyBooks`, and every row whose checksum does
 * not match. Reads one snapshot and writes nothing.
 */
export function verifyLedger(client: Client): Verification {
  return client
    .transaction(() => {
      const { head, faults } = verifyBooks(client);
      return verdictOf(
        head,
        faults,
        faultsOf((fault) => findBadChecksums(client, fault)),
      );
    })
    .deferred();
}

/**
 * Rebuilds every balance from the journal and finds every fault of it: the chain, the numbering, the timestamps, and each
 * operation, wallet, funding, checkout and account against its entries. For use inside a transaction. Also returns the newest
 * entry.
 */
export function verifyBooks(client: Client): { head: Verification['head']; faults: Faults } {
  let head: Verification['head'] = { seq: 0, hash: '' };
  const faults = faultsOf((fault) => {
    head = verifyJournal(client, fault);
    findMissingRows(client, fault);
    verifyCheckouts(client, fault);
    verifyOperations(client, fault);
    verifyResources(client, fault);
  });
  return { head, faults };
}
