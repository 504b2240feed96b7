import type { Database as Client } from 'better-sqlite3';
import { findDamage } from '../db/damage.ts';
import type { Reader } from '../db/handle.ts';
import { currentEpoch } from './installation.ts';
import { GENESIS } from './journal.ts';
import { type Verdict, verifyLedger } from './verify.ts';

/**
 * Everything that can be said of the books from their file alone: its structure, then the journal, every balance and every
 * seal. One snapshot; writes nothing. A file that cannot be read to its end is a fault like any other, and not thrown.
 */
export function audit(client: Client): Verdict {
  return client.transaction(() => auditSnapshot(client)).deferred();
}

function auditSnapshot(client: Client): Verdict {
  const problems: string[] = [];
  let verdict: Verdict = { ok: false, entries: 0, head: { seq: 0, hash: GENESIS.hash.toString('hex') }, problems };
  try {
    findDamage(client, (text) => problems.push(text));
    verdict = verifyLedger(client);
    problems.push(...verdict.problems);
  } catch (error) {
    problems.push(`the books cannot be read: ${(error as Error).message}`);
  }
  return { ...verdict, ok: problems.length === 0, problems };
}

/**
 * Why books with these problems may not be served, or undefined: those that an operator accepted with a loss stay named by
 * `ledger verify`, and only more than so many count.
 */
export function newFault(read: Reader, problems: readonly string[]): string | undefined {
  const { acceptedFaults } = currentEpoch(read);
  if (problems.length <= acceptedFaults) return undefined;
  return `the books are damaged (${problems.length - acceptedFaults} faults): ${problems[acceptedFaults]}`;
}
