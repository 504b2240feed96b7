import { hash } from 'node:crypto';
import { desc, sql } from 'drizzle-orm';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { entries } from '../db/schema.ts';
import type { Nanos } from '../money.ts';

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

export type Movement = { at: number; causeId: string; debit: string; credit: string; amount: Nanos };
export type Head = { seq: number; hash: Buffer };

/** What the first entry is chained to. */
export const GENESIS: Head = { seq: 0, hash: Buffer.alloc(32) };

const reads = prepare((read: Reader) => ({
  head: read
    .select({ seq: entries.seq, hash: entries.hash })
    .from(entries)
    .orderBy(desc(entries.seq))
    .limit(1)
    .prepare(),
  lastAt: read.select({ at: entries.at }).from(entries).orderBy(desc(entries.seq)).limit(1).prepare(),
}));

const writes = prepare((tx: Tx) => ({
  append: tx
    .insert(entries)
    .values({
      seq: sql.placeholder('seq'),
      at: sql.placeholder('at'),
      causeId: sql.placeholder('causeId'),
      debit: sql.placeholder('debit'),
      credit: sql.placeholder('credit'),
      amount: sql.placeholder('amount'),
      prevHash: sql.placeholder('prevHash'),
      hash: sql.placeholder('hash'),
    })
    .prepare(),
}));

const scratch = Buffer.alloc(1024); // Ids and book names are short: an entry's text is about 200 bytes.

/** SHA-256 over the previous hash and the entry's fields, each on a line of its own: no field can hold a line feed. */
export function hashEntry(
  prevHash: Buffer,
  seq: number | bigint,
  movement: Omit<Movement, 'at'> & { at: number | bigint },
): Buffer {
  const { at, causeId, debit, credit, amount } = movement;
  prevHash.copy(scratch);
  const length = scratch.write(`${seq}\n${at}\n${causeId}\n${debit}\n${credit}\n${amount}`, prevHash.length);
  return hash('sha256', scratch.subarray(0, prevHash.length + length), 'buffer');
}

/** The newest entry's number and hash. */
export function journalHead(read: Reader): Head {
  return reads(read).head.get() ?? GENESIS;
}

/** Unix seconds of the newest entry, 0 for an empty journal. */
export function lastJournalAt(read: Reader): number {
  return reads(read).lastAt.get()?.at ?? 0;
}

/** Appends movements to the journal, chained. Movements of nothing are left out. */
export function post(tx: Tx, movements: readonly Movement[]): void {
  let head: Head | undefined;
  for (const movement of movements) {
    if (movement.amount === 0n) continue;
    head ??= journalHead(tx);
    const seq = head.seq + 1;
    const next = { seq, hash: hashEntry(head.hash, seq, movement) };
    writes(tx).append.run({ ...movement, seq, prevHash: head.hash, hash: next.hash });
    head = next;
  }
}
