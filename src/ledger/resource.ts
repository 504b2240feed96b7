import assert from 'node:assert/strict';
import { and, asc, desc, eq, gt, isNull, lt, lte, or, sql } from 'drizzle-orm';
import type { Slot } from '../compute/backend.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { type END_REASONS, resources, wallets } from '../db/schema.ts';
import { Refusal } from '../refusal.ts';

export type Resource = typeof resources.$inferSelect;
export type EndReason = (typeof END_REASONS)[number];

/** Page size of lists (interface, section 8). */
export const PAGE_COUNT = 100;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(resources)
    .where(eq(resources.id, sql.placeholder('id')))
    .prepare(),
  byOperation: read
    .select()
    .from(resources)
    .where(eq(resources.operationId, sql.placeholder('operationId')))
    .prepare(),
  ofWallet: read
    .select()
    .from(resources)
    .where(eq(resources.walletId, sql.placeholder('walletId')))
    .orderBy(desc(resources.id))
    .limit(PAGE_COUNT)
    .prepare(),
  liveOfWallet: read
    .select()
    .from(resources)
    .where(and(eq(resources.walletId, sql.placeholder('walletId')), isNull(resources.endedAt)))
    .prepare(),
  live: read.select().from(resources).where(isNull(resources.endedAt)).orderBy(asc(resources.id)).prepare(),
  due: read
    .select({ id: resources.id, dueAt: resources.dueAt })
    .from(resources)
    .where(
      and(
        isNull(resources.endedAt),
        lte(resources.dueAt, sql.placeholder('now')),
        or(
          gt(resources.dueAt, sql.placeholder('afterAt')),
          and(eq(resources.dueAt, sql.placeholder('afterAt')), gt(resources.id, sql.placeholder('afterId'))),
        ),
      ),
    )
    .orderBy(asc(resources.dueAt), asc(resources.id))
    .limit(PAGE_COUNT)
    .prepare(),
  nextDue: read
    .select({ at: resources.dueAt })
    .from(resources)
    .where(isNull(resources.endedAt))
    .orderBy(asc(resources.dueAt))
    .limit(1)
    .prepare(),
  liveOfSlot: read
    .select()
    .from(resources)
    .where(and(isNull(resources.endedAt), eq(resources.slot, sql.placeholder('slot'))))
    .prepare(),
  latest: read.select().from(resources).orderBy(desc(resources.id)).limit(PAGE_COUNT).prepare(),
}));

/** Returns the resource with this id, or undefined. */
export function findResource(read: Reader, id: string): Resource | undefined {
  return reads(read).byId.get({ id });
}

/**
 * Returns a resource of this wallet. Throws `not_found` alike for an unknown id and for another wallet's (design 2.5).
 */
export function resourceOf(read: Reader, walletId: string, id: string): Resource {
  const resource = findResource(read, id);
  if (!resource || resource.walletId !== walletId) throw new Refusal('not_found', 'There is no such resource.');
  return resource;
}

/** Returns the resource that a compute_create operation made. */
export function resourceOfOperation(read: Reader, operationId: string): Resource | undefined {
  return reads(read).byOperation.get({ operationId });
}

/** Returns the latest 100 resources of a wallet, newest first. */
export function listResourcesOfWallet(read: Reader, walletId: string): Resource[] {
  return reads(read).ofWallet.all({ walletId });
}

/** Returns the wallet's resources that have not been confirmed as ended. */
export function liveResources(read: Reader, walletId: string): Resource[] {
  return reads(read).liveOfWallet.all({ walletId });
}

/** Returns the live resources of all backends. */
export function allLiveResources(read: Reader): Resource[] {
  return reads(read).live.all();
}

export function liveResourcesOfSlot(read: Reader, slot: Slot): Resource[] {
  return reads(read).liveOfSlot.all({ slot });
}

/** Returns the latest 100 resources of all wallets, newest first. */
export function latestResources(read: Reader): Resource[] {
  return reads(read).latest.all();
}

/**
 * Returns one page of an account's resources, newest first: those before `before`, of one wallet or of all. `next` is
 * the cursor of the next page; undefined on the last page, even if that one is full.
 */
export function pageResources(
  read: Reader,
  accountId: string,
  before: string | undefined,
  walletId: string | undefined,
): { page: Resource[]; next: string | undefined } {
  const rows = read
    .select({ resource: resources })
    .from(resources)
    .innerJoin(wallets, eq(wallets.id, resources.walletId))
    .where(
      and(
        eq(wallets.accountId, accountId),
        before === undefined ? undefined : lt(resources.id, before),
        walletId === undefined ? undefined : eq(resources.walletId, walletId),
      ),
    )
    .orderBy(desc(resources.id))
    .limit(PAGE_COUNT + 1)
    .all()
    .map((row) => row.resource);
  const page = rows.slice(0, PAGE_COUNT);
  return { page, next: rows.length > PAGE_COUNT ? page.at(-1)?.id : undefined };
}

export type DueResource = { id: string; dueAt: number };

/** Returns live resources due for a step by `now`, earliest first, at most 100, after `cursor`. */
export function dueResources(read: Reader, now: number, cursor: DueResource = { id: '', dueAt: -1 }): DueResource[] {
  return reads(read).due.all({ now, afterAt: cursor.dueAt, afterId: cursor.id });
}

/** Returns the Unix seconds at which the next live resource is due. */
export function nextDueResource(read: Reader): number | undefined {
  return reads(read).nextDue.get()?.at;
}

export function insertResource(tx: Tx, row: Omit<typeof resources.$inferInsert, 'seal'>): void {
  tx.insert(resources).values(withChecksum(resources, row)).run();
}

/** Updates a live resource. An ended resource is final: the database rejects the update. */
export function updateResource(tx: Tx, id: string, change: Partial<typeof resources.$inferInsert>): Resource {
  const before = findResource(tx, id);
  assert(before, 'only resources that are there are changed');
  const after = withNewChecksum(resources, before, change);
  return tx.update(resources).set(after).where(eq(resources.id, id)).returning().get();
}

/**
 * Updates a lease with a finding that may be out of date. A lease that has ended stays as it is. A lease that is to end
 * is `stopping` until then and keeps its first end reason.
 */
export function updateIfLive(tx: Tx, id: string, change: Partial<typeof resources.$inferInsert>): Resource {
  const row = findResource(tx, id) as Resource;
  if (row.endedAt !== null) return row;
  const endWanted = row.endWanted ?? change.endWanted ?? null;
  const status = endWanted === null || change.endedAt != null ? (change.status ?? row.status) : 'stopping';
  return updateResource(tx, id, { ...change, endWanted, status });
}

/** Marks every live lease of a wallet to be ended. */
export function endResourcesOfWallet(tx: Tx, walletId: string, reason: EndReason, now: number): void {
  for (const { id, endWanted } of liveResources(tx, walletId))
    if (endWanted === null) updateIfLive(tx, id, { endWanted: reason, dueAt: now, attempts: 0 });
}

/** Quarantines every live lease: its machine may belong to another installation (docs/decisions/0010). */
export function quarantineResources(tx: Tx, now: number): void {
  for (const { id, quarantinedAt } of allLiveResources(tx))
    if (quarantinedAt === null) updateResource(tx, id, { quarantinedAt: now });
}

/** Releases every lease from quarantine; each is due at once. */
export function releaseResources(tx: Tx, now: number): void {
  for (const { id } of quarantinedResources(tx))
    updateResource(tx, id, { quarantinedAt: null, dueAt: now, attempts: 0, lastError: null });
}

/** Returns the live leases in quarantine. */
export function quarantinedResources(read: Reader): Resource[] {
  return allLiveResources(read).filter((it) => it.quarantinedAt !== null);
}
