import { sql } from 'drizzle-orm';
import { blob, check, customType, index, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { Nanos } from '../money.ts';

/** A whole number of nano-dollars. Only Nanos goes in, only Nanos comes out. */
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
    /** Since when, and why, existing leases are only reported and none is ended (docs/decisions/0010). */
    reportOnlySince: count('report_only_since'),
    reportOnlyReason: text('report_only_reason'),
    /** Hash of the machine of the last start; null until one was known. */
    machineHash: hash('machine_hash'),
    /** Number of commits that moved no money: with the journal's head it tells every commit from the one before it. */
    quietCommits: count('quiet_commits').notNull(),
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
  sealed: blob({ mode: 'buffer' }),
  sealedBy: text('sealed_by'),
  seal: seal(),
});

/** Where a new part of the journal begins, with no promise about what came before it. */
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
    /** Since when a payment of this account is disputed and undecided: no new wallets. */
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
    kind: text({ enum: ['account', 'operator'] }).notNull(),
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
    check('key_kind', sql`${t.kind} in ('account', 'operator')`),
    check('key_name', sql`length(${t.name}) between 1 and 80`),
  ],
);

export const FUNDING_KINDS = ['credit', 'debit', 'welcome', 'checkout', 'clawback', 'reinstatement'] as const;

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
    check('funding_kind', sql`${t.kind} in ('credit', 'debit', 'welcome', 'checkout', 'clawback', 'reinstatement')`),
    check('funding_amount', sql`${t.amountCents} > 0`),
    check(
      'funding_source',
      sql`(${t.kind} in ('checkout', 'clawback', 'reinstatement')) = (${t.sessionId} is not null)`,
    ),
  ],
);

export const CHECKOUT_STATUSES = [
  'creating',
  'open',
  'pending',
  'paid',
  'expired',
  'failed',
  'refused',
  'mismatch',
  'abandoned',
] as const;

/** Hosted checkouts. The row is written before the payment provider hears of it; its amount is what is credited. */
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
    check(
      'checkout_status',
      sql`${t.status} in ('creating', 'open', 'pending', 'paid', 'expired', 'failed', 'refused', 'mismatch', 'abandoned')`,
    ),
    check('checkout_amount', sql`${t.amountCents} > 0`),
    check('checkout_taken', sql`${t.takenCents} between 0 and ${t.amountCents}`),
    check('checkout_taken_back', sql`${t.takenCents} = 0 or ${t.status} = 'paid'`),
    check('checkout_paid', sql`(${t.status} = 'paid') = (${t.paidAt} is not null)`),
    check('checkout_asked', sql`(${t.status} in ('creating', 'open', 'pending')) = (${t.dueAt} is not null)`),
    check('checkout_known', sql`${t.status} not in ('open', 'pending', 'paid') or ${t.sessionId} is not null`),
    check('checkout_freed', sql`${t.status} <> 'refused' or ${t.idempotencyKey} is null`),
  ],
);

export const REVERSAL_STATES = ['inquiry', 'taken', 'lost', 'returned'] as const;

/** Refunds and disputes of payments, as last reported by the payment provider. */
export const reversals = sqliteTable(
  'reversal',
  {
    /** The provider's id of the refund or dispute. */
    id: text().primaryKey(),
    kind: text({ enum: ['refund', 'dispute'] }).notNull(),
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
    check('reversal_kind', sql`${t.kind} in ('refund', 'dispute')`),
    check('reversal_state', sql`${t.state} in ('inquiry', 'taken', 'lost', 'returned')`),
    check('reversal_amount', sql`${t.amountCents} >= 0`),
  ],
);

/** Relevant events of the payment provider, each processed once. Their content is not kept. */
export const paymentEvents = sqliteTable('payment_event', {
  id: text().primaryKey(),
  type: text().notNull(),
  /** The session, refund or dispute of the event. */
  subject: text().notNull(),
  receivedAt: count('received_at').notNull(),
  seal: seal(),
});

/** One row: how far the provider's event list has been read, in Unix seconds. */
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

export const WALLET_STATUSES = ['active', 'closing', 'expired', 'closed'] as const;
export const CLOSE_REASONS = ['account_request', 'agent_request', 'expired', 'operator'] as const;

export const wallets = sqliteTable(
  'wallet',
  {
    id: text().primaryKey(),
    accountId: text('account_id')
      .notNull()
      .references(() => accounts.id),
    name: text().notNull(),
    status: text({ enum: WALLET_STATUSES }).notNull(),
    budget: nanos('budget_nanos').notNull(),
    held: nanos('held_nanos').notNull(),
    spent: nanos('spent_nanos').notNull(),
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
    closedAt: count('closed_at'),
    cleanupAttempts: count('cleanup_attempts').notNull(),
    cleanupError: text('cleanup_error'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('wallet_token').on(t.tokenHash),
    uniqueIndex('wallet_idempotency').on(t.accountId, t.idempotencyKey),
    index('wallet_account').on(t.accountId, t.id),
    index('wallet_expiry').on(t.expiresAt).where(sql`${t.status} = 'active' and ${t.expiresAt} is not null`),
    index('wallet_ending').on(t.id).where(sql`${t.status} in ('closing', 'expired')`),
    check('wallet_status', sql`${t.status} in ('active', 'closing', 'expired', 'closed')`),
    check('wallet_name', sql`length(${t.name}) between 1 and 80`),
    check('wallet_held', sql`${t.held} >= 0`),
    check('wallet_spent', sql`${t.spent} >= 0`),
    check('wallet_budget', sql`${t.held} + ${t.spent} <= ${t.budget}`),
    check('wallet_closed', sql`(${t.status} = 'closed') = (${t.closedAt} is not null)`),
    check('wallet_settled', sql`${t.status} <> 'closed' or ${t.held} = 0`),
    check('wallet_returned', sql`(${t.status} = 'closed') = (${t.returnedCents} is not null)`),
    check('wallet_reason', sql`(${t.status} = 'active') = (${t.closeReason} is null)`),
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

export const OPERATION_KINDS = ['chat', 'compute_create', 'compute_extend'] as const;
export const OPERATION_STATES = ['reserved', 'uncertain', 'settled'] as const;
export const OPERATION_OUTCOMES = ['charged', 'released'] as const;
/** What settled an operation: the answer to its call, the policy, or the operator. */
export const SETTLED_BY = ['answer', 'policy', 'operator'] as const;

/** Paid operations: the idempotency key, hold and outcome of one attempt in one row. */
export const operations = sqliteTable(
  'operation',
  {
    id: text().primaryKey(),
    walletId: text('wallet_id')
      .notNull()
      .references(() => wallets.id),
    kind: text({ enum: OPERATION_KINDS }).notNull(),
    /** The path below /v1: with the wallet and the key, the scope of idempotency (design 2.7). */
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
    /** What was requested: the model, or the slot. */
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
     * When a create was first answered 200 before its price was captured: from then on the key stays with the resource.
     */
    answeredAt: count('answered_at'),
    seal: seal(),
  },
  (t) => [
    // Unique among unresolved, charged or 200-answered operations: only a definite refusal frees the key (design 2.7).
    uniqueIndex('operation_idempotency')
      .on(t.walletId, t.route, t.idempotencyKey)
      .where(sql`${t.state} <> 'settled' or ${t.outcome} = 'charged' or ${t.answeredAt} is not null`),
    index('operation_wallet').on(t.walletId, t.id),
    index('operation_open').on(t.walletId, t.state).where(sql`${t.state} <> 'settled'`),
    index('operation_uncertain').on(t.uncertainAt).where(sql`${t.state} = 'uncertain'`),
    check('operation_kind', sql`${t.kind} in ('chat', 'compute_create', 'compute_extend')`),
    check('operation_state', sql`${t.state} in ('reserved', 'uncertain', 'settled')`),
    check('operation_outcome', sql`${t.outcome} is null or ${t.outcome} in ('charged', 'released')`),
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

/** Stored answers of charged chats, for replays; pruned after 72 hours. */
export const answers = sqliteTable(
  'answer',
  {
    operationId: text('operation_id')
      .primaryKey()
      .references(() => operations.id),
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
    /** Thousandths of the bound by those settings. */
    permille: count().notNull(),
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

export const RESOURCE_STATUSES = ['provisioning', 'running', 'stopping', 'stopped', 'failed', 'unknown'] as const;
export const END_REASONS = ['requested', 'lease_expired', 'wallet_closed', 'provider_ended', 'create_failed'] as const;

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
    status: text({ enum: RESOURCE_STATUSES }).notNull(),
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
    /** Set when the operator abandoned it: nobody confirmed that its machine is gone. */
    abandonedReason: text('abandoned_reason'),
    /** Since when its machine may belong to another installation, so nothing is done to it (docs/decisions/0010). */
    quarantinedAt: count('questioned_at'),
    seal: seal(),
  },
  (t) => [
    uniqueIndex('resource_tag').on(t.tag),
    uniqueIndex('resource_operation').on(t.operationId),
    index('resource_wallet').on(t.walletId, t.id),
    index('resource_live').on(t.dueAt).where(sql`${t.endedAt} is null`),
    index('resource_live_wallet').on(t.walletId).where(sql`${t.endedAt} is null`),
    check(
      'resource_status',
      sql`${t.status} in ('provisioning', 'running', 'stopping', 'stopped', 'failed', 'unknown')`,
    ),
    check('resource_ended', sql`(${t.endedAt} is not null) = (${t.status} in ('stopped', 'failed'))`),
    check('resource_reason', sql`(${t.endedAt} is not null) = (${t.endReason} is not null)`),
    check('resource_ready', sql`${t.status} <> 'running' or (${t.readyAt} is not null and ${t.ref} is not null)`),
    check('resource_charged', sql`${t.charged} >= 0`),
    check('resource_seconds', sql`${t.purchasedSeconds} > 0`),
  ],
);

/** The journal: append-only, hash-chained double entry of every movement of money (design, section 6). */
export const entries = sqliteTable(
  'entry',
  {
    seq: count().primaryKey(),
    at: count().notNull(),
    /** The cause: the id of an operation, a wallet or a funding. */
    causeId: text('cause_id').notNull(),
    debit: text().notNull(),
    credit: text().notNull(),
    amount: nanos('amount_nanos').notNull(),
    prevHash: hash('prev_hash').notNull(),
    hash: hash('hash').notNull(),
  },
  (t) => [
    index('entry_cause').on(t.causeId),
    check('entry_amount', sql`${t.amount} > 0`),
    check('entry_books', sql`${t.debit} <> ${t.credit}`),
  ],
);
