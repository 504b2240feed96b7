import { sql } from 'drizzle-orm';
import {
  type AnySQLiteColumn,
  blob,
  check,
  customType,
  index,
  primaryKey,
  sqliteTable,
  text,
  uniqueIndex,
} from 'drizzle-orm/sqlite-core';
import { Nanos } from '../base/money.ts';
import {
  CHANGE_KINDS,
  CHECKOUT_STATUSES,
  CLOSE_REASONS,
  CPU_SOURCES,
  END_REASONS,
  EVENT_TYPES,
  FUNDING_KINDS,
  KEY_KINDS,
  OPERATION_KINDS,
  OPERATION_OUTCOMES,
  OPERATION_STATES,
  PAUSE_STEPS,
  RESOURCE_STATUSES,
  REVERSAL_KINDS,
  REVERSAL_STATES,
  SESSION_KINDS,
  SETTLED_BY,
  SNAPSHOT_STATUSES,
  WALLET_STATUSES,
} from './enums.ts';

/** A whole number of nano-dollars, as Nanos on both sides. */
export const nanos = customType<{ data: Nanos; driverData: bigint }>({
  dataType: () => 'integer',
  fromDriver: Nanos,
  toDriver(value) {
    if (typeof value !== 'bigint') throw new TypeError('nanos: a bigint is expected');
    return value;
  },
});

/** Cents, seconds, counts: a safe integer. */
export const count = customType<{ data: number; driverData: bigint }>({
  dataType: () => 'integer',
  fromDriver: Number,
  toDriver(value: number | null) {
    // drizzle keeps a null from the encoder for a value, but not for a placeholder of a prepared statement.
    if (value === null) return null as never;
    if (!Number.isSafeInteger(value)) throw new TypeError(`a whole number is expected: ${value}`);
    return BigInt(value);
  },
});

/** The condition that a column has one of these values. */
const oneOf = (column: AnySQLiteColumn, values: readonly string[]) =>
  sql`${column} in (${sql.raw(values.map((it) => `'${it}'`).join(', '))})`;

const hash = (name: string) => blob(name, { mode: 'buffer' });

/** The row's checksum (src/db/checksum.ts). */
const seal = () => count().notNull();

/** One row: the state of this installation. */
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

/** Sign-in identities: an account by issuer and subject, never by e-mail address (design 2.13). */
export const identities = sqliteTable(
  'identity',
  {
    issuer: text().notNull(),
    subject: text().notNull(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id),
    createdAt: count('created_at').notNull(),
    seal: seal(),
  },
  (t) => [primaryKey({ columns: [t.issuer, t.subject] }), index('identity_account').on(t.accountId)],
);

/** Account keys and operator keys: hashes only. */
export const keys = sqliteTable(
  'key',
  {
    id: text().primaryKey(),
    kind: text({ enum: KEY_KINDS }).notNull(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id),
    name: text().notNull(),
    tokenHash: hash('token_hash').notNull(),
    last4: text().notNull(),
    mintedBy: text('minted_by').notNull(),
    createdAt: count('created_at').notNull(),
    lastUsedAt: count('last_used_at'),
    revokedAt: count('revoked_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('key_token').on(t.tokenHash),
    index('key_account').on(t.accountId, t.id),
    check('key_kind', oneOf(t.kind, KEY_KINDS)),
    check('key_name', sql`length(${t.name}) between 1 and 80`),
  ],
);

/** Passkeys of the operators: public keys only. A row stays when its passkey is removed. */
export const passkeys = sqliteTable(
  'passkey',
  {
    id: text().primaryKey(),
    name: text().notNull(),
    /** The address of the page that it was made at, and signs in at. */
    origin: text().notNull(),
    credentialId: blob('credential_id', { mode: 'buffer' }).notNull(),
    /** In the form of COSE (RFC 9052). */
    publicKey: blob('public_key', { mode: 'buffer' }).notNull(),
    /** The number of uses as the authenticator counts them; 0 if it does not count. */
    useCount: count('use_count').notNull(),
    /** Null: the identity provider signs its users in itself. A passkey that has both signs nobody in. */
    subject: text(),
    rule: hash('rule'),
    createdAt: count('created_at').notNull(),
    lastUsedAt: count('last_used_at'),
    removedAt: count('removed_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('passkey_credential').on(t.credentialId),
    check('passkey_name', sql`length(${t.name}) between 1 and 80`),
    check('passkey_uses', sql`${t.useCount} >= 0`),
    check('passkey_rule', sql`(${t.subject} is null) = (${t.rule} is null)`),
  ],
);

/** Sessions of the page, and the links that open one: hashes only. A row is deleted when its session ends. */
export const browserSessions = sqliteTable(
  'browser_session',
  {
    id: text().primaryKey(),
    kind: text({ enum: SESSION_KINDS }).notNull(),
    /** The account of the session; null for the operator's. */
    accountId: text('account_id').references(() => accounts.id),
    /** The account key that opened it: the session ends with the key. */
    keyId: text('key_id').references(() => keys.id),
    /** The passkey that opened it: the session ends with the passkey. */
    passkeyId: text('passkey_id').references(() => passkeys.id),
    /** The user of the identity provider that an operator's session is of. Null for a session from a link, and for an account's. */
    subject: text(),
    /** A hash of the settings that made this user an operator: the session ends when they change. */
    rule: hash('rule'),
    tokenHash: hash('token_hash').notNull(),
    createdAt: count('created_at').notNull(),
    /** The end of the session, which no use postpones. */
    expiresAt: count('expires_at').notNull(),
    lastUsedAt: count('last_used_at').notNull(),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('browser_session_token').on(t.tokenHash),
    index('browser_session_expiry').on(t.expiresAt),
    check('browser_session_kind', oneOf(t.kind, SESSION_KINDS)),
    check('browser_session_account', sql`(${t.kind} = 'account') = (${t.accountId} is not null)`),
    check('browser_session_rule', sql`(${t.subject} is null) = (${t.rule} is null)`),
    check('browser_session_subject', sql`${t.subject} is null or ${t.kind} = 'operator'`),
  ],
);

/** Money that came to an account or left it, other than into wallets. */
export const fundings = sqliteTable(
  'funding',
  {
    id: text().primaryKey(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id),
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

/** Hosted checkouts. The row is written before the request to the payment provider; its amount is the amount credited. */
export const checkouts = sqliteTable(
  'checkout',
  {
    id: text().primaryKey(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id),
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

export const wallets = sqliteTable(
  'wallet',
  {
    /** The rowid, which its row in `balance` has as well. */
    number: count()
      .primaryKey()
      .$default(() => sql`null` as never),
    id: text().notNull(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id),
    name: text().notNull(),
    status: text({ enum: WALLET_STATUSES }).notNull(),
    budget: nanos('budget_nanos').notNull(),
    returnedCents: count('returned_cents'),
    masterKeyId: text('master_key_id')
      .notNull()
      .references(() => masterKeys.id),
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
    index('wallet_expiry').on(t.expiresAt).where(sql`${t.status} = 'active' and ${t.expiresAt} is not null`),
    index('wallet_ending').on(t.id).where(sql`${t.status} in ('closing', 'expired')`),
    index('wallet_parent').on(t.parentId, t.id).where(sql`${t.parentId} is not null`),
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
 * The figures of each wallet that a chat changes. They are apart from its record, so that a page has those of a hundred wallets. A
 * trigger adds the row of a new wallet, and triggers hold `held + spent + delegated <= budget`.
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
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    kind: text({ enum: CHANGE_KINDS }).notNull(),
    /** The amount that the budget changed by; 0 for an extension. */
    amount: nanos('amount_nanos').notNull(),
    /** For an extension: the expiry afterwards, Unix seconds. */
    expiresAt: count('expires_at'),
    /**
     * For a refill: the local date of its boundary, with rhythm and zone if another boundary of that date came before. A wallet
     * gets one refill a period.
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
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    masterKeyId: text('master_key_id')
      .notNull()
      .references(() => masterKeys.id),
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

/** Paid operations: the idempotency key, hold and outcome of one attempt in one row. */
export const operations = sqliteTable(
  'operation',
  {
    /** The order of holds, from 1, without a gap: the rowid. Rows are added at the end of the table. */
    number: count().primaryKey(),
    id: text().notNull(),
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    kind: text({ enum: OPERATION_KINDS }).notNull(),
    /** The path below /v1: together with the wallet and the key, the scope of idempotency (design 2.7). */
    route: text().notNull(),
    idempotencyKey: text('idempotency_key').notNull(),
    fingerprint: hash('fingerprint').notNull(),
    requestId: text('request_id').notNull(),
    state: text({ enum: OPERATION_STATES }).notNull(),
    outcome: text({ enum: OPERATION_OUTCOMES }),
    settledBy: text('settled_by', { enum: SETTLED_BY }),
    hold: nanos('hold_nanos').notNull(),
    charge: nanos('charge_nanos'),
    /** The price used and the bounds, as JSON: enough to compute hold and charge again. */
    price: text().notNull(),
    usage: text(),
    /** The subject of the request: the model, or the slot. */
    subject: text().notNull(),
    /** The lease that it creates or extends. */
    resourceId: text('resource_id'),
    /** For an extension: the absolute new end of the lease, Unix seconds. */
    targetAt: count('target_at'),
    /** Why it was refused, became uncertain, or was resolved by hand. */
    reason: text(),
    createdAt: count('created_at').notNull(),
    uncertainAt: count('uncertain_at'),
    settledAt: count('settled_at'),
    /**
     * Unix seconds of the first 200 for a create whose price was not captured yet: since then the key stays with the
     * resource.
     */
    answeredAt: count('answered_at'),
    /** The caller's tags: a JSON object of strings, or null. */
    tags: text(),
    /**
     * 1 if its key is free again: it was released, and never answered 200 (design 2.7). A trigger holds the column to that. A
     * settlement that charges leaves it as it is, so that SQLite leaves the index of the keys alone.
     */
    freed: count(),
    /** The digest of wallet, route and key (`keyDigest`). The unique index of the keys has it in their place, in a quarter of the space. */
    keyDigest: blob('key_digest', { mode: 'buffer' }).notNull(),
    /** The number of the journal's entry for the hold, and of the first for the settlement; null where no money moved. */
    holdEntry: count('hold_entry'),
    settleEntry: count('settle_entry'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('operation_id').on(t.id),
    uniqueIndex('operation_idempotency').on(t.keyDigest).where(sql`${t.freed} is null`),
    // By wallet within each block of successive numbers (src/ledger/wallet-operations.ts): new operations share the last few pages.
    index('operation_wallet').on(sql`number >> 8`, t.walletId),
    index('operation_open').on(t.walletId, t.state).where(sql`${t.state} <> 'settled'`),
    index('operation_charged').on(t.settledAt).where(sql`${t.outcome} = 'charged'`),
    index('operation_uncertain').on(t.uncertainAt).where(sql`${t.state} = 'uncertain'`),
    check('operation_kind', oneOf(t.kind, OPERATION_KINDS)),
    check('operation_state', oneOf(t.state, OPERATION_STATES)),
    check('operation_outcome', sql`${t.outcome} is null or ${oneOf(t.outcome, OPERATION_OUTCOMES)}`),
    check('operation_settled', sql`(${t.state} = 'settled') = (${t.outcome} is not null)`),
    check('operation_charge', sql`(${t.state} = 'settled') = (${t.charge} is not null)`),
    check('operation_decided', sql`(${t.state} = 'settled') = (${t.settledBy} is not null)`),
    check('operation_time', sql`(${t.state} = 'settled') = (${t.settledAt} is not null)`),
    check('operation_doubt', sql`${t.state} <> 'uncertain' or ${t.uncertainAt} is not null`),
    check('operation_hold', sql`${t.hold} >= 0`),
    check('operation_bound', sql`${t.charge} is null or ${t.charge} between 0 and ${t.hold}`),
    check('operation_released', sql`${t.outcome} <> 'released' or ${t.charge} = 0`),
  ],
);

/** Stored answers of charged chats, for replays; pruned after `keptUntil`: 72 hours, 10 minutes for a request without a key. */
export const answers = sqliteTable(
  'answer',
  {
    /** The number of its operation. */
    number: count()
      .primaryKey()
      .references(() => operations.number),
    operationId: text('operation_id').notNull(),
    body: blob({ mode: 'buffer' }).notNull(),
    keptUntil: count('kept_until').notNull(),
    seal: seal(),
  },
  (t) => [index('answer_kept').on(t.keptUntil)],
);

/**
 * Bounds raised because a model server counted more tokens than the bound; later prompts to that model are bounded by
 * these.
 */
export const learnedBounds = sqliteTable(
  'learned_bound',
  {
    upstream: text().notNull(),
    upstreamModel: text('upstream_model').notNull(),
    /** The settings that the bound was computed from; ignored once they change. */
    basis: text().notNull(),
    /** Thousandths of the bound by those settings, and when such a factor was last seen. */
    permille: count().notNull(),
    factorAt: count('factor_at'),
    /** Tokens that the server adds to each prompt, and when this number was last seen. Null in rows of earlier versions. */
    overheadTokens: count('overhead_tokens'),
    overheadAt: count('overhead_at'),
    /** The longest prompt counted, if above the configured context length; else 0. */
    contextTokens: count('context_tokens').notNull(),
    /** The operation that raised it last. */
    operationId: text('operation_id')
      .notNull()
      .references(() => operations.id),
    learnedAt: count('learned_at').notNull(),
    seal: seal(),
  },
  (t) => [
    primaryKey({ columns: [t.upstream, t.upstreamModel] }),
    check('learned_bound_permille', sql`${t.permille} >= 1000`),
    check('learned_bound_context', sql`${t.contextTokens} >= 0`),
  ],
);

/** Leases made by compute/create: a machine at a backend and the time it was paid for. */
export const resources = sqliteTable(
  'resource',
  {
    id: text().primaryKey(),
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    operationId: text('operation_id')
      .notNull()
      .references(() => operations.id),
    slot: text().notNull(),
    backend: text().notNull(),
    tag: text().notNull(),
    /** The backend's own reference, null until known. */
    ref: text(),
    spec: text().notNull(),
    status: text({ enum: [...RESOURCE_STATUSES, ...PAUSE_STEPS] }).notNull(),
    priceHourly: nanos('price_hourly_nanos').notNull(),
    charged: nanos('charged_nanos').notNull(),
    purchasedSeconds: count('purchased_seconds').notNull(),
    /** The longest total duration, and the provider's own end date. */
    maxSeconds: count('max_seconds').notNull(),
    endsBy: count('ends_by'),
    createdAt: count('created_at').notNull(),
    /** If not ready by then, it is destroyed and released. */
    readyBy: count('ready_by').notNull(),
    readyAt: count('ready_at'),
    /** The end of the paid time; while provisioning, the backend's first deadline. */
    expiresAt: count('expires_at').notNull(),
    /** Why it has to end; null while it may live. */
    endWanted: text('end_wanted', { enum: END_REASONS }),
    endReason: text('end_reason', { enum: END_REASONS }),
    endedAt: count('ended_at'),
    /** The time of its next step; below, the last error. */
    dueAt: count('due_at').notNull(),
    attempts: count().notNull(),
    lastError: text('last_error'),
    /** Number of consecutive lists without it, and the time of the first. */
    absentCount: count('absent_count').notNull(),
    absentSince: count('absent_since'),
    /** The operator's reason for abandoning it: its machine is not confirmed as gone. */
    abandonedReason: text('abandoned_reason'),
    /** The time at which it was quarantined: its machine may belong to another installation, so it is left alone (docs/decisions/0010). */
    quarantinedAt: count('questioned_at'),
    /** The identity of the engine that was asked for its machine; null where that is not known (docs/decisions/0080). */
    engine: text(),
    /** The time since which another engine answers in place of its own. */
    unreachableSince: count('unreachable_since'),
    /** The agent's own list of targets, as JSON, which narrows the operator's; null for all of that. */
    egressAllow: text('egress_allow'),
    /** The time since which it is paused, and the paid seconds that it had left then. */
    pausedAt: count('paused_at'),
    secondsLeft: count('seconds_left'),
    /** The snapshot that its machine was made from. */
    snapshotId: text('snapshot_id').references((): AnySQLiteColumn => snapshots.id),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('resource_tag').on(t.tag),
    uniqueIndex('resource_operation').on(t.operationId),
    index('resource_wallet').on(t.walletId, t.id),
    index('resource_live').on(t.dueAt).where(sql`${t.endedAt} is null`),
    index('resource_live_wallet').on(t.walletId).where(sql`${t.endedAt} is null`),
    index('resource_live_snapshot').on(t.snapshotId).where(sql`${t.snapshotId} is not null and ${t.endedAt} is null`),
    check('resource_status', oneOf(t.status, [...RESOURCE_STATUSES, ...PAUSE_STEPS])),
    check('resource_ended', sql`(${t.endedAt} is not null) = (${t.status} in ('stopped', 'failed'))`),
    check('resource_reason', sql`(${t.endedAt} is not null) = (${t.endReason} is not null)`),
    check('resource_ready', sql`${t.status} <> 'running' or (${t.readyAt} is not null and ${t.ref} is not null)`),
    check(
      'resource_paused',
      sql`${t.status} not in ('pausing', 'paused', 'resuming') or
        (${t.readyAt} is not null and ${t.ref} is not null and ${t.pausedAt} is not null and ${t.secondsLeft} > 0)`,
    ),
    check('resource_charged', sql`${t.charged} >= 0`),
    check('resource_seconds', sql`${t.purchasedSeconds} > 0`),
  ],
);

/**
 * Orders by `POST /v1/compute/keep`: to extend a lease by short steps while its machine is busy (docs/decisions/0066). At most one
 * of a lease has not ended; earlier ones stay.
 */
export const keeps = sqliteTable(
  'keep',
  {
    id: text().primaryKey(),
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    resourceId: text('resource_id')
      .notNull()
      .references(() => resources.id),
    idempotencyKey: text('idempotency_key').notNull(),
    fingerprint: hash('fingerprint').notNull(),
    requestId: text('request_id').notNull(),
    /** The tags of the request as JSON, for each of its operations. */
    tags: text(),
    /** The length of a step, and the most that all steps may buy together. */
    extendSeconds: count('extend_seconds').notNull(),
    maxSeconds: count('max_seconds').notNull(),
    /** The seconds that its charged operations have bought. */
    boughtSeconds: count('bought_seconds').notNull(),
    /** The step that is being bought, from its hold until it is known to be charged. No other step begins before that. */
    operationId: text('operation_id').references(() => operations.id),
    /** The source of the machine's last processor time; null before the first reading. */
    cpuSource: text('cpu_source', { enum: CPU_SOURCES }),
    /** The reason why the due step is not bought yet: `idle`, or the code of a refusal that may pass. */
    waiting: text(),
    createdAt: count('created_at').notNull(),
    endedAt: count('ended_at'),
    /** `requested`, `replaced`, `max_seconds`, `idle`, `lease_ended`, or the code of the refusal of a step. */
    endReason: text('end_reason'),
    endMessage: text('end_message'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('keep_key').on(t.walletId, t.idempotencyKey),
    uniqueIndex('keep_active').on(t.resourceId).where(sql`${t.endedAt} is null`),
    uniqueIndex('keep_operation').on(t.operationId).where(sql`${t.operationId} is not null`),
    index('keep_resource').on(t.resourceId, t.id),
    check('keep_step', sql`${t.extendSeconds} > 0`),
    check('keep_bought', sql`${t.boughtSeconds} >= 0 and ${t.boughtSeconds} <= ${t.maxSeconds}`),
    check('keep_ended', sql`(${t.endedAt} is not null) = (${t.endReason} is not null)`),
  ],
);

/** The disks of leases as images of their wallets, each paid for by the day (docs/decisions/0083). */
export const snapshots = sqliteTable(
  'snapshot',
  {
    id: text().primaryKey(),
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    /** The lease that it was taken of. */
    resourceId: text('resource_id')
      .notNull()
      .references(() => resources.id),
    /** The operation that took it and paid for its first day. */
    operationId: text('operation_id')
      .notNull()
      .references(() => operations.id),
    slot: text().notNull(),
    backend: text().notNull(),
    /** The identity of the engine that has it; null where that is not known. */
    engine: text(),
    /** The engine's name for it. */
    tag: text().notNull(),
    status: text({ enum: SNAPSHOT_STATUSES }).notNull(),
    /** The most that it may take, in GiB, and what it takes, in hundredths of a GiB. */
    limitGib: count('limit_gib').notNull(),
    size: count('size_hundredths'),
    /** The price of a GiB for a day. */
    price: nanos('price_nanos').notNull(),
    /** The number of days that were paid, and when the last of them ends. */
    days: count().notNull(),
    paidUntil: count('paid_until'),
    createdAt: count('created_at').notNull(),
    /** Why it has to go; null while it may stay. `requested`, `wallet_closed`, or the code of the refusal of a day. */
    endWanted: text('end_wanted'),
    /** As `end_wanted`, or `lost`; for one that was never taken, the code of that refusal. */
    endReason: text('end_reason'),
    endedAt: count('ended_at'),
    /** The time of its next step; below, the failures of it, and the last error. */
    dueAt: count('due_at').notNull(),
    attempts: count().notNull(),
    lastError: text('last_error'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('snapshot_tag').on(t.tag),
    uniqueIndex('snapshot_operation').on(t.operationId),
    index('snapshot_wallet').on(t.walletId, t.id),
    index('snapshot_live').on(t.dueAt).where(sql`${t.endedAt} is null`),
    index('snapshot_live_wallet').on(t.walletId).where(sql`${t.endedAt} is null`),
    check('snapshot_status', oneOf(t.status, SNAPSHOT_STATUSES)),
    check('snapshot_ended', sql`(${t.endedAt} is not null) = (${t.status} in ('deleted', 'failed'))`),
    check('snapshot_reason', sql`(${t.endedAt} is not null) = (${t.endReason} is not null)`),
    check('snapshot_ready', sql`${t.status} <> 'ready' or (${t.size} is not null and ${t.paidUntil} is not null)`),
    check('snapshot_deleting', sql`${t.status} <> 'deleting' or ${t.endWanted} is not null`),
    check('snapshot_size', sql`${t.size} is null or ${t.size} between 0 and ${t.limitGib} * 100`),
    check('snapshot_days', sql`${t.days} >= 0`),
  ],
);

/** The leases that E2B's SDKs have created, with what only that wire knows of them. */
export const sandboxes = sqliteTable(
  'sandbox',
  {
    resourceId: text('resource_id')
      .primaryKey()
      .references(() => resources.id),
    template: text().notNull(),
    /** The caller's own names and values, as JSON. */
    metadata: text().notNull(),
    /** The variables of its commands, as encrypted JSON; null where there are none. */
    environment: blob({ mode: 'buffer' }),
    /** The seconds for which it was created. Its lease may be longer: it ends so long after it was ready. */
    seconds: count().notNull(),
    /** The end that was set since; null before that. */
    endsAt: count('ends_at'),
    /** The time at which its client had its answer; null while the next identical create adopts it. */
    deliveredAt: count('delivered_at'),
    seal: seal(),
  },
  (t) => [check('sandbox_seconds', sql`${t.seconds} > 0`)],
);

/** Events for receivers, each written in the transaction that caused it (docs/decisions/0037). Kept for 30 days. */
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

/**
 * The number of rows added to each table, less those deleted (src/db/tally.ts), so that a lost row is noticed. Triggers count the
 * added rows; of `answer` only those that wallets do not count.
 */
export const tallies = sqliteTable('tally', {
  table: text('table_name').primaryKey(),
  rows: count('row_count').notNull(),
});
