import { sql } from 'drizzle-orm';
import { blob, check, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { count, hash, seal } from './columns.ts';

/** The state of this installation, in one row. */
export const installation = sqliteTable(
  'installation',
  {
    id: count().primaryKey(),
    installationId: text('installation_id').notNull(),
    createdAt: count('created_at').notNull(),
    defaultAccountId: text('default_account_id'),
    masterKeyId: text('master_key_id').notNull(),
    frozenAt: count('frozen_at'),
    freezeReason: text('freeze_reason'),
    /** The time at which, and the reason why, the report-only state began, in which no lease is ended (docs/decisions/0010). */
    reportOnlySince: count('report_only_since'),
    reportOnlyReason: text('report_only_reason'),
    /** Hash of the machine of the last start; null until one was known. */
    machineHash: hash('machine_hash'),
    /** Number of commits that moved no money: together with the journal's head it distinguishes every commit from the one before it. */
    quietCommits: count('quiet_commits').notNull(),
    /** The host name of the last start, and the database file that it found (`fileMark`). */
    host: text(),
    fileMark: text('file_mark'),
    /** The last start on another machine: the host before it, its time, and the time of the last write before it. */
    movedFrom: text('moved_from'),
    movedAt: count('moved_at'),
    movedWrittenAt: count('moved_written_at'),
    /** The time at which the operator last ended the report-only state. */
    trustedAt: count('trusted_at'),
    seal: seal(),
  },
  (t) => [
    check('installation_one', sql`${t.id} = 1`),
    check('installation_report_only', sql`(${t.reportOnlySince} is null) = (${t.reportOnlyReason} is null)`),
  ],
);

/** Master keys by fingerprint. A retired key is kept, wrapped with its successor, while a live wallet needs it. */
export const masterKeys = sqliteTable('master_key', {
  id: text().primaryKey(),
  createdAt: count('created_at').notNull(),
  retiredAt: count('retired_at'),
  /** The key itself, wrapped with the key that `wrappedBy` names; null unless it is needed. */
  wrapped: blob('sealed', { mode: 'buffer' }),
  wrappedBy: text('sealed_by'),
  seal: seal(),
});

/** Epochs: each begins a part of the journal, without a guarantee for earlier entries. */
export const epochs = sqliteTable('epoch', {
  number: count().primaryKey(),
  afterSeq: count('after_seq').notNull(),
  startedAt: count('started_at').notNull(),
  reason: text().notNull(),
  /** Number of faults in the books when it began: only faults beyond these are new. */
  acceptedFaults: count('accepted_faults').notNull(),
  seal: seal(),
});

/**
 * The number of rows added to each table, less those deleted (src/db/tally.ts), so that a lost row is noticed. Triggers count the
 * added rows; of `answer` only those that wallets do not count.
 */
export const tallies = sqliteTable('tally', {
  table: text('table_name').primaryKey(),
  rows: count('row_count').notNull(),
});
