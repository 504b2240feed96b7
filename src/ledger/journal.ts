import { hash } from 'node:crypto';
import { desc, lt, sql } from 'drizzle-orm';
import type { Nanos } from '../base/money.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import { entries } from '../db/schema.ts';

/** The books of the journal (design, section 6). An entry moves an amount from the debited book to the credited one. */
export const book = {
  funding: 'funding',
  rounding: 'rounding',
  account: (id: string) => `account:${id}`,
  owed: (accountId: string) => `owed:${accountId}`,
  wallet: (id: string) => `wallet:${id}`,
  hold: (walletId: string) => `hold:${walletId}`,
  sales: (kind: string) => `sales:${kind}`,
};

type Movement = { at: number; causeId: string; debit: string; credit: string; amount: Nanos };
type Head = { seq: number; at: number; hash: Buffer };

/** The head of an empty journal; the first entry is chained to it. */
export const GENESIS: Head = { seq: 0, at: 0, hash: Buffer.alloc(32) };

const reads = prepare((read: Reader) => ({
  latest: read
    .select()
    .from(entries)
    .where(lt(entries.seq, sql.placeholder('before')))
    .orderBy(desc(entries.seq))
    .limit(sql.placeholder('limit'))
    .prepare(),
}));

const newest = plain({ head: 'select seq, at, hash from entry order by seq desc limit 1' });

const INSERT = 'insert into entry (seq, at, cause_id, debit, credit, amount_nanos, prev_hash, hash) values';
const VALUES = '(?, ?, ?, ?, ?, ?, ?, ?)';
const writes = plain({ appendOne: `${INSERT} ${VALUES}`, appendTwo: `${INSERT} ${VALUES}, ${VALUES}` });

const scratch = Buffer.alloc(1024); // Ids and book names are short: an entry's text is about 200 bytes.

/** Returns the bytes to hash: the previous hash, then the entry's fields. */
function bytesOf(prevHash: Buffer | string, fields: string): Buffer {
  const bytesMax = prevHash.length + 3 * fields.length;
  const bytes = bytesMax <= scratch.length ? scratch : Buffer.alloc(bytesMax); // Only a damaged entry is longer.
  const start = typeof prevHash === 'string' ? bytes.write(prevHash, 'hex') : prevHash.copy(bytes);
  return bytes.subarray(0, start + bytes.write(fields, start));
}

/** Returns the SHA-256 over the previous hash and the entry's fields, each on a line of its own. No field contains a line feed. */
export function hashEntry(prevHash: Buffer, seq: number, movement: Movement): Buffer {
  const { at, causeId, debit, credit, amount } = movement;
  return hash('sha256', bytesOf(prevHash, `${seq}\n${at}\n${causeId}\n${debit}\n${credit}\n${amount}`), 'buffer');
}

/**
 * Columns to select from `entry` for `hashEntryHex`: its hashes in hexadecimal, and the fields as `hashEntry` hashes them.
 * SQLite makes these texts at a fraction of the cost of fetching the columns and hashes one by one.
 */
export const HASHED_COLUMNS = {
  prevHash: 'lower(hex(prev_hash))',
  hash: 'lower(hex(hash))',
  fields: `concat(${['seq', 'at', 'cause_id', 'debit', 'credit', 'amount_nanos'].join(', char(10), ')})`,
};

/** Returns the result of `hashEntry` in hexadecimal, from an entry's texts (`HASHED_COLUMNS`). */
export function hashEntryHex(prevHash: string, fields: string): string {
  return hash('sha256', bytesOf(prevHash, fields), 'hex');
}

/** Returns the number, time and hash of the newest entry. */
export function journalHead(read: Reader): Head {
  const row = newest(read).head.get<[bigint, bigint, Buffer]>();
  return row ? { seq: Number(row[0]), at: Number(row[1]), hash: row[2] } : GENESIS;
}

/** Returns entries, newest first, before the number `before`, at most `limit`. */
export function latestEntries(
  read: Reader,
  limit: number,
  before = Number.MAX_SAFE_INTEGER,
): (typeof entries.$inferSelect)[] {
  return reads(read).latest.all({ before, limit });
}

const heads = new WeakMap<Tx, Head | undefined>();

/**
 * Keeps the head of the journal in memory from one `post` to the next. Returns a function that forgets it, which the caller must
 * call when another connection has written, and when rows have been undone.
 */
export function rememberHead(tx: Tx): () => void {
  const forget = () => heads.set(tx, undefined);
  forget();
  return forget;
}

/** Returns the head of the journal, from memory if `rememberHead` keeps it there. */
export function headIn(tx: Tx): Head {
  const head = heads.get(tx) ?? journalHead(tx);
  if (heads.has(tx)) heads.set(tx, head);
  return head;
}

/**
 * Appends movements to the journal, chained. Movements of 0 are skipped. Recorded time never decreases: a closure that
 * waited in the queue may carry an earlier `at` than the entry before it. Returns the number of entries.
 */
export function post(tx: Tx, movements: readonly Movement[]): number {
  const moving = movements.filter(({ amount }) => amount !== 0n);
  if (!moving.length) return 0;
  let head = headIn(tx);
  const rows = moving.map((movement) => {
    const { seq: before, hash: prevHash } = head;
    const [seq, at] = [before + 1, Math.max(movement.at, head.at)];
    head = { seq, at, hash: hashEntry(prevHash, seq, { ...movement, at }) };
    const { causeId, debit, credit, amount } = movement;
    return [seq, at, causeId, debit, credit, amount, prevHash, head.hash] as const;
  });
  const { appendOne, appendTwo } = writes(tx);
  for (let i = 0; i < rows.length; i += 2) {
    const [first, second] = [rows[i] as (typeof rows)[number], rows[i + 1]];
    if (second) appendTwo.run(...first, ...second);
    else appendOne.run(...first);
  }
  if (heads.has(tx)) heads.set(tx, head);
  return rows.length;
}
