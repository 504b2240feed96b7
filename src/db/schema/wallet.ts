import { sql } from 'drizzle-orm';
import { type AnySQLiteColumn, check, index, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { CHANGE_KINDS, CLOSE_REASONS, WALLET_STATUSES } from '../enums.ts';
import { accounts } from './account.ts';
import { count, hash, nanos, oneOf, refersTo, seal } from './columns.ts';
import { masterKeys } from './installation.ts';

export const wallets = sqliteTable(
  'wallet',
  {
    /** The rowid, which its row in `balance` has as well. */
    number: count()
      .primaryKey()
      .$default(() => sql`null` as never),
    id: text().notNull(),
    accountId: refersTo('account_id', () => accounts.id),
    name: text().notNull(),
    status: text({ enum: WALLET_STATUSES }).notNull(),
    budget: nanos('budget_nanos').notNull(),
    returnedCents: count('returned_cents'),
    masterKeyId: refersTo('master_key_id', () => masterKeys.id),
    tokenHash: hash('token_hash').notNull(),
    tokenHint: text('token_hint').notNull(),
    idempotencyKey: text('idempotency_key').notNull(),
    fingerprint: hash('fingerprint').notNull(),
    requestId: text('request_id').notNull(),
    createdAt: count('created_at').notNull(),
    expiresAt: count('expires_at'),
    closeReason: text('close_reason', { enum: CLOSE_REASONS }),
    /** The time at which it stopped spending; null while it is active, and in rows that began to close before this column existed. */
    closingSince: count('closing_since'),
    closedAt: count('closed_at'),
    cleanupAttempts: count('cleanup_attempts').notNull(),
    cleanupError: text('cleanup_error'),
    /** The wallet that its budget comes from; null where that is the account. */
    parentId: text('parent_id').references((): AnySQLiteColumn => wallets.id),
    /** The budgets of its open children. */
    delegated: nanos('delegated_nanos').notNull().default(sql`0`),
    /** The time at which, and the reason why, it was frozen: no new holds (design, section 13). */
    frozenAt: count('frozen_at'),
    freezeReason: text('freeze_reason'),
    /** The refill, as JSON, and the boundary at which it happens next, Unix seconds. */
    refill: text(),
    refillAt: count('refill_at'),
    /** The spending when the current budget period began: at its last refill, or 0. */
    periodSpent: nanos('period_spent_nanos').notNull().default(sql`0`),
    /** The spending at which the next `wallet.threshold` is reached; null when none is left in this period. */
    nextThreshold: nanos('next_threshold_nanos'),
    /** The number of its first operation; null before it. */
    firstOperation: count('first_operation'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('wallet_id').on(t.id),
    uniqueIndex('wallet_token').on(t.tokenHash),
    uniqueIndex('wallet_idempotency').on(t.accountId, t.idempotencyKey),
    index('wallet_account').on(t.accountId, t.id),
    index('wallet_open').on(t.accountId, t.id).where(sql`${t.status} <> 'closed'`),
    index('wallet_expiry').on(t.expiresAt).where(sql`${t.status} = 'active' and ${t.expiresAt} is not null`),
    index('wallet_ending').on(t.id).where(sql`${t.status} in ('closing', 'expired')`),
    index('wallet_parent').on(t.parentId, t.id).where(sql`${t.parentId} is not null`),
    index('wallet_open_child').on(t.parentId, t.id).where(sql`${t.parentId} is not null and ${t.status} <> 'closed'`),
    index('wallet_frozen').on(t.id).where(sql`${t.frozenAt} is not null and ${t.status} = 'active'`),
    index('wallet_refill').on(t.refillAt).where(sql`${t.status} = 'active' and ${t.refillAt} is not null`),
    check('wallet_status', oneOf(t.status, WALLET_STATUSES)),
    check('wallet_name', sql`length(${t.name}) between 1 and 80`),
    check('wallet_delegated', sql`${t.delegated} between 0 and ${t.budget}`),
    check('wallet_refilled', sql`${t.refillAt} is null or ${t.refill} is not null`),
    check('wallet_closed', sql`(${t.status} = 'closed') = (${t.closedAt} is not null)`),
    check('wallet_returned', sql`(${t.status} = 'closed') = (${t.returnedCents} is not null)`),
    check('wallet_reason', sql`(${t.status} = 'active') = (${t.closeReason} is null)`),
  ],
);

/**
 * The figures of each wallet that a chat changes, apart from its record, so that a page has those of a hundred wallets. A trigger
 * adds a new wallet's row; triggers hold `held + spent + delegated <= budget`.
 */
export const balances = sqliteTable(
  'balance',
  {
    number: count()
      .primaryKey()
      .references(() => wallets.number),
    held: nanos('held_nanos').notNull(),
    /** The charges of its own operations, and everything that its closed children have spent. */
    spent: nanos('spent_nanos').notNull(),
    /** The number of its operations, and of answers that were stored as one settled. */
    operationCount: count('operation_count').notNull(),
    answerCount: count('answer_count').notNull(),
    /** The number of its newest operation; null before the first. */
    lastOperation: count('last_operation'),
  },
  (t) => [check('balance_held', sql`${t.held} >= 0`), check('balance_spent', sql`${t.spent} >= 0`)],
);

/** Changes of open wallets: of the budget, by a movement of the journal with this id as its cause, or of the expiry. */
export const walletChanges = sqliteTable(
  'wallet_change',
  {
    id: text().primaryKey(),
    walletId: refersTo('wallet_id', () => wallets.id),
    kind: text({ enum: CHANGE_KINDS }).notNull(),
    /** The amount that the budget changed by; 0 for an extension. */
    amount: nanos('amount_nanos').notNull(),
    /** For an extension: the expiry afterwards, Unix seconds. */
    expiresAt: count('expires_at'),
    /**
     * For a refill: the local date of its boundary; with rhythm and zone, and a number from the third on, where there was another of
     * that date: of another boundary, or in a future that the books have gone back from. A wallet gets one refill a period.
     */
    period: text(),
    idempotencyKey: text('idempotency_key'),
    fingerprint: hash('fingerprint'),
    requestId: text('request_id'),
    reason: text(),
    createdAt: count('created_at').notNull(),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('wallet_change_key').on(t.walletId, t.idempotencyKey).where(sql`${t.idempotencyKey} is not null`),
    uniqueIndex('wallet_change_period').on(t.walletId, t.period).where(sql`${t.period} is not null`),
    index('wallet_change_wallet').on(t.walletId, t.id),
    check('wallet_change_kind', oneOf(t.kind, CHANGE_KINDS)),
    check('wallet_change_period', sql`(${t.kind} = 'refill') = (${t.period} is not null)`),
    check('wallet_change_expiry', sql`(${t.kind} = 'extend') = (${t.expiresAt} is not null)`),
    check('wallet_change_raise', sql`${t.kind} <> 'raise' or ${t.amount} > 0`),
    check('wallet_change_lower', sql`${t.kind} <> 'lower' or ${t.amount} <= 0`),
  ],
);

/**
 * Gateway keys of wallets, for chat and models only. The secret is derived from the row, and `options` are part of it.
 */
export const routerKeys = sqliteTable(
  'router_key',
  {
    id: text().primaryKey(),
    walletId: refersTo('wallet_id', () => wallets.id),
    masterKeyId: refersTo('master_key_id', () => masterKeys.id),
    tokenHash: hash('token_hash').notNull(),
    last4: text().notNull(),
    /** Canonical JSON: the same options give the same key. */
    options: text().notNull(),
    createdAt: count('created_at').notNull(),
    revokedAt: count('revoked_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('router_key_token').on(t.tokenHash),
    uniqueIndex('router_key_options').on(t.walletId, t.options).where(sql`${t.revokedAt} is null`),
  ],
);
