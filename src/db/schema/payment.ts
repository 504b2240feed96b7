import { sql } from 'drizzle-orm';
import { check, index, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { CHECKOUT_STATUSES, REVERSAL_KINDS, REVERSAL_STATES } from '../enums.ts';
import { accounts } from './account.ts';
import { count, hash, oneOf, refersTo, seal } from './columns.ts';

/** Hosted checkouts. The row is written before the request to the payment provider; its amount is the amount credited. */
export const checkouts = sqliteTable(
  'checkout',
  {
    id: text().primaryKey(),
    accountId: refersTo('account_id', () => accounts.id),
    amountCents: count('amount_cents').notNull(),
    status: text({ enum: CHECKOUT_STATUSES }).notNull(),
    /** Cents that refunds and disputes have taken back. */
    takenCents: count('taken_cents').notNull(),
    sessionId: text('session_id'),
    /** The payment URL; null once it can no longer be paid. */
    url: text(),
    paymentIntent: text('payment_intent'),
    /** Null after a definite refusal by the provider: the key is free again (design 2.7). */
    idempotencyKey: text('idempotency_key'),
    fingerprint: hash('fingerprint').notNull(),
    requestId: text('request_id').notNull(),
    createdAt: count('created_at').notNull(),
    expiresAt: count('expires_at').notNull(),
    paidAt: count('paid_at'),
    /** Next poll of the provider; null when there is nothing more to learn. */
    dueAt: count('due_at'),
    lastError: text('last_error'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('checkout_idempotency').on(t.accountId, t.idempotencyKey).where(sql`${t.idempotencyKey} is not null`),
    uniqueIndex('checkout_session').on(t.sessionId).where(sql`${t.sessionId} is not null`),
    uniqueIndex('checkout_payment').on(t.paymentIntent).where(sql`${t.paymentIntent} is not null`),
    index('checkout_account').on(t.accountId, t.id),
    index('checkout_waiting').on(t.accountId).where(sql`${t.status} in ('creating', 'open')`),
    index('checkout_due').on(t.dueAt).where(sql`${t.dueAt} is not null`),
    index('checkout_paid').on(t.paidAt).where(sql`${t.paidAt} is not null`),
    index('checkout_trouble').on(t.id).where(sql`${t.status} in ('mismatch', 'abandoned')`),
    check('checkout_status', oneOf(t.status, CHECKOUT_STATUSES)),
    check('checkout_amount', sql`${t.amountCents} > 0`),
    check('checkout_taken', sql`${t.takenCents} between 0 and ${t.amountCents}`),
    check('checkout_taken_back', sql`${t.takenCents} = 0 or ${t.status} = 'paid'`),
    check('checkout_paid', sql`(${t.status} = 'paid') = (${t.paidAt} is not null)`),
    check('checkout_asked', sql`(${t.status} in ('creating', 'open', 'pending')) = (${t.dueAt} is not null)`),
    check('checkout_known', sql`${t.status} not in ('open', 'pending', 'paid') or ${t.sessionId} is not null`),
    check('checkout_freed', sql`${t.status} <> 'refused' or ${t.idempotencyKey} is null`),
  ],
);

/** Refunds and disputes of payments, as last reported by the payment provider. */
export const reversals = sqliteTable(
  'reversal',
  {
    /** The provider's id of the refund or dispute. */
    id: text().primaryKey(),
    kind: text({ enum: REVERSAL_KINDS }).notNull(),
    paymentIntent: text('payment_intent').notNull(),
    /**
     * Null while no checkout is known to have been paid by it: it may be reported before the payment, or not be ours.
     */
    checkoutId: text('checkout_id').references(() => checkouts.id),
    amountCents: count('amount_cents').notNull(),
    state: text({ enum: REVERSAL_STATES }).notNull(),
    /** Time of the provider's report: an older report changes nothing. */
    asOf: count('as_of').notNull(),
    createdAt: count('created_at').notNull(),
    seal: seal(),
  },
  (t) => [
    index('reversal_payment').on(t.paymentIntent),
    index('reversal_undecided')
      .on(t.checkoutId)
      .where(sql`${t.kind} = 'dispute' and ${t.state} in ('inquiry', 'taken')`),
    check('reversal_kind', oneOf(t.kind, REVERSAL_KINDS)),
    check('reversal_state', oneOf(t.state, REVERSAL_STATES)),
    check('reversal_amount', sql`${t.amountCents} >= 0`),
  ],
);

/** Relevant events of the payment provider, each processed once. Their content is not stored. */
export const paymentEvents = sqliteTable('payment_event', {
  id: text().primaryKey(),
  type: text().notNull(),
  /** The session, refund or dispute of the event. */
  subject: text().notNull(),
  receivedAt: count('received_at').notNull(),
  seal: seal(),
});

/** The position up to which the provider's event list has been read, in Unix seconds. One row. */
export const paymentFeed = sqliteTable(
  'payment_feed',
  {
    id: count().primaryKey(),
    readTo: count('read_to').notNull(),
    dueAt: count('due_at').notNull(),
    seal: seal(),
  },
  (t) => [check('payment_feed_one', sql`${t.id} = 1`)],
);
