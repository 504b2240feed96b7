import { sql } from 'drizzle-orm';
import { blob, check, index, primaryKey, sqliteTable, text, uniqueIndex } from 'drizzle-orm/sqlite-core';
import { OPERATION_KINDS, OPERATION_OUTCOMES, OPERATION_STATES, SETTLED_BY } from '../enums.ts';
import { count, hash, nanos, oneOf, refersTo, seal } from './columns.ts';
import { wallets } from './wallet.ts';

/** Paid operations: the idempotency key, hold and outcome of one attempt in one row. */
export const operations = sqliteTable(
  'operation',
  {
    /** The order of holds, from 1, without a gap: the rowid. Rows are added at the end of the table. */
    number: count().primaryKey(),
    id: text().notNull(),
    walletId: refersTo('wallet_id', () => wallets.id),
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
     * 1 if its key is free again: it was released, and never answered 200 (design 2.7), which a trigger enforces. A settlement that
     * charges does not set it, so that SQLite leaves the index of the keys alone.
     */
    freed: count(),
    /**
     * The digest of wallet, route and key (`keyDigest`). The unique index of the keys has it in their place, in a quarter of the
     * space.
     */
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
    operationId: refersTo('operation_id', () => operations.id),
    learnedAt: count('learned_at').notNull(),
    seal: seal(),
  },
  (t) => [
    primaryKey({ columns: [t.upstream, t.upstreamModel] }),
    check('learned_bound_permille', sql`${t.permille} >= 1000`),
    check('learned_bound_context', sql`${t.contextTokens} >= 0`),
  ],
);
