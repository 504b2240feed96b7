import { and, count, desc, eq, isNull, sql } from 'drizzle-orm';
import { canonicalJson } from '../base/fingerprint.ts';
import { type Nanos, parseUsd } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { routerKeys, wallets } from '../db/schema.ts';
import { accountOf } from '../ledger/account.ts';
import { findWallet, IS_OPEN_WALLET, LIST_COUNT_MAX, refuseInactive, type Wallet } from '../ledger/wallet.ts';

export type RouterKey = typeof routerKeys.$inferSelect;
/** The requested restrictions of a gateway key. They do not bind the wallet token, whose holder may create another key. */
type RouterKeyOptions = {
  models?: readonly string[] | null | undefined;
  max_price_usd?: string | null | undefined;
};
export type KeyLimits = { models: ReadonlySet<string> | undefined; maxPrice: Nanos | undefined };

const reads = prepare((read: Reader) => ({
  byToken: read
    .select()
    .from(routerKeys)
    .where(eq(routerKeys.tokenHash, sql.placeholder('tokenHash')))
    .prepare(),
  byId: read
    .select()
    .from(routerKeys)
    .where(eq(routerKeys.id, sql.placeholder('id')))
    .prepare(),
  byOptions: read
    .select()
    .from(routerKeys)
    .where(
      and(
        eq(routerKeys.walletId, sql.placeholder('walletId')),
        eq(routerKeys.options, sql.placeholder('options')),
        isNull(routerKeys.revokedAt),
      ),
    )
    .prepare(),
  unrevoked: read
    .select({ count: count() })
    .from(routerKeys)
    .where(and(eq(routerKeys.walletId, sql.placeholder('walletId')), isNull(routerKeys.revokedAt)))
    .prepare(),
  live: read
    .select({ key: routerKeys })
    .from(routerKeys)
    .innerJoin(wallets, eq(wallets.id, routerKeys.walletId))
    .where(and(isNull(routerKeys.revokedAt), IS_OPEN_WALLET))
    .prepare(),
  ofWallet: read
    .select()
    .from(routerKeys)
    .where(eq(routerKeys.walletId, sql.placeholder('walletId')))
    .orderBy(sql`${routerKeys.revokedAt} is not null`, desc(routerKeys.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
}));

/** Returns the gateway key with this token hash, or undefined when it is unknown or revoked. */
export function findRouterKeyByToken(read: Reader, tokenHash: Buffer): RouterKey | undefined {
  const key = reads(read).byToken.get({ tokenHash });
  return key?.revokedAt === null ? key : undefined;
}

/** Returns the gateway key with this id, even if revoked. */
export const findRouterKey = (read: Reader, id: string): RouterKey | undefined => reads(read).byId.get({ id });

/** Returns the gateway key with this id, which is known to exist. */
export const routerKeyOf = (read: Reader, id: string): RouterKey => findRouterKey(read, id) as RouterKey;

/** Throws `unauthenticated` for a gateway key that has been revoked since it was read. */
export function refuseRevokedRouterKey(read: Reader, id: string): void {
  if (findRouterKey(read, id)?.revokedAt !== null) throw new Refusal('unauthenticated');
}

/** Returns 100 gateway keys of a wallet: every valid one, as there are no more, then the latest revoked; each newest first. */
export function listRouterKeys(read: Reader, walletId: string): RouterKey[] {
  return reads(read).ofWallet.all({ walletId });
}

/** Parses the restrictions of a gateway key. */
export function limitsOf({ options }: RouterKey): KeyLimits {
  const { models, max_price_usd: maxPriceUsd } = parseJson(options) as RouterKeyOptions;
  return {
    models: models ? new Set(models) : undefined,
    maxPrice: maxPriceUsd ? parseUsd(maxPriceUsd) : undefined,
  };
}

export type RouterKeyOrder = {
  walletId: string;
  options: RouterKeyOptions;
  /** The id of a new key, and the columns that its row stores in place of its token. */
  fresh: Pick<RouterKey, 'id' | 'masterKeyId' | 'tokenHash' | 'last4'>;
};

/**
 * Returns the wallet's gateway key with these options, creating it if necessary. Throws `wallet_closed` and
 * `wallet_expired`; for a new key also `account_suspended`, and `invalid_request` beyond 100 keys.
 */
export function openRouterKey(
  tx: Tx,
  { walletId, options, fresh }: RouterKeyOrder,
  now: number,
): { key: RouterKey; isNew: boolean } {
  const wallet = findWallet(tx, walletId) as Wallet; // Read again: it may have been closed since authentication.
  refuseInactive(tx, wallet, now);
  const { models, max_price_usd: maxPriceUsd } = options;
  const text = canonicalJson({
    ...(models ? { models: [...new Set(models)].sort() } : {}),
    ...(maxPriceUsd ? { max_price_usd: maxPriceUsd } : {}),
  });
  const known = reads(tx).byOptions.get({ walletId: wallet.id, options: text });
  if (known) return { key: known, isNew: false };
  if (accountOf(tx, wallet.accountId).suspendedAt !== null) throw new Refusal('account_suspended');
  if (Number(reads(tx).unrevoked.get({ walletId: wallet.id })?.count) >= LIST_COUNT_MAX)
    throw new Refusal('invalid_request', `A wallet has at most ${LIST_COUNT_MAX} gateway keys. Use one that it has.`);
  refuseOnLowDisk(tx);
  const key = withChecksum(routerKeys, {
    ...fresh,
    walletId: wallet.id,
    options: text,
    createdAt: now,
    revokedAt: null,
  });
  tx.insert(routerKeys).values(key).run();
  return { key, isNew: true };
}

/** Returns every gateway key that is not revoked, of wallets that are not closed. */
export const liveRouterKeys = (read: Reader): RouterKey[] =>
  reads(read)
    .live.all()
    .map((row) => row.key);

export type RouterRow = Pick<RouterKey, 'id' | 'masterKeyId' | 'tokenHash' | 'last4'>;

/** Replaces the secret of a gateway key by that of these columns. Its old token ends. */
export function giveRouterToken(tx: Tx, { id, ...change }: RouterRow): void {
  const key = routerKeyOf(tx, id);
  tx.update(routerKeys)
    .set(withNewChecksum(routerKeys, key, change))
    .where(eq(routerKeys.id, id))
    .run();
}

/** Revokes a gateway key at once; a second call changes nothing. Returns undefined when there is no such gateway key. */
export function revokeRouterKey(tx: Tx, id: string, now: number): RouterKey | undefined {
  const key = findRouterKey(tx, id);
  if (!key || key.revokedAt !== null) return key;
  const revoked = withNewChecksum(routerKeys, key, { revokedAt: now });
  return tx.update(routerKeys).set(revoked).where(eq(routerKeys.id, id)).returning().get();
}
