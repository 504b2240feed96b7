import { sql } from 'drizzle-orm';
import { check, index, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { count, hash, nanos } from './columns.ts';

/** The journal: append-only, hash-chained double entry of every movement of money (design, section 6). */
export const entries = sqliteTable(
  'entry',
  {
    seq: count().primaryKey(),
    at: count().notNull(),
    /** The cause: the id of an operation, a wallet, a change of a wallet's budget, or a funding. */
    causeId: text('cause_id').notNull(),
    debit: text().notNull(),
    credit: text().notNull(),
    amount: nanos('amount_nanos').notNull(),
    prevHash: hash('prev_hash').notNull(),
    hash: hash('hash').notNull(),
  },
  (t) => [
    // The rows of operations have the numbers of their entries.
    index('entry_cause').on(t.causeId).where(sql`substr(${t.causeId}, 1, 3) <> 'op_'`),
    check('entry_amount', sql`${t.amount} > 0`),
    check('entry_books', sql`${t.debit} <> ${t.credit}`),
  ],
);
