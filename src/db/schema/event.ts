import { sql } from 'drizzle-orm';
import { check, index, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { EVENT_TYPES } from '../enums.ts';
import { count, seal } from './columns.ts';

/** Events for receivers, each written in the transaction that caused it (docs/decisions/0037). Kept for 32 days. */
export const events = sqliteTable(
  'event',
  {
    /** The order of events. */
    seq: count().primaryKey(),
    id: text().notNull(),
    type: text({ enum: EVENT_TYPES }).notNull(),
    /** The subject: a wallet, an account, `upstream:` and its name, or a part of the installation. */
    subject: text().notNull(),
    /** JSON. */
    data: text().notNull(),
    createdAt: count('created_at').notNull(),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('event_id').on(t.id),
    index('event_subject').on(t.subject, t.seq),
    index('event_created').on(t.createdAt),
    check('event_data', sql`json_valid(${t.data})`),
  ],
);

/** The outbox: one row per event and receiver. Those of one subject are sent to a receiver in the order of their events. */
export const deliveries = sqliteTable(
  'delivery',
  {
    eventSeq: count('event_seq')
      .notNull()
      .references(() => events.seq),
    /** The name of the receiver in the configuration. */
    receiver: text().notNull(),
    subject: text().notNull(),
    /** The time when it was written, or last resent: a delivery that fails for 3 days is given up. */
    queuedAt: count('queued_at').notNull(),
    deliveredAt: count('delivered_at'),
    gaveUpAt: count('gave_up_at'),
    /** The time of the next attempt; the number of failed attempts, and the last error. */
    dueAt: count('due_at').notNull(),
    attempts: count().notNull(),
    lastError: text('last_error'),
    seal: seal(),
  },
  (t) => [
    primaryKey({ columns: [t.eventSeq, t.receiver] }),
    index('delivery_waiting').on(t.receiver, t.eventSeq).where(sql`${t.deliveredAt} is null and ${t.gaveUpAt} is null`),
    index('delivery_order')
      .on(t.receiver, t.subject, t.eventSeq)
      .where(sql`${t.deliveredAt} is null and ${t.gaveUpAt} is null`),
    check('delivery_ended', sql`${t.deliveredAt} is null or ${t.gaveUpAt} is null`),
  ],
);
