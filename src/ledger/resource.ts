import assert from 'node:assert/strict';
import {
  and,
  asc,
  count,
  desc,
  eq,
  gt,
  gte,
  inArray,
  isNotNull,
  isNull,
  lt,
  lte,
  or,
  type SQL,
  sql,
} from 'drizzle-orm';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { type END_REASONS, PAUSE_STEPS } from '../db/enums.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { resources, wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { hasChildren, type ListPage, liveBelow } from './wallet.ts';
import { newestBelow } from './wallet-tree.ts';

export type Resource = typeof resources.$inferSelect;
export type EndReason = (typeof END_REASONS)[number];

/** Page size of lists (interface, section 8). */
export const PAGE_COUNT = 100;

/** The most leases, or snapshots, that one write marks to be ended: some 100 ms of the writer. */
export const END_COUNT_MAX = 100;

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
  liveOfWallet: read
    .select()
    .from(resources)
    .where(and(eq(resources.walletId, sql.placeholder('walletId')), isNull(resources.endedAt)))
    .prepare(),
  liveBelow: read
    .select()
    .from(resources)
    .where(sql`${resources.id} in ${liveBelow('resource')}`)
    .orderBy(asc(resources.id))
    .prepare(),
  unmarkedOfWallet: read
    .select({ id: resources.id })
    .from(resources)
    .where(
      and(eq(resources.walletId, sql.placeholder('walletId')), isNull(resources.endedAt), isNull(resources.endWanted)),
    )
    .limit(END_COUNT_MAX)
    .prepare(),
  unmarkedBelow: read
    .select({ id: resources.id })
    .from(resources)
    .where(and(sql`${resources.id} in ${liveBelow('resource')}`, isNull(resources.endWanted)))
    .limit(END_COUNT_MAX)
    .prepare(),
  live: read.select().from(resources).where(isNull(resources.endedAt)).orderBy(asc(resources.id)).prepare(),
  unreachable: read
    .select({
      slot: resources.slot,
      backend: resources.backend,
      engine: resources.engine,
      leases: sql<number>`count(*)`.mapWith(Number),
      since: sql<number>`min(${resources.unreachableSince})`.mapWith(Number),
    })
    .from(resources)
    .where(and(isNull(resources.endedAt), isNotNull(resources.unreachableSince)))
    .groupBy(resources.slot, resources.backend, resources.engine)
    .prepare(),
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
}));

const idsBelow = newestBelow('resource');

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

/** Returns the resources of a wallet and of all below it, newest first, before the id `before`, at most 100. */
export async function listResourcesBelow(
  read: Reader,
  walletId: string,
  { before = '~', limit = PAGE_COUNT }: ListPage = {},
): Promise<Resource[]> {
  const ids = await idsBelow(read, walletId, { before, limit });
  return ids.map((id) => findResource(read, id) as Resource);
}

/** Returns the wallet's resources that have not been confirmed as ended. */
export function liveResources(read: Reader, walletId: string): Resource[] {
  return reads(read).liveOfWallet.all({ walletId });
}

/** Returns the resources of a wallet and of all below it that have not been confirmed as ended. */
export function liveResourcesBelow(read: Reader, walletId: string): Resource[] {
  return hasChildren(read, walletId) ? reads(read).liveBelow.all({ walletId }) : liveResources(read, walletId);
}

/** Returns the ids of live resources of a wallet, and of all below it, that are not marked to be ended, at most `END_COUNT_MAX`. */
export function unmarkedResourcesBelow(read: Reader, walletId: string): string[] {
  const { unmarkedBelow, unmarkedOfWallet } = reads(read);
  const unmarked = hasChildren(read, walletId) ? unmarkedBelow : unmarkedOfWallet;
  return unmarked.all({ walletId }).map(({ id }) => id);
}

/** Returns the live resources of all backends. */
export function allLiveResources(read: Reader): Resource[] {
  return reads(read).live.all();
}

/** Returns, by backend and engine, how many live resources are out of reach on it, and since when the first is. */
export function unreachableResources(read: Reader) {
  return reads(read).unreachable.all();
}

/** Returns the live resources of one slot. */
export function liveResourcesOfSlot(read: Reader, slot: string): Resource[] {
  return reads(read).liveOfSlot.all({ slot });
}

type ResourceFilter = {
  accountId?: string | undefined;
  walletId?: string | undefined;
  status?: Resource['status'] | undefined;
  /** Only resources that have not ended. */
  isLive?: boolean;
  /** Created at or after this, Unix seconds. */
  since?: number | undefined;
};

function matching({ accountId, walletId, status, isLive, since }: ResourceFilter, before?: string): SQL | undefined {
  return and(
    accountId === undefined ? undefined : eq(wallets.accountId, accountId),
    walletId === undefined ? undefined : eq(resources.walletId, walletId),
    status === undefined
      ? undefined
      : inArray(resources.status, status === 'paused' ? ['paused', ...PAUSE_STEPS] : [status]),
    isLive ? isNull(resources.endedAt) : undefined,
    since === undefined ? undefined : gte(resources.createdAt, since),
    before === undefined ? undefined : lt(resources.id, before),
  );
}

/**
 * Returns one page of resources, newest first: those before `before`. `next` is the cursor of the next page; undefined on
 * the last page, even if that one is full.
 */
export function pageResources(
  read: Reader,
  filter: ResourceFilter,
  { before, limit = PAGE_COUNT }: ListPage = {},
): { page: Resource[]; next: string | undefined } {
  const rows = read
    .select({ resource: resources })
    .from(resources)
    .innerJoin(wallets, eq(wallets.id, resources.walletId))
    .where(matching(filter, before))
    .orderBy(desc(resources.id))
    .limit(limit + 1)
    .all()
    .map((row) => row.resource);
  const page = rows.slice(0, limit);
  return { page, next: rows.length > limit ? page.at(-1)?.id : undefined };
}

/**
 * Returns the live resource whose deadline comes first, or last, among those without an ordered end; undefined if there is none.
 */
export function liveByDeadline(read: Reader, filter: ResourceFilter, which: 'first' | 'last'): Resource | undefined {
  const [by, then] =
    which === 'first' ? [asc(resources.expiresAt), asc(resources.id)] : [desc(resources.expiresAt), desc(resources.id)];
  return read
    .select({ resource: resources })
    .from(resources)
    .innerJoin(wallets, eq(wallets.id, resources.walletId))
    .where(and(matching({ ...filter, isLive: true }), isNull(resources.endWanted)))
    .orderBy(by, then)
    .limit(1)
    .get()?.resource;
}

/** Counts the resources that `pageResources` pages through. */
export function countResources(read: Reader, filter: ResourceFilter): number {
  const counted = read
    .select({ count: count() })
    .from(resources)
    .innerJoin(wallets, eq(wallets.id, resources.walletId))
    .where(matching(filter))
    .get();
  return Number(counted?.count);
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

/** Inserts the row of a new resource, with its checksum. */
export function insertResource(tx: Tx, row: Omit<typeof resources.$inferInsert, 'seal'>): void {
  tx.insert(resources).values(withChecksum(resources, row)).run();
}

export type ResourceChange = Partial<Omit<typeof resources.$inferSelect, 'seal'>>;

/** Updates a live resource. An ended resource is final: the database rejects the update. */
export function updateResource(tx: Tx, id: string, change: ResourceChange): Resource {
  const before = findResource(tx, id);
  assert(before, 'only resources that are there are changed');
  const after = withNewChecksum(resources, before, change);
  return tx.update(resources).set(after).where(eq(resources.id, id)).returning().get();
}

/**
 * Updates a lease with a finding that may be out of date. A lease that has ended stays as it is. A lease that has to end is
 * `stopping` until then and keeps its first end reason.
 */
export function updateIfLive(tx: Tx, id: string, change: ResourceChange): Resource {
  const row = findResource(tx, id) as Resource;
  if (row.endedAt !== null) return row;
  const endWanted = row.endWanted ?? change.endWanted ?? null;
  const status = endWanted === null || change.endedAt != null ? (change.status ?? row.status) : 'stopping';
  return updateResource(tx, id, { ...change, endWanted, status });
}

type ChangeResource = { id: string; values: ResourceChange };
export const changeResource = defineWrite('resource.change', (tx, { id, values }: ChangeResource) =>
  updateIfLive(tx, id, values),
);

/** Makes leases due at `dueAt`. */
export const wakeResources = defineWrite(
  'resource.wake',
  (tx, { ids, dueAt }: { ids: readonly string[]; dueAt: number }) => {
    for (const id of ids) updateIfLive(tx, id, { dueAt });
  },
);

/** Marks live leases of a wallet, and of all below it, to be ended, at most `END_COUNT_MAX`. Returns their number. */
export function endResourcesBelow(tx: Tx, walletId: string, reason: EndReason, now: number): number {
  const ids = unmarkedResourcesBelow(tx, walletId);
  for (const id of ids) updateIfLive(tx, id, { endWanted: reason, dueAt: now, attempts: 0 });
  return ids.length;
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
