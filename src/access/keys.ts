import { and, asc, count, desc, eq, isNull, lt, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { keys } from '../db/schema.ts';
import { accountOf } from '../ledger/account.ts';
import { LIST_COUNT_MAX, type ListPage } from '../ledger/wallet.ts';
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
  ofAccount: read
    .select()
    .from(keys)
    .where(
      and(
        eq(keys.accountId, sql.placeholder('accountId')),
        eq(keys.kind, sql.placeholder('kind')),
        lt(keys.id, sql.placeholder('before')),
      ),
    )
    .orderBy(sql`${keys.id} desc`)
    .limit(sql.placeholder('limit'))
    .prepare(),
  operators: read.select().from(keys).where(eq(keys.kind, 'operator')).orderBy(asc(keys.id)).prepare(),
}));

/** Returns the key with this token hash, even if revoked. */
export function findKeyByToken(read: Reader, tokenHash: Buffer): Key | undefined {
  return reads(read).byToken.get({ tokenHash });
}

/** Returns the key with this id, even if revoked. */
export function findKey(read: Reader, id: string): Key | undefined {
  return reads(read).byId.get({ id });
}

/** Throws `unauthenticated` for a key that has been revoked since it was read. */
export function refuseRevokedKey(read: Reader, id: string): void {
  if (findKey(read, id)?.revokedAt !== null) throw new Refusal('unauthenticated');
}

/** Returns account keys of an account, newest first, before the id `before`, without their secrets. */
export function listKeys(
  read: Reader,
  accountId: string,
  { before = '~', limit = LIST_COUNT_MAX }: ListPage = {},
): Key[] {
  return reads(read).ofAccount.all({ accountId, kind: 'account', before, limit });
}

/** The condition of `countKeys`. */
const isAccountKey = (accountId: string, isValid: boolean) =>
  and(eq(keys.accountId, accountId), eq(keys.kind, 'account'), isValid ? isNull(keys.revokedAt) : undefined);

/** Counts the account keys of an account, those that were not revoked alone with `isValid`. */
export function countKeys(read: Reader, accountId: string, isValid = false): number {
  return Number(read.select({ count: count() }).from(keys).where(isAccountKey(accountId, isValid)).get()?.count);
}

/** Returns a part of the keys that `countKeys` counts, newest first. */
export function sliceKeys(
  read: Reader,
  accountId: string,
  { isValid, from, limit }: { isValid: boolean; from: number; limit: number },
): Key[] {
  return read
    .select()
    .from(keys)
    .where(isAccountKey(accountId, isValid))
    .orderBy(desc(keys.id))
    .limit(limit)
    .offset(from)
    .all();
}

/** Returns all operator keys, oldest first. A row has the hash of its token, never the token. */
export function listOperatorKeys(read: Reader): Key[] {
  return reads(read).operators.all();
}

export type KeyOrder = { kind: Key['kind']; accountId: string; name: string; mintedBy: string };

/**
 * Mints an account or operator key. The token is only in the return value: the database stores its hash. Throws
 * `account_suspended`, `not_found` for an unknown account, and `invalid_request` for a name that is empty or too long.
 */
export function createKey(tx: Tx, order: KeyOrder, now: number): { key: Key; token: string } {
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
 * Revokes a key at once; a second call changes nothing. Throws `not_found` when there is no such key of this kind, or when
 * `accountId` is given and the key belongs to another account.
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

/** Stores when keys were last used, in Unix seconds. */
export function touchKeys(tx: Tx, usedAt: Iterable<readonly [id: string, at: number]>): void {
  for (const [id, at] of usedAt) tx.update(keys).set({ lastUsedAt: at }).where(eq(keys.id, id)).run();
}
