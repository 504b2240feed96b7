import { open, readFile, rename } from 'node:fs/promises';
import { eq, sql } from 'drizzle-orm';
import { prepare, type Reader } from '../db/handle.ts';
import { entries } from '../db/schema.ts';
import { currentEpoch } from './installation.ts';
import { type Head, hashEntry, journalHead } from './journal.ts';

/** How many of the newest entries are checked before anything is served; `ledger verify` and the background check all. */
const TAIL_COUNT = 10_000;

/** What `DIR/ledger.head` says: the newest entry known to be on disk, kept outside the database (design, section 6). */
export type HeadFile = { seq: number; hash: string; epoch: number };

const reads = prepare((read: Reader) => ({
  bySeq: read
    .select()
    .from(entries)
    .where(eq(entries.seq, sql.placeholder('seq')))
    .prepare(),
  from: read
    .select()
    .from(entries)
    .where(sql`${entries.seq} >= ${sql.placeholder('seq')}`)
    .orderBy(entries.seq)
    .limit(1000)
    .prepare(),
}));

/** The head file's content, undefined when there is none. Throws when it cannot be read as one. */
export async function readHeadFile(file: string): Promise<HeadFile | undefined> {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  const [line, seq, hash, epoch] = /^(\d+) ([0-9a-f]{64}) (\d+)\n$/.exec(text) ?? [];
  if (!line) throw new Error(`${file} is damaged: it should be one line of "<seq> <hash> <epoch>".`);
  return { seq: Number(seq), hash: hash as string, epoch: Number(epoch) };
}

/** Replaces the head file whole: a crash leaves the one before or the one after. */
export async function writeHeadFile(file: string, head: HeadFile): Promise<void> {
  const fresh = `${file}.new`;
  const handle = await open(fresh, 'w', 0o600);
  try {
    await handle.writeFile(`${head.seq} ${head.hash} ${head.epoch}\n`);
    await handle.datasync();
  } finally {
    await handle.close();
  }
  await rename(fresh, file);
}

/** What the head file should say now. */
export function headOf(read: Reader): HeadFile {
  const { seq, hash } = journalHead(read);
  return { seq, hash: hash.toString('hex'), epoch: currentEpoch(read).number };
}

/**
 * Why this database may not be served, or undefined. A database that is behind its head file has lost commits that were
 * acknowledged, and SQLite's own check cannot see that (design, section 6).
 */
export function findGap(read: Reader, head: HeadFile | undefined): string | undefined {
  const tip = journalHead(read);
  const epoch = currentEpoch(read);
  if (!head)
    return tip.seq === epoch.afterSeq ? undefined : `ledger.head is missing beside a journal of ${tip.seq} entries`;
  if (head.epoch > epoch.number) return `ledger.head is of epoch ${head.epoch}, the database of epoch ${epoch.number}`;
  const promised = head.epoch === epoch.number; // An older epoch's loss was accepted; the file is written anew.
  if (promised && tip.seq < head.seq)
    return `the journal ends at entry ${tip.seq}, but entry ${head.seq} was on disk: entries ${tip.seq + 1} to ${head.seq} are lost`;
  if (promised && head.seq > 0) {
    const same = reads(read).bySeq.get({ seq: head.seq })?.hash.toString('hex') === head.hash;
    if (!same) return `entry ${head.seq} is not the one that was on disk: its hash is another than in ledger.head`;
  }
  return findBreak(read, Math.max(epoch.afterSeq, tip.seq - TAIL_COUNT) + 1).fault;
}

/** Follows the chain from `seq` for at most `count` entries. Says where it breaks, and where to go on. */
export function findBreak(
  read: Reader,
  seq: number,
  count = Number.POSITIVE_INFINITY,
): { fault?: string; next: number; done: boolean } {
  let prev: Head | undefined = reads(read).bySeq.get({ seq: seq - 1 });
  let next = seq;
  while (next - seq < count) {
    const page = reads(read).from.all({ seq: next });
    if (!page.length) return { next, done: true };
    for (const entry of page) {
      const chained = prev ? entry.prevHash.equals(prev.hash) : true;
      if (entry.seq !== next || !chained || !hashEntry(entry.prevHash, entry.seq, entry).equals(entry.hash))
        return { fault: `the chain of the journal is broken at entry ${next}`, next, done: true };
      prev = entry;
      next++;
    }
  }
  return { next, done: false };
}
