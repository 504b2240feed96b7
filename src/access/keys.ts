import { and, asc, eq, sql } from 'drizzle-orm';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { keys } from '../db/schema.ts';
import { newId } from '../id.ts';
import { accountOf } from '../ledger/account.ts';
import { LIST_COUNT_MAX } from '../ledger/wallet.ts';
import { Refusal } from '../refusal.ts';
import { hashToken, lastFour, mintToken } from './token.ts';

export type Key = typeof keys.$inferSelect;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(keys)
    .where(eq(keys.id, sql.placeholder('id')))
    .prepare(),
  byToken: read
    .select()
    .from(keys)
    .where(eq(keys.tokenHash, sql.placeholder('tokenHash')))
    .prepare(),
  // The latest 100, and the caller turns them round: lists return the latest rows (interface, section 1).
  ofAccount: read
    .select()
    .from(keys)
    .where(and(eq(keys.accountId, sql.placeholder('accountId')), eq(keys.kind, sql.placeholder('kind'))))
    .orderBy(sql`${keys.id} desc`)
    .limit(LIST_COUNT_MAX)
    .prepare(),
  operators: read.select().from(keys).where(eq(keys.kind, 'operator')).orderBy(asc(keys.id)).prepare(),
}));

/** The key with this token, revoked ones included. */
export function findKeyByToken(read: Reader, tokenHash: Buffer): Key | undefined {
  return reads(read).byToken.get({ tokenHash });
}

/** Refuses with `unauthenticated` a key that has been revoked since it was looked at. */
export function refuseRevokedKey(read: Reader, id: string): void {
  if (reads(read).byId.get({ id })?.revokedAt !== null) throw new Refusal('unauthenticated');
}

/** The latest 100 account keys of an account, newest first; their secrets are nowhere. */
export function listKeys(read: Reader, accountId: string): Key[] {
  return reads(read).ofAccount.all({ accountId, kind: 'account' });
}

export function listOperatorKeys(read: Reader): Key[] {
  return reads(read).operators.all();
}

/**
 * Mints an account or operator key. The token is in the answer and nowhere else: only its hash is stored.
 * Refuses a suspended account with `account_suspended` and an unknown one with `not_found`.
 */
export function createKey(
  tx: Tx,
  order: { kind: Key['kind']; accountId: string; name: string; mintedBy: string },
  now: number,
): { key: Key; token: string } {
  const account = accountOf(tx, order.accountId);
  if (account.suspendedAt !== null) throw new Refusal('account_suspended');
  if (!order.name || [...order.name].length > 80)
    throw new Refusal('invalid_request', 'A key name has 1 to 80 characters.');
  refuseOnLowDisk(tx);
  const token = mintToken(order.kind);
  const key = withChecksum(keys, {
    id: newId('key'),
    ...order,
    tokenHash: hashToken(token),
    last4: lastFour(token),
    createdAt: now,
    lastUsedAt: null,
    revokedAt: null,
  });
  tx.insert(keys).values(key).run();
  return { key, token };
}

/**
 * Revokes a key at once; the second time it changes nothing. Refuses with `not_found` when there is no such key of this
 * kind, or, with `accountId`, when it is another account's.
 */
export function revokeKey(tx: Tx, id: string, kind: Key['kind'], now: number, accountId?: string): Key {
  const key = reads(tx).byId.get({ id });
  if (!key || key.kind !== kind || (accountId !== undefined && key.accountId !== accountId))
    throw new Refusal('not_found', 'There is no such key.');
  if (key.revokedAt !== null) return key;
  const revoked = withNewChecksum(keys, key, { revokedAt: now });
  tx.update(keys).set(revoked).where(eq(keys.id, id)).run();
  return { ...key, ...revoked };
}

/** Notes when keys were last used. */
export function touchKeys(tx: Tx, usedAt: ReadonlyMap<string, number>): void {
  for (const [id, at] of usedAt) tx.update(keys).set({ lastUsedAt: at }).where(eq(keys.id, id)).run();
}
