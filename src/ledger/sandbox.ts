import assert from 'node:assert/strict';
import { and, asc, desc, eq, isNull, lt, lte, sql } from 'drizzle-orm';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { operations, resources, sandboxes, wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { openExtensionsOf } from './operation.ts';
import { findResource, type Resource } from './resource.ts';

/** The rows of leases that E2B's SDKs have created. */
export type Sandbox = typeof sandboxes.$inferSelect;
/** A sandbox and its lease. */
export type SandboxLease = { sandbox: Sandbox; resource: Resource };

/** The route of the operations that create sandboxes. */
export const SANDBOX_ROUTE = 'e2b/create';
/** The route of the operations that lengthen sandboxes: each buys time up to the end that its sandbox is to have. */
export const LENGTHEN_ROUTE = 'e2b/timeout';

/** The end that a sandbox has by its own row, in SQL: its lease may be longer. Null before it is ready. */
const END = sql<number | null>`coalesce(${sandboxes.endsAt}, ${resources.readyAt} + ${sandboxes.seconds})`;
const LIVE = and(isNull(resources.endedAt), isNull(resources.endWanted));
/** The lease is not in quarantine, where nothing is ended, and no more of it is being paid for at the moment. */
const MAY_END = and(
  isNull(resources.quarantinedAt),
  sql`not exists (select 1 from ${operations} where ${operations.walletId} = ${resources.walletId}
    and ${operations.state} <> 'settled' and ${operations.resourceId} = ${resources.id}
    and ${operations.kind} = 'compute_extend')`,
);

const reads = prepare((read: Reader) => {
  const both = () =>
    read
      .select({ sandbox: sandboxes, resource: resources })
      .from(sandboxes)
      .innerJoin(resources, eq(resources.id, sandboxes.resourceId));
  return {
    byId: read
      .select()
      .from(sandboxes)
      .where(eq(sandboxes.resourceId, sql.placeholder('id')))
      .prepare(),
    ofWallet: both()
      .where(and(LIVE, eq(resources.walletId, sql.placeholder('walletId'))))
      .orderBy(desc(resources.createdAt), desc(resources.id))
      .prepare(),
    live: read
      .select({ id: resources.id, masterKeyId: wallets.masterKeyId })
      .from(sandboxes)
      .innerJoin(resources, eq(resources.id, sandboxes.resourceId))
      .innerJoin(wallets, eq(wallets.id, resources.walletId))
      .where(LIVE)
      .prepare(),
    undelivered: both()
      .innerJoin(operations, eq(operations.id, resources.operationId))
      .where(
        and(
          LIVE,
          isNull(sandboxes.deliveredAt),
          eq(resources.walletId, sql.placeholder('walletId')),
          eq(operations.fingerprint, sql.placeholder('fingerprint')),
        ),
      )
      .orderBy(asc(resources.id))
      .prepare(),
    over: read
      .select({ id: resources.id })
      .from(sandboxes)
      .innerJoin(resources, eq(resources.id, sandboxes.resourceId))
      .where(and(LIVE, MAY_END, lte(END, sql.placeholder('now'))))
      .prepare(),
    nextEnd: read
      .select({ at: sql<bigint | null>`min(${END})` })
      .from(sandboxes)
      .innerJoin(resources, eq(resources.id, sandboxes.resourceId))
      .where(and(LIVE, MAY_END, lt(END, resources.expiresAt)))
      .prepare(),
  };
});

/** Returns the id that E2B's SDKs know a sandbox by: a DNS label, as host names of its ports contain it. */
export const sandboxLabel = ({ id }: Pick<Resource, 'id'>): string => id.slice('res_'.length);

/** Returns the sandbox of a lease; undefined for a lease that was created otherwise. */
export function findSandbox(read: Reader, resourceId: string): Sandbox | undefined {
  return reads(read).byId.get({ id: resourceId });
}

/** Returns when a sandbox ends; undefined before its lease is ready. */
export function endOfSandbox({ seconds, endsAt }: Sandbox, { readyAt, expiresAt }: Resource): number | undefined {
  if (readyAt === null) return undefined;
  return Math.min(expiresAt, endsAt ?? readyAt + seconds);
}

/**
 * Returns whether the sandbox of a lease is over. It is not while more of its lease is being paid for. False for a lease that is
 * no sandbox.
 */
export function hasSandboxEnded(read: Reader, resource: Resource, now: number): boolean {
  const sandbox = findSandbox(read, resource.id);
  const end = sandbox && endOfSandbox(sandbox, resource);
  if (end === undefined || end > now) return false;
  return openExtensionsOf(read, resource).length === 0;
}

/** Returns a sandbox of a wallet; undefined alike for none, another wallet's, and one that has ended or is over. */
export function liveSandbox(read: Reader, walletId: string, resourceId: string, now: number): SandboxLease | undefined {
  const sandbox = findSandbox(read, resourceId);
  const resource = sandbox && findResource(read, resourceId);
  if (!sandbox || resource?.walletId !== walletId) return undefined;
  const isEnding = resource.endedAt !== null || resource.endWanted !== null;
  return isEnding || hasSandboxEnded(read, resource, now) ? undefined : { sandbox, resource };
}

/** Returns the sandboxes of a wallet that have not ended and are not to end, newest first. */
export function liveSandboxes(read: Reader, walletId: string): SandboxLease[] {
  return reads(read).ofWallet.all({ walletId });
}

/** Returns the sandboxes of all wallets that have not ended and are not to end: what their tokens are derived from. */
export const allLiveSandboxes = (read: Reader) => reads(read).live.all();

/** Returns the live sandboxes of a wallet whose create had this fingerprint and never reached its client, oldest first. */
export function undeliveredSandboxes(read: Reader, walletId: string, fingerprint: Buffer, now: number): SandboxLease[] {
  const found = reads(read).undelivered.all({ walletId, fingerprint });
  return found.filter(({ resource }) => !hasSandboxEnded(read, resource, now));
}

/** Returns the ids of the live leases whose sandbox is over by `now`, Unix seconds. */
export function endedSandboxes(read: Reader, now: number): string[] {
  return reads(read)
    .over.all({ now })
    .map(({ id }) => id);
}

/** Returns the Unix seconds at which the next sandbox ends before its lease does. */
export function nextSandboxEnd(read: Reader): number | undefined {
  const at = reads(read).nextEnd.get()?.at;
  return at == null ? undefined : Number(at);
}

export type SandboxOrder = Pick<Sandbox, 'template' | 'metadata' | 'environment' | 'seconds' | 'deliveredAt'>;
/** Inserts the row of a sandbox, in the write that inserts its lease. */
export function insertSandbox(tx: Tx, resourceId: string, order: SandboxOrder): void {
  const row = withChecksum(sandboxes, { resourceId, ...order, endsAt: null });
  tx.insert(sandboxes).values(row).run();
}

function update(tx: Tx, resourceId: string, change: Partial<Pick<Sandbox, 'endsAt' | 'deliveredAt'>>): Sandbox {
  const before = findSandbox(tx, resourceId);
  assert(before, 'only sandboxes that are there are changed');
  const after = withNewChecksum(sandboxes, before, change);
  return tx.update(sandboxes).set(after).where(eq(sandboxes.resourceId, resourceId)).returning().get();
}

type DeliverSandbox = { id: string; deliveredAt: number | null };
/** Records whether a client has the answer of a create: while none has, the next identical create adopts its sandbox. */
export const deliverSandbox = defineWrite('sandbox.deliver', (tx, { id, deliveredAt }: DeliverSandbox) => {
  update(tx, id, { deliveredAt });
});

/** Moves the end of a lease's sandbox, if it is one, to what has just been paid for, in the write that moves the lease's own end. */
export function lengthenSandbox(tx: Tx, resourceId: string, paidUntil: number): void {
  const sandbox = findSandbox(tx, resourceId);
  if (sandbox) update(tx, resourceId, { endsAt: Math.max(sandbox.endsAt ?? 0, paidUntil) });
}

/** Brings the end that was set for a lease's sandbox, if it is one, forward by the seconds by which that of its lease comes earlier. */
export function shortenSandbox(tx: Tx, resourceId: string, seconds: number): void {
  const sandbox = seconds > 0 ? findSandbox(tx, resourceId) : undefined;
  if (sandbox?.endsAt != null) update(tx, resourceId, { endsAt: sandbox.endsAt - seconds });
}

type EndSandbox = { id: string; endsAt: number; onlyLater: boolean; now: number };
/**
 * Sets the end of a sandbox within the paid time of its lease; with `onlyLater`, unless it ends later anyway. Throws `not_found`
 * for a sandbox that is over.
 */
export const setSandboxEnd = defineWrite(
  'sandbox.end',
  (tx, { id, endsAt, onlyLater, now }: EndSandbox): SandboxLease => {
    const resource = findResource(tx, id) as Resource;
    const sandbox = findSandbox(tx, id) as Sandbox;
    const end = endOfSandbox(sandbox, resource);
    if (resource.endedAt !== null || resource.endWanted !== null || end === undefined || end <= now)
      throw new Refusal('not_found', 'The sandbox is over.');
    const wanted = Math.min(onlyLater ? Math.max(endsAt, end) : endsAt, resource.expiresAt);
    return { resource, sandbox: update(tx, id, { endsAt: wanted }) };
  },
);
