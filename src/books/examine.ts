import { statSync } from 'node:fs';
import { audit, auditInThreads, newFault } from '../ledger/audit.ts';
import { type CommitMark, findGap, readHeadFile, readTipFile } from '../ledger/head.ts';
import type { Verification } from '../ledger/verify.ts';
import { openBooks, type ReadableBooks } from './open.ts';

/** A file of this size is verified within a second or so; a larger one in several threads. */
const SMALL_BYTES = 32 * 1024 * 1024;

/** The newest commits known to be on disk, by the files beside a database. */
export type Marks = {
  head: CommitMark | undefined;
  tip: CommitMark | undefined;
  /** The reason why the head file could not be read. */
  fault: string | undefined;
};

/**
 * Reads the head file and the tip file. Read them before the books that they are compared with: in between, the books may move
 * forward, but never back. Never throws.
 */
export async function readMarks(at: { head: string; tip: string }): Promise<Marks> {
  const tip = readTipFile(at.tip);
  try {
    return { head: await readHeadFile(at.head), tip, fault: undefined };
  } catch (error) {
    return { head: undefined, tip, fault: (error as Error).message };
  }
}

/** Returns the newest epoch and entry number that the marks know; 0 when there are none. */
export const newestOf = ({ head, tip }: Marks): { epoch: number; seq: number } => ({
  epoch: Math.max(head?.epoch ?? 0, tip?.epoch ?? 0),
  seq: Math.max(head?.seq ?? 0, tip?.seq ?? 0),
});

/** Returns why these books do not match the marks: commits are lost, or the newest entries do not chain. */
export function gapOf({ read }: Pick<ReadableBooks, 'read'>, { head, tip, fault }: Marks): string | undefined {
  if (fault) return fault;
  try {
    return findGap(read, head, tip);
  } catch (error) {
    return `the newest entries cannot be read: ${(error as Error).message}`;
  }
}

/** Verifies the whole of these books. Returns why they may not be served, or undefined. */
export const damageOf = ({ client, read }: Pick<ReadableBooks, 'client' | 'read'>): string | undefined =>
  newFault(read, audit(client));

/**
 * Runs `audit` on the current database of a data directory and compares it with the head and tip files beside it.
 * Throws when the database cannot be opened at all.
 */
export async function auditFiles(
  at: { database: string; head: string; tip: string },
  inThreads?: boolean,
): Promise<Verification> {
  using books = openBooks(at.database, { access: 'read' });
  const marks = await readMarks(at);
  const verdict =
    (inThreads ?? statSync(at.database).size > SMALL_BYTES)
      ? await auditInThreads(at.database, books.client)
      : audit(books.client);
  const gap = gapOf(books, marks);
  if (!gap || verdict.problems.includes(gap)) return verdict;
  return { ...verdict, ok: false, problems: [...verdict.problems, gap], faults: verdict.faults + 1 };
}
