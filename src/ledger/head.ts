import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import { eq, sql } from 'drizzle-orm';
import { prepare, type Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import { entries } from '../db/schema.ts';
import { writeDurably } from '../files/durable-file.ts';
import { currentEpoch, findInstallation, installationOf } from './installation.ts';
import { GENESIS, HASHED_COLUMNS, hashEntryHex, journalHead } from './journal.ts';

/** Number of the newest entries that are checked before serving; `ledger verify` and the background check cover all. */
const TAIL_COUNT = 10_000;

/**
 * The newest commit known to be on disk, kept outside the database (design, section 6): the newest entry and the number of commits
 * that moved no money. Two files hold it. `ledger.head` is replaced and synced at most a second later, and is never ahead of the
 * database. `ledger.tip` is overwritten after every commit and never synced: it is exact after the process dies, and holds whatever
 * reached the disk after a power cut (docs/decisions/0013).
 */
export type CommitMark = { seq: number; hash: string; epoch: number; quietCommits: number };

/** Entries of the chain that are read and checked at a time: less than a millisecond of work. */
const PAGE_COUNT = 250;

const reads = prepare((read: Reader) => ({
  bySeq: read
    .select()
    .from(entries)
    .where(eq(entries.seq, sql.placeholder('seq')))
    .prepare(),
}));

const quick = plain({
  from: `select seq, ${HASHED_COLUMNS.prevHash}, ${HASHED_COLUMNS.hash}, ${HASHED_COLUMNS.fields} from entry
    where seq >= ? order by seq limit ${PAGE_COUNT}`,
  mark: `select seq, hash, (select max(number) from epoch), (select quiet_commits from installation) from entry
    order by seq desc limit 1`,
});

const lineOf = ({ seq, hash, epoch, quietCommits }: CommitMark) => `${seq} ${hash} ${epoch} ${quietCommits}`;

function parse(line: string): CommitMark | undefined {
  const [match, seq, hash, epoch, quiet] = /^(\d+) ([0-9a-f]{64}) (\d+)(?: (\d+))?$/.exec(line) ?? [];
  if (!match) return undefined;
  // Files written before rows had checksums lack the count of commits without money.
  return { seq: Number(seq), hash: hash as string, epoch: Number(epoch), quietCommits: Number(quiet ?? 0) };
}

/** Reads the head file; undefined when there is none. Throws when it is damaged. */
export async function readHeadFile(file: string): Promise<CommitMark | undefined> {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  const head = text.endsWith('\n') ? parse(text.slice(0, -1)) : undefined;
  if (!head) throw new Error(`${file} is damaged: it should be one line of "<seq> <hash> <epoch> <quiet commits>"`);
  return head;
}

/**
 * Replaces the head file atomically: a crash leaves the old one or the new one, and a power cut never leaves the
 * journal without one.
 */
export function writeHeadFile(file: string, head: CommitMark): Promise<void> {
  return writeDurably(file, `${lineOf(head)}\n`);
}

/** The size of the tip file, less than one sector, so that the death of the process never leaves a torn write. */
const TIP_BYTES = 160;

/** Reads the tip file; undefined when it is missing or damaged. It is never synced, so its absence proves nothing. */
export function readTipFile(file: string): CommitMark | undefined {
  try {
    const [line = '', sum] = readFileSync(file, 'utf8').trimEnd().split(' #');
    return sum === sumOf(line) ? parse(line) : undefined;
  } catch {
    return undefined;
  }
}

const sumOf = (line: string) => crc32(line).toString(16).padStart(8, '0');

/** Opens the tip file, to be overwritten after each commit. Throws when the disk is full. */
export function openTipFile(file: string): { write(head: CommitMark): void; close(): void } {
  const handle = openSync(file, 'w', 0o600);
  return {
    write(head) {
      const line = lineOf(head);
      writeSync(handle, `${`${line} #${sumOf(line)}`.padEnd(TIP_BYTES - 1)}\n`, 0);
    },
    close: () => closeSync(handle),
  };
}

/**
 * Returns the current content of the head file, or undefined before the first start has finished. On the hot path: runs at the end of
 * every transaction that writes.
 */
export function findHead(read: Reader): CommitMark | undefined {
  const row = quick(read).mark.get<[seq: bigint, hash: Buffer, epoch: bigint, quietCommits: bigint]>();
  if (row) {
    const [seq, hash, epoch, quiet] = row;
    return { seq: Number(seq), hash: hash.toString('hex'), epoch: Number(epoch), quietCommits: Number(quiet) };
  }
  const installation = findInstallation(read);
  if (!installation) return undefined;
  const { quietCommits } = installation;
  return { seq: 0, hash: GENESIS.hash.toString('hex'), epoch: currentEpoch(read).number, quietCommits };
}

/** Returns the current content of the head file. Asserts that the first start has finished. */
export function headOf(read: Reader): CommitMark {
  const head = findHead(read);
  assert(head, 'the first start writes the installation');
  return head;
}

/**
 * Returns why this database may not be served, or undefined. A database behind its head or tip file has lost
 * acknowledged commits, which SQLite's own check cannot see (design, section 6).
 */
export function findGap(read: Reader, head: CommitMark | undefined, tip?: CommitMark): string | undefined {
  const epoch = currentEpoch(read);
  const newest = journalHead(read);
  if (!head && newest.seq !== epoch.afterSeq) return `ledger.head is missing beside a journal of ${newest.seq} entries`;
  for (const [name, mark] of Object.entries({ 'ledger.tip': tip, 'ledger.head': head })) {
    const gap = mark && findLoss(read, name, mark);
    if (gap) return gap;
  }
  if (!head) return undefined;
  return findBreak(read, Math.max(epoch.afterSeq, newest.seq - TAIL_COUNT) + 1).fault;
}

function findLoss(read: Reader, name: string, mark: CommitMark): string | undefined {
  const epoch = currentEpoch(read).number;
  if (mark.epoch > epoch) return `${name} is of epoch ${mark.epoch}, the database of epoch ${epoch}`;
  if (mark.epoch < epoch) return undefined; // The loss of that epoch was accepted; the file gets rewritten.
  const { seq } = journalHead(read);
  if (seq < mark.seq)
    return `the journal ends at entry ${seq}, but entry ${mark.seq} was on disk: entries ${seq + 1} to ${mark.seq} are lost`;
  if (mark.seq > 0 && reads(read).bySeq.get({ seq: mark.seq })?.hash.toString('hex') !== mark.hash)
    return `entry ${mark.seq} is not the one that was on disk: its hash differs from the one in ${name}`;
  const { quietCommits } = installationOf(read);
  if (quietCommits < mark.quietCommits)
    return `${mark.quietCommits - quietCommits} commits that moved no money are lost: ${name} counts ${mark.quietCommits} of them, the database ${quietCommits}`;
  return undefined;
}

/**
 * Follows the hash chain from `seq` for `count` entries, rounded up to whole pages. Returns where it breaks, if it does,
 * and where to continue.
 */
export function findBreak(
  read: Reader,
  seq: number,
  count = Number.POSITIVE_INFINITY,
): { fault?: string; next: number; done: boolean } {
  let prev = reads(read)
    .bySeq.get({ seq: seq - 1 })
    ?.hash.toString('hex');
  let next = seq;
  while (next - seq < count) {
    const page = quick(read).from.all<[seq: bigint, prevHash: string, hash: string, fields: string]>(next);
    if (!page.length) return { next, done: true };
    for (const [number, prevHash, hash, fields] of page) {
      const chained = prev === undefined || prevHash === prev;
      if (Number(number) !== next || !chained || hashEntryHex(prevHash, fields) !== hash)
        return { fault: `the chain of the journal is broken at entry ${next}`, next, done: true };
      prev = hash;
      next++;
    }
  }
  return { next, done: false };
}
