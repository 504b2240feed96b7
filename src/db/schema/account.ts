import { sql } from 'drizzle-orm';
import { check, index, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { FUNDING_KINDS } from '../enums.ts';
import { count, oneOf, refersTo, seal } from './columns.ts';

export const accounts = sqliteTable(
  'account',
  {
    id: text().primaryKey(),
    name: text().notNull(),
    availableCents: count('available_cents').notNull(),
    reservedCents: count('reserved_cents').notNull(),
    spentCents: count('spent_cents').notNull(),
    welcomeCreditCents: count('welcome_credit_cents').notNull(),
    owedCents: count('owed_cents').notNull(),
    createdAt: count('created_at').notNull(),
    suspendedAt: count('suspended_at'),
    /** The time at which a payment of this account was disputed, while that is undecided: no new wallets. */
    disputedAt: count('disputed_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('account_name').on(t.name),
    check('account_available', sql`${t.availableCents} >= 0`),
    check('account_reserved', sql`${t.reservedCents} >= 0`),
    check('account_spent', sql`${t.spentCents} >= 0`),
    check('account_welcome', sql`${t.welcomeCreditCents} >= 0`),
    check('account_owed', sql`${t.owedCents} >= 0`),
  ],
);

/** Money that came to an account or left it, other than into wallets. */
export const fundings = sqliteTable(
  'funding',
  {
    id: text().primaryKey(),
    accountId: refersTo('account_id', () => accounts.id),
    kind: text({ enum: FUNDING_KINDS }).notNull(),
    amountCents: count('amount_cents').notNull(),
    reason: text(),
    key: text(),
    /** The payment provider's session that paid it, or whose payment was taken back. */
    sessionId: text('session_id'),
    createdAt: count('created_at').notNull(),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('funding_key').on(t.accountId, t.key).where(sql`${t.key} is not null`),
    // However often and in whatever order a payment is reported: one credit per session.
    uniqueIndex('funding_checkout').on(t.sessionId).where(sql`${t.kind} = 'checkout'`),
    index('funding_session').on(t.sessionId).where(sql`${t.sessionId} is not null`),
    index('funding_account').on(t.accountId, t.id),
    check('funding_kind', oneOf(t.kind, FUNDING_KINDS)),
    check('funding_amount', sql`${t.amountCents} > 0`),
    check(
      'funding_source',
      sql`(${t.kind} in ('checkout', 'clawback', 'reinstatement')) = (${t.sessionId} is not null)`,
    ),
  ],
);
