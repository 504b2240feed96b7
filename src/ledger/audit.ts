import type { Database as Client } from 'better-sqlite3';
import { findDamage } from '../db/damage.ts';
import type { Reader } from '../db/handle.ts';
import { openDatabase } from '../db/open.ts';
import { findGap, readHeadFile, readTip } from './head.ts';
import { currentEpoch } from './installation.ts';
import { GENESIS } from './journal.ts';
import { type Verdict, verifyLedger } from './verify.ts';

/**
 * Page cache for an audit. Indexes are checked in table order, so with the usual cache most of their pages would be
 * read many times.
 */
const CACHE_KIB = 64 * 1024;

/**
 * Verifies everything that the database file alone can prove: its structure, the journal, every balance and every
 * checksum. Reads one snapshot and writes nothing. A file that cannot be read to its end is reported as a problem, not
 * thrown.
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
 * Runs `audit` on the current database of a data directory and compares it with the head and tip files beside it.
 * Throws when the database cannot be opened at all.
 */
export async function auditFiles(at: { database: string; head: string; tip: string }): Promise<Verdict> {
  const { client, read } = openDatabase(at.database, { migrate: false, readonly: true });
  try {
    client.pragma(`cache_size = ${-CACHE_KIB}`);
    const tip = readTip(at.tip); // Before the books: meanwhile they may move forward, but never back.
    const head = await readHeadFile(at.head).catch((error: Error) => error);
    const verdict = audit(client);
    const gap = head instanceof Error ? head.message : gapIn(() => findGap(read, head, tip));
    if (gap && !verdict.problems.includes(gap)) verdict.problems.push(gap);
    return { ...verdict, ok: verdict.problems.length === 0 };
  } finally {
    client.close();
  }
}

function gapIn(find: () => string | undefined): string | undefined {
  try {
    return find();
  } catch (error) {
    return `the newest entries cannot be read: ${(error as Error).message}`;
  }
}

/**
 * Returns why books with these problems may not be served, or undefined. Faults that the operator accepted with a loss
 * are still listed by `ledger verify`; only faults beyond that number count.
 */
export function newFault(read: Reader, problems: readonly string[]): string | undefined {
  const { acceptedFaults } = currentEpoch(read);
  if (problems.length <= acceptedFaults) return undefined;
  return `the books are damaged (${problems.length - acceptedFaults} faults): ${problems[acceptedFaults]}`;
}
