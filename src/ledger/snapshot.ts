import assert from 'node:assert/strict';
import { and, asc, eq, gt, isNull, lte, or, sql } from 'drizzle-orm';
import { fingerprint } from '../base/fingerprint.ts';
import { newId } from '../base/id.ts';
import { formatUsd, Nanos } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { resources, snapshots } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { placeHold } from './hold.ts';
import { reportOnlyOf } from './installation.ts';
import { type Operation, type Outcome, operationOf, settle } from './operation.ts';
import { END_COUNT_MAX, PAGE_COUNT } from './resource.ts';
import { hasChildren, type ListPage, liveBelow } from './wallet.ts';
import { newestBelow } from './wallet-tree.ts';

/** The rows of snapshots, and the money of their days (docs/decisions/0083). */
export type Snapshot = typeof snapshots.$inferSelect;

/** The most snapshots of a wallet that exist at once. */
export const SNAPSHOT_COUNT_MAX = 16;
export const DAY_SECONDS = 86_400;
/** The route of the operations that pay for further days. */
const DAY_ROUTE = 'compute/snapshot/day';
const GIB = 1024n ** 3n;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(snapshots)
    .where(eq(snapshots.id, sql.placeholder('id')))
    .prepare(),
  byOperation: read
    .select()
    .from(snapshots)
    .where(eq(snapshots.operationId, sql.placeholder('operationId')))
    .prepare(),
  liveOfWallet: read
    .select()
    .from(snapshots)
    .where(and(eq(snapshots.walletId, sql.placeholder('walletId')), isNull(snapshots.endedAt)))
    .prepare(),
  liveBelow: read
    .select()
    .from(snapshots)
    .where(sql`${snapshots.id} in ${liveBelow('snapshot')}`)
    .orderBy(asc(snapshots.id))
    .prepare(),
  unmarkedOfWallet: read
    .select({ id: snapshots.id })
    .from(snapshots)
    .where(
      and(eq(snapshots.walletId, sql.placeholder('walletId')), isNull(snapshots.endedAt), isNull(snapshots.endWanted)),
    )
    .limit(END_COUNT_MAX)
    .prepare(),
  unmarkedBelow: read
    .select({ id: snapshots.id })
    .from(snapshots)
    .where(and(sql`${snapshots.id} in ${liveBelow('snapshot')}`, isNull(snapshots.endWanted)))
    .limit(END_COUNT_MAX)
    .prepare(),
  live: read.select().from(snapshots).where(isNull(snapshots.endedAt)).prepare(),
  due: read
    .select({ id: snapshots.id, dueAt: snapshots.dueAt })
    .from(snapshots)
    .where(
      and(
        isNull(snapshots.endedAt),
        lte(snapshots.dueAt, sql.placeholder('now')),
        or(
          gt(snapshots.dueAt, sql.placeholder('afterAt')),
          and(eq(snapshots.dueAt, sql.placeholder('afterAt')), gt(snapshots.id, sql.placeholder('afterId'))),
        ),
      ),
    )
    .orderBy(asc(snapshots.dueAt), asc(snapshots.id))
    .limit(PAGE_COUNT)
    .prepare(),
  nextDue: read
    .select({ at: snapshots.dueAt })
    .from(snapshots)
    .where(isNull(snapshots.endedAt))
    .orderBy(asc(snapshots.dueAt))
    .limit(1)
    .prepare(),
  user: read
    .select({ id: resources.id })
    .from(resources)
    .where(and(eq(resources.snapshotId, sql.placeholder('id')), isNull(resources.endedAt)))
    .limit(1)
    .prepare(),
}));

const idsBelow = newestBelow('snapshot');

/** Returns the snapshot with this id, or undefined. */
export function findSnapshot(read: Reader, id: string): Snapshot | undefined {
  return reads(read).byId.get({ id });
}

/** Returns a snapshot of this wallet. Throws `not_found` alike for an unknown id and for another wallet's. */
export function snapshotOf(read: Reader, walletId: string, id: string): Snapshot {
  const snapshot = findSnapshot(read, id);
  if (!snapshot || snapshot.walletId !== walletId) throw new Refusal('not_found', 'There is no such snapshot.');
  return snapshot;
}

/** Returns the snapshot that an operation took. */
export function snapshotOfOperation(read: Reader, operationId: string): Snapshot | undefined {
  return reads(read).byOperation.get({ operationId });
}

/** Returns the snapshots of a wallet and of all below it, newest first, before the id `before`, at most 100. */
export async function listSnapshotsBelow(
  read: Reader,
  walletId: string,
  { before = '~', limit = PAGE_COUNT }: ListPage = {},
): Promise<Snapshot[]> {
  const ids = await idsBelow(read, walletId, { before, limit });
  return ids.map((id) => findSnapshot(read, id) as Snapshot);
}

/** Returns the snapshots of a wallet that have not been confirmed as removed. */
export function liveSnapshots(read: Reader, walletId: string): Snapshot[] {
  return reads(read).liveOfWallet.all({ walletId });
}

/** Returns the snapshots of a wallet and of all below it that have not been confirmed as removed. */
export function liveSnapshotsBelow(read: Reader, walletId: string): Snapshot[] {
  return hasChildren(read, walletId) ? reads(read).liveBelow.all({ walletId }) : liveSnapshots(read, walletId);
}

/** Returns the ids of live snapshots of a wallet, and of all below it, that are not marked to go, at most `END_COUNT_MAX`. */
export function unmarkedSnapshotsBelow(read: Reader, walletId: string): string[] {
  const { unmarkedBelow, unmarkedOfWallet } = reads(read);
  const unmarked = hasChildren(read, walletId) ? unmarkedBelow : unmarkedOfWallet;
  return unmarked.all({ walletId }).map(({ id }) => id);
}

export type DueSnapshot = { id: string; dueAt: number };

/** Returns snapshots due for a step by `now`, earliest first, at most 100, after `cursor`. */
export function dueSnapshots(read: Reader, now: number, cursor: DueSnapshot = { id: '', dueAt: -1 }): DueSnapshot[] {
  return reads(read).due.all({ now, afterAt: cursor.dueAt, afterId: cursor.id });
}

/** Returns the Unix seconds at which the next snapshot is due. */
export function nextDueSnapshot(read: Reader): number | undefined {
  return reads(read).nextDue.get()?.at;
}

/** Returns a lease that was made from a snapshot and has not ended; undefined where there is none. */
export function leaseFrom(read: Reader, id: string): string | undefined {
  return reads(read).user.get({ id })?.id;
}

/** Returns the size in hundredths of a GiB, rounded up, which its price is for. */
export const hundredthsOf = (bytes: number): number => Number((BigInt(bytes) * 100n + GIB - 1n) / GIB);

/** Returns the price of a day for a size in hundredths of a GiB, rounded up to a whole nano-dollar. */
export const priceOfDay = (price: bigint, hundredths: number): Nanos =>
  Nanos((price * BigInt(hundredths) + 99n) / 100n);

/** Returns the price of a day as JSON, kept on the operation's row. */
export const dayPriceSnapshot = (price: bigint, hundredths: number): string =>
  JSON.stringify({ gib_day_usd: formatUsd(Nanos(price)), size_gib: hundredths / 100 });

/** Returns the outcome of a day that is paid for: what it costs for this size in hundredths of a GiB. */
export const paidDay = ({ price }: Pick<Snapshot, 'price'>, size: number): Outcome<null> & { kind: 'done' } => ({
  kind: 'done',
  charge: priceOfDay(price, size),
  usage: JSON.stringify({ size_gib: size / 100 }),
  answer: null,
});

const hundredthsIn = (usage: string): number => Math.round((parseJson(usage) as { size_gib: number }).size_gib * 100);

export type NewSnapshot = Pick<
  Snapshot,
  'id' | 'resourceId' | 'slot' | 'backend' | 'engine' | 'tag' | 'limitGib' | 'price'
>;

/**
 * Inserts the row of a snapshot that is about to be taken, with the hold of its first day. It is due when nothing drives it any
 * more.
 */
export function insertSnapshot(tx: Tx, order: NewSnapshot, operation: Operation, dueAt: number): void {
  const { walletId, id: operationId, createdAt } = operation;
  const row = withChecksum(snapshots, {
    ...order,
    ...{ walletId, operationId, createdAt, dueAt },
    ...{ status: 'taking' as const, size: null, days: 0, paidUntil: null },
    ...{ endWanted: null, endReason: null, endedAt: null, attempts: 0, lastError: null },
  });
  tx.insert(snapshots).values(row).run();
}

type SnapshotChange = Partial<Omit<Snapshot, 'id' | 'seal'>>;

/** Changes a snapshot. One that has ended stays as it is. */
function update(tx: Tx, id: string, change: SnapshotChange): Snapshot {
  const before = findSnapshot(tx, id);
  assert(before, 'only snapshots that were found are changed');
  if (before.endedAt !== null) return before;
  const after = withNewChecksum(snapshots, before, change);
  return tx.update(snapshots).set(after).where(eq(snapshots.id, id)).returning().get();
}

type ChangeSnapshot = { id: string; change: Pick<SnapshotChange, 'engine' | 'dueAt' | 'attempts' | 'lastError'> };
/** Notes how a step went, and when the next one is due. */
export const noteSnapshot = defineWrite('snapshot.note', (tx, { id, change }: ChangeSnapshot) =>
  update(tx, id, change),
);

/** Returns the change of a snapshot whose first day is paid: it may have had to go before it was there. */
function taken({ endWanted }: Snapshot, size: number, now: number): SnapshotChange {
  const there = { size, days: 1, paidUntil: now + DAY_SECONDS, attempts: 0, lastError: null };
  if (endWanted !== null) return { ...there, status: 'deleting', dueAt: now };
  return { ...there, status: 'ready', dueAt: now + DAY_SECONDS };
}

/** Applies the outcome of taking a snapshot to its row, in the write that settles its operation. */
export function applyTake(tx: Tx, row: Snapshot, outcome: Outcome<Buffer | null>, now: number): Snapshot {
  if (row.status !== 'taking') return row;
  if (outcome.kind === 'unknown') return update(tx, row.id, { dueAt: now, lastError: outcome.reason.slice(0, 500) });
  if (outcome.kind === 'done') return update(tx, row.id, taken(row, hundredthsIn(outcome.usage as string), now));
  const lastError = outcome.reason.slice(0, 500);
  return update(tx, row.id, { status: 'failed', endReason: outcome.code, endedAt: now, lastError });
}

type SettleTake = { id: string; outcome: Outcome<null>; now: number };
/** Settles the take of a snapshot by what its engine shows, unless it was settled in the meantime. */
export const settleTake = defineWrite('snapshot.resolve', (tx, { id, outcome, now }: SettleTake) => {
  const row = findSnapshot(tx, id) as Snapshot;
  const { moved } = settle(tx, row.operationId, outcome, 'answer', now);
  return { moved, row: moved ? applyTake(tx, row, outcome, now) : row };
});

type AcceptTake = { id: string; size: number; now: number };
/** Notes that a snapshot is there whose operation was charged by the operator before that was known. */
export const acceptTake = defineWrite('snapshot.accept', (tx, { id, size, now }: AcceptTake) => {
  const row = findSnapshot(tx, id) as Snapshot;
  return row.status === 'taking' ? update(tx, id, taken(row, size, now)) : row;
});

type EndSnapshot = { id: string; reason: string; now: number };
/** Notes why a snapshot has to go. The first reason stays. */
function wantEnd(tx: Tx, { id, reason, now }: EndSnapshot): Snapshot {
  const row = findSnapshot(tx, id) as Snapshot;
  if (row.endedAt !== null || row.endWanted !== null) return row;
  if (row.status === 'taking') return update(tx, id, { endWanted: reason });
  return update(tx, id, { endWanted: reason, status: 'deleting', dueAt: now, attempts: 0 });
}

/** Begins to remove a snapshot, on its owner's word or because a day cannot be paid. Throws `read_only` while books may be a copy. */
export const deleteSnapshot = defineWrite('snapshot.delete', (tx, order: EndSnapshot) => {
  if (reportOnlyOf(tx)) throw new Refusal('read_only', undefined, { retryAfterSeconds: 60 });
  return wantEnd(tx, order);
});

/** Marks snapshots of a wallet, and of all below it, to go, at most `END_COUNT_MAX`. Returns their number. */
export function endSnapshotsBelow(tx: Tx, walletId: string, now: number): number {
  const ids = unmarkedSnapshotsBelow(tx, walletId);
  for (const id of ids) wantEnd(tx, { id, reason: 'wallet_closed', now });
  return ids.length;
}

/** Notes that a snapshot is gone: removed, or `lost` where nothing asked for that. */
export const endSnapshot = defineWrite('snapshot.end', (tx, { id, now }: { id: string; now: number }) => {
  const { endWanted } = findSnapshot(tx, id) as Snapshot;
  return update(tx, id, { status: 'deleted', endReason: endWanted ?? 'lost', endedAt: now, lastError: null });
});

type AbandonSnapshot = { id: string; reason: string; now: number };
/**
 * Ends the row of a snapshot on the operator's word alone, and gives back what was held for it and never charged. Returns the
 * operation that held it, with its outcome, if one did.
 */
export const endAbandoned = defineWrite('snapshot.abandon', (tx, { id, reason, now }: AbandonSnapshot) => {
  const { operationId } = findSnapshot(tx, id) as Snapshot;
  const outcome: Outcome<null> = { kind: 'refused', code: 'provider_unavailable', reason };
  const { moved } = settle(tx, operationId, outcome, 'operator', now);
  const row = update(tx, id, { status: 'deleted', endReason: 'abandoned', endedAt: now, lastError: reason });
  return { row, released: moved ? { operation: operationOf(tx, operationId), outcome } : undefined };
});

/** Makes the snapshot due at once that an operation was taking when its process ended. */
export function wakeSnapshotOf(tx: Tx, operationId: string, now: number): void {
  const row = snapshotOfOperation(tx, operationId);
  if (row) update(tx, row.id, { dueAt: now });
}

/**
 * Has every live snapshot looked at by `now`, a time earlier than the newest in the books: none is paid for longer than the day that
 * may have begun.
 */
export function goBackWithSnapshots(tx: Tx, now: number): void {
  for (const { id, dueAt, paidUntil } of reads(tx).live.all())
    update(tx, id, {
      dueAt: Math.min(dueAt, now),
      paidUntil: paidUntil && Math.min(paidUntil, now + DAY_SECONDS),
    });
}

/** Returns the end of the day that has begun: days that are over were not paid, and are not paid any more. */
const endOfDay = (paidUntil: number, now: number): number =>
  paidUntil + DAY_SECONDS * (Math.floor((now - paidUntil) / DAY_SECONDS) + 1);

type BuyDay = { id: string; now: number; blocked: string | undefined };
/**
 * Pays for the day of a snapshot that has begun, in one write: nothing has to be asked for it, so its hold is settled at once.
 * Returns the operation; undefined where no day is due. Throws as `placeHold` does.
 */
export const buyDay = defineWrite('snapshot.buy_day', (tx, { id, now, blocked }: BuyDay) => {
  const row = findSnapshot(tx, id) as Snapshot;
  const { size, paidUntil, walletId, price } = row;
  if (row.status !== 'ready' || size === null || paidUntil === null || paidUntil > now) return undefined;
  const until = endOfDay(paidUntil, now);
  const outcome = paidDay(row, size);
  // The day has one key whenever it is tried, so it is paid once; and none that another day had before the clock was set back.
  const idempotencyKey = `${id}.${row.days}`;
  const order = {
    ...{ id: newId('op'), walletId, kind: 'snapshot' as const, route: DAY_ROUTE, idempotencyKey },
    ...{ fingerprint: fingerprint(idempotencyKey), requestId: newId('req'), hold: outcome.charge },
    ...{ price: dayPriceSnapshot(price, size), subject: row.slot },
  };
  const operation = placeHold(tx, order, now, blocked);
  settle(tx, operation.id, outcome, 'answer', now);
  update(tx, id, { days: row.days + 1, paidUntil: until, dueAt: until, attempts: 0, lastError: null });
  return { operation, outcome };
});
