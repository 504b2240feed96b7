import { once } from 'node:events';
import type { Database as Client } from 'better-sqlite3';
import { findBadChecksums } from '../db/checksum.ts';
import { findDamage } from '../db/damage.ts';
import type { Reader } from '../db/handle.ts';
import { openDatabase } from '../db/open.ts';
import { openWorker } from '../files/worker.ts';
import { currentEpoch } from './installation.ts';
import { GENESIS } from './journal.ts';
import { type Faults, faultsOf, type Verification, verdictOf, verifyBooks, verifyLedger } from './verify.ts';

/**
 * Page cache of a connection that verifies. Indexes are checked in table order, so with the usual cache most of their
 * pages would be read many times.
 */
const CACHE_KIB = 64 * 1024;

/**
 * Verifies everything that the database file alone can prove: its structure, the journal, every balance and every
 * checksum. Reads one snapshot and writes nothing. A file that cannot be read to its end is reported as a problem, not
 * thrown.
 */
export function audit(client: Client): Verification {
  return client.transaction(() => auditSnapshot(client)).deferred();
}

function auditSnapshot(client: Client): Verification {
  const damage: Faults = { listed: [], count: 0 };
  try {
    findDamage(client, (text) => {
      damage.count = damage.listed.push(text);
    });
    return withDamage(damage, verifyLedger(client));
  } catch (error) {
    return unreadable(damage, (error as Error).message);
  }
}

const withDamage = ({ listed, count }: Faults, verdict: Verification): Verification => {
  const faults = count + verdict.faults;
  return { ...verdict, ok: faults === 0, problems: [...listed, ...verdict.problems], faults };
};
const unreadable = ({ listed, count }: Faults, why: string): Verification => ({
  ok: false,
  entries: 0,
  head: { seq: 0, hash: GENESIS.hash.toString('hex') },
  problems: [...listed, `the books cannot be read: ${why}`],
  faults: count + 1,
});

/** The parts of an audit that need no other part. */
const PARTS = { structure: findDamage, rows: findBadChecksums };
type AuditPart = keyof typeof PARTS;
export type AuditOrder = { file: string; part: AuditPart };
type Findings = { faults: Faults; error?: string };

/** Examines one part of a file over its own connection. `error` is the reason why it could not be read to its end. */
export function examinePart(file: string, part: AuditPart): Findings {
  let error: string | undefined;
  const faults = faultsOf((fault) => {
    try {
      const { client } = openDatabase(file, { migrate: false, readonly: true });
      try {
        client.pragma(`cache_size = ${-CACHE_KIB}`);
        client.transaction(() => PARTS[part](client, fault)).deferred();
      } finally {
        client.close();
      }
    } catch (thrown) {
      error = (thrown as Error).message;
    }
  });
  return error === undefined ? { faults } : { faults, error };
}

/**
 * Runs `audit` on a file of any size, in three threads at once. Each part reads one snapshot, taken when it begins: no part
 * compares its rows with those of another part. Rejects when a thread ends without an answer.
 */
export async function auditInThreads(file: string, client: Client): Promise<Verification> {
  const [structure, rows] = (['structure', 'rows'] as const).map(async (part) => {
    const worker = openWorker('audit', { file, part } satisfies AuditOrder);
    const ended = once(worker, 'exit').then(() =>
      Promise.reject(new Error(`the thread that verifies ${part} has ended`)),
    );
    const [findings] = await Promise.race([once(worker, 'message'), ended]);
    return findings as Findings;
  });
  client.pragma(`cache_size = ${-CACHE_KIB}`);
  let books: ReturnType<typeof verifyBooks> | undefined;
  let error: string | undefined;
  try {
    books = client.transaction(() => verifyBooks(client)).deferred();
  } catch (thrown) {
    error = (thrown as Error).message;
  }
  const [damage, sums] = (await Promise.all([structure, rows])) as [Findings, Findings];
  error = damage.error ?? error ?? sums.error;
  if (!books || error !== undefined) return unreadable(damage.faults, error ?? '');
  return withDamage(damage.faults, verdictOf(books.head, books.faults, sums.faults));
}

/**
 * Returns why books with these faults may not be served, or undefined. Faults that the operator accepted with a loss are still
 * listed by `ledger verify`; only faults beyond that number count. `lowerAcceptedFaults` lowers it to the faults that remain.
 */
export function newFault(
  read: Reader,
  { problems, faults }: Pick<Verification, 'problems' | 'faults'>,
): string | undefined {
  const { acceptedFaults } = currentEpoch(read);
  if (faults <= acceptedFaults) return undefined;
  return `the books are damaged (${faults - acceptedFaults} faults): ${problems[acceptedFaults] ?? problems.at(-1)}`;
}
