import { sql } from 'drizzle-orm';
import { type AnySQLiteColumn, blob, check, index, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { CPU_SOURCES, END_REASONS, PAUSE_STEPS, RESOURCE_STATUSES, SNAPSHOT_STATUSES } from '../enums.ts';
import { count, hash, nanos, oneOf, refersTo, seal } from './columns.ts';
import { operations } from './operation.ts';
import { wallets } from './wallet.ts';

/** Leases made by compute/create: a machine at a backend and the time it was paid for. */
export const resources = sqliteTable(
  'resource',
  {
    id: text().primaryKey(),
    walletId: refersTo('wallet_id', () => wallets.id),
    operationId: refersTo('operation_id', () => operations.id),
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
    /**
     * The time at which it was quarantined: its machine may belong to another installation, so it is left alone
     * (docs/decisions/0010).
     */
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
    walletId: refersTo('wallet_id', () => wallets.id),
    resourceId: refersTo('resource_id', () => resources.id),
    idempotencyKey: text('idempotency_key').notNull(),
    fingerprint: hash('fingerprint').notNull(),
    requestId: text('request_id').notNull(),
    /** The tags of the request as JSON, for each of its operations. */
    tags: text(),
    /** The length of a step, and the most that all steps may buy together; both 0 for an order that only ended the one before it. */
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
    check('keep_step', sql`${t.extendSeconds} >= 0`),
    check('keep_bought', sql`${t.boughtSeconds} >= 0 and ${t.boughtSeconds} <= ${t.maxSeconds}`),
    check('keep_ended', sql`(${t.endedAt} is not null) = (${t.endReason} is not null)`),
  ],
);

/** The disks of leases that wallets keep, each paid for by the day (docs/decisions/0083). */
export const snapshots = sqliteTable(
  'snapshot',
  {
    id: text().primaryKey(),
    walletId: refersTo('wallet_id', () => wallets.id),
    /** The lease that it was taken of. */
    resourceId: refersTo('resource_id', () => resources.id),
    /** The operation that took it and paid for its first day. */
    operationId: refersTo('operation_id', () => operations.id),
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
    /** The seconds for which it was created. Its lease may be longer: it ends this long after it was ready. */
    seconds: count().notNull(),
    /** The end that was set since; null before that. */
    endsAt: count('ends_at'),
    /** The time at which its client had its answer; null while the next identical create adopts it. */
    deliveredAt: count('delivered_at'),
    seal: seal(),
  },
  (t) => [check('sandbox_seconds', sql`${t.seconds} > 0`)],
);
