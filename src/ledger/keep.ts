import assert from 'node:assert/strict';
import { and, asc, desc, eq, gt, isNull, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { Refusal, type RefusalCode } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { keeps } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { findResource, PAGE_COUNT } from './resource.ts';
import { findWallet, refuseInactive, type Wallet } from './wallet.ts';

/** The rows of leases that are extended while they are busy (docs/decisions/0066). */
export type Keep = typeof keeps.$inferSelect;

/** The route of the operations that are steps. */
export const KEEP_ROUTE = 'compute/keep';

/** The reason why a keep has ended. A refusal code is that of the refused step. */
export type KeepEnd = 'requested' | 'replaced' | 'max_seconds' | 'idle' | 'lease_ended' | RefusalCode;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(keeps)
    .where(eq(keeps.id, sql.placeholder('id')))
    .prepare(),
  byKey: read
    .select()
    .from(keeps)
    .where(and(eq(keeps.walletId, sql.placeholder('walletId')), eq(keeps.idempotencyKey, sql.placeholder('key'))))
    .prepare(),
  byOperation: read
    .select()
    .from(keeps)
    .where(and(eq(keeps.operationId, sql.placeholder('operationId')), sql`${keeps.operationId} is not null`))
    .prepare(),
  newest: read
    .select()
    .from(keeps)
    .where(and(eq(keeps.resourceId, sql.placeholder('resourceId')), gt(keeps.extendSeconds, 0)))
    // Not by id: two ids of the same millisecond, or from a clock that was set back, do not sort in the order of creation.
    .orderBy(desc(isNull(keeps.endedAt)), sql`rowid desc`)
    .limit(1)
    .prepare(),
  active: read
    .select()
    .from(keeps)
    .where(and(isNull(keeps.endedAt), gt(keeps.resourceId, sql.placeholder('after'))))
    .orderBy(asc(keeps.resourceId))
    .limit(PAGE_COUNT)
    .prepare(),
}));

/** Returns the keep with this id, or undefined. */
export function findKeep(read: Reader, id: string): Keep | undefined {
  return reads(read).byId.get({ id });
}

/** Returns the keep of a lease: the one that has not ended, else the newest that began. */
export function keepOf(read: Reader, resourceId: string): Keep | undefined {
  return reads(read).newest.get({ resourceId });
}

/** Returns keeps that have not ended, in the order of their leases, at most 100, after the lease `after`. */
export function activeKeeps(read: Reader, after = ''): Keep[] {
  return reads(read).active.all({ after });
}

export type KeepOrder = Pick<
  Keep,
  'walletId' | 'resourceId' | 'idempotencyKey' | 'fingerprint' | 'requestId' | 'tags' | 'extendSeconds' | 'maxSeconds'
>;
/** `keep` is the row of the order; `ended` is the keep that it replaced or ended. */
type KeepChange = { keep: Keep; ended: Keep | undefined; isNew: boolean };

type ChangeKeep = { order: KeepOrder; now: number };
/**
 * Begins to keep a lease and ends its earlier keep, if any; with `extendSeconds` 0 it only ends that one, and has a row for its
 * key alone. A repetition with the same key and body changes nothing. Throws `idempotency_conflict`, `wallet_closed`, `wallet_expired`,
 * `resource_not_active` and `read_only`.
 */
export const changeKeep = defineWrite('keep.change', (tx, { order, now }: ChangeKeep): KeepChange => {
  const earlier = reads(tx).byKey.get({ walletId: order.walletId, key: order.idempotencyKey });
  if (earlier) {
    if (!earlier.fingerprint.equals(order.fingerprint)) throw new Refusal('idempotency_conflict');
    return { keep: earlier, ended: undefined, isNew: false };
  }
  const active = keepOf(tx, order.resourceId);
  const isEnd = order.extendSeconds === 0;
  if (!isEnd) refuseToKeep(tx, order, now);
  const ended =
    active?.endedAt === null
      ? endKeep.run(tx, { id: active.id, reason: isEnd ? 'requested' : 'replaced', message: null, now })
      : undefined;
  const row = withChecksum(keeps, {
    ...order,
    id: newId('keep'),
    boughtSeconds: 0,
    operationId: null,
    cpuSource: null,
    waiting: null,
    createdAt: now,
    endedAt: isEnd ? now : null,
    endReason: isEnd ? 'requested' : null,
    endMessage: null,
  });
  tx.insert(keeps).values(row).run();
  return { keep: row, ended, isNew: true };
});

function refuseToKeep(tx: Tx, { walletId, resourceId }: KeepOrder, now: number): void {
  refuseInactive(tx, findWallet(tx, walletId) as Wallet, now);
  const row = findResource(tx, resourceId);
  assert(row, 'only leases that were found are kept');
  const hasEnded = row.readyAt !== null && row.expiresAt <= now;
  if (row.endedAt !== null || row.endWanted !== null || hasEnded)
    throw new Refusal('resource_not_active', `The resource is ${row.status}; only a lease that goes on can be kept.`);
}

function updateKeep(tx: Tx, before: Keep, change: Partial<Omit<Keep, 'id' | 'seal'>>): Keep {
  const after = withNewChecksum(keeps, before, change);
  return tx.update(keeps).set(after).where(eq(keeps.id, before.id)).returning().get();
}

function keepWith(read: Reader, id: string): Keep {
  const keep = findKeep(read, id);
  assert(keep, 'only keeps that were found are changed');
  return keep;
}

type EndKeep = { id: string; reason: KeepEnd; message: string | null; now: number };
/** Ends a keep; returns undefined where it had ended before. */
export const endKeep = defineWrite('keep.end', (tx, { id, reason, message, now }: EndKeep): Keep | undefined => {
  const keep = keepWith(tx, id);
  if (keep.endedAt !== null) return undefined;
  return updateKeep(tx, keep, { endedAt: now, endReason: reason, endMessage: message });
});

type NoteKeep = { id: string; change: Partial<Pick<Keep, 'cpuSource' | 'waiting'>> };
/** Notes the source of the processor time, or why no step is bought. */
export const noteKeep = defineWrite('keep.note', (tx, { id, change }: NoteKeep) => {
  const keep = keepWith(tx, id);
  if (keep.endedAt === null) updateKeep(tx, keep, change);
});

/**
 * Throws `conflict` unless this keep may buy this many seconds now: it has not ended, no other step of it is being bought, and its
 * maximum allows it. Runs in the write of the hold.
 */
export function refuseStep(read: Reader, id: string, seconds: number): void {
  const keep = keepWith(read, id);
  const isAllowed =
    keep.endedAt === null && keep.operationId === null && keep.boughtSeconds + seconds <= keep.maxSeconds;
  if (!isAllowed) throw new Refusal('conflict', 'This lease is no longer extended by itself.');
}

/** Records the step that is being bought, in the write of its hold. */
export function beginStep(tx: Tx, id: string, operationId: string): void {
  updateKeep(tx, keepWith(tx, id), { operationId, waiting: null });
}

/** Adds the seconds that a step has bought, in the write that charges it. */
export function finishStep(tx: Tx, operationId: string, seconds: number): void {
  const keep = reads(tx).byOperation.get({ operationId });
  if (keep) updateKeep(tx, keep, { boughtSeconds: keep.boughtSeconds + seconds, operationId: null, waiting: null });
}
