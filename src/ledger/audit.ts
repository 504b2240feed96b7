import type { Database as Client } from 'better-sqlite3';
import { findDamage } from '../db/damage.ts';
import type { Reader } from '../db/handle.ts';
import { openDatabase } from '../db/open.ts';
import { findGap, readHeadFile, readTip } from './head.ts';
import { currentEpoch } from './installation.ts';
import { GENESIS } from './journal.ts';
import { type Verdict, verifyLedger } from './verify.ts';

/** Indexes are walked in the order of their tables: with the usual cache most of their pages would be read many times. */
const CACHE_KIB = 64 * 1024;

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
 * `audit` of a data directory's books as they are now, and what the files beside them remember. Throws where the database
 * cannot be opened at all.
 */
export async function auditFiles(at: { database: string; head: string; tip: string }): Promise<Verdict> {
  const { client, read } = openDatabase(at.database, { migrate: false, readonly: true });
  try {
    client.pragma(`cache_size = ${-CACHE_KIB}`);
    const tip = readTip(at.tip); // Before the books: those may go on meanwhile, never back.
    const head = await readHeadFile(at.head).catch((error: Error) => error);
    const verdict = audit(client);
    const gap = head instanceof Error ? head.message : gapIn(() => findGap(read, head, tip));
    if (gap && !verdict.problems.includes(gap)) verdict.problems.push(gap);
    return { ...verdict, ok: verdict.problems.length === 0 };
  } finally {
    client.close();
  }
}

function gapIn(look: () => string | undefined): string | undefined {
  try {
    return look();
  } catch (error) {
    return `the newest entries cannot be read: ${(error as Error).message}`;
  }
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
