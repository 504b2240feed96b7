import { eq, gte, sql } from 'drizzle-orm';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { masterKeys, wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { setMasterKey } from './installation.ts';
import { findWallet, IS_OPEN_WALLET, selectWallets, type Wallet } from './wallet.ts';

/**
 * A master key, identified by its fingerprint. `wrapped` is the key itself, wrapped with the key that `wrappedBy` names:
 * retired keys are wrapped with the current one, and the current one with the key that the configuration still gives.
 */
export type MasterKeyRow = typeof masterKeys.$inferSelect;

/** Number of wallets that one query examines, so that it takes only a moment. */
const WALLETS_A_PAGE = 10_000;

const reads = prepare((read: Reader) => {
  const page = read
    .select({ id: wallets.id, status: wallets.status, masterKeyId: wallets.masterKeyId })
    .from(wallets)
    .where(gte(wallets.id, sql.placeholder('from')))
    .orderBy(wallets.id)
    .limit(WALLETS_A_PAGE)
    .as('page');
  const isNeeding = sql`${page.masterKeyId} = ${sql.placeholder('keyId')} and ${page.status} <> 'closed'`;
  return {
    all: read.select().from(masterKeys).orderBy(masterKeys.createdAt).prepare(),
    byId: read
      .select()
      .from(masterKeys)
      .where(eq(masterKeys.id, sql.placeholder('id')))
      .prepare(),
    open: selectWallets(read).where(IS_OPEN_WALLET).orderBy(wallets.id).prepare(),
    needing: read
      .select({
        count: sql`count(*)`.mapWith(Number),
        last: sql<string>`coalesce(max(${page.id}), '')`,
        needed: sql<string | null>`min(case when ${isNeeding} then ${page.id} end)`,
      })
      .from(page)
      .prepare(),
  };
});

/** Returns every master key, oldest first. */
export function masterKeyRows(read: Reader): MasterKeyRow[] {
  return reads(read).all.all();
}

type Rotation = {
  next: { id: string; wrapped: Buffer; wrappedBy: string };
  /** Every retained key, wrapped with the next one. */
  kept: readonly { id: string; wrapped: Buffer }[];
};

type Rotate = { rotation: Rotation; now: number };
/** Makes `next` the master key. The whole rotation is one commit. Throws `conflict` for a key that was used before. */
export const rotateMasterKey = defineWrite('master_key.rotate', (tx, { rotation: { next, kept }, now }: Rotate) => {
  if (masterKeyRows(tx).some(({ id }) => id === next.id))
    throw new Refusal('conflict', `The master key ${next.id} has been used here before. Rotate to a fresh one.`);
  tx.insert(masterKeys)
    .values(withChecksum(masterKeys, { ...next, createdAt: now }))
    .run();
  for (const key of kept) change(tx, key.id, { wrapped: key.wrapped, wrappedBy: next.id, retiredAt: now });
  setMasterKey(tx, next.id);
});

/**
 * Deletes the wrapped copy of a key: of a retired key that no open wallet needs, or of the current key once the
 * configuration gives it.
 */
export const dropWrappedKey = defineWrite('master_key.drop_wrapped', (tx, { id }: { id: string }) =>
  change(tx, id, { wrapped: null, wrappedBy: null }),
);

type DropRetired = { id: string; walletId: string };
/**
 * Drops a retired key unless a wallet from `walletId` on needs it: a wallet with the previous key may have been waiting for its
 * commit. Returns whether it was dropped.
 */
export const dropRetiredKey = defineWrite('master_key.drop_retired', (tx, { id, walletId }: DropRetired): boolean => {
  const { needed, next } = walletNeeding(tx, id, walletId);
  if (needed !== undefined || next !== undefined) return false;
  dropWrappedKey.run(tx, { id });
  return true;
});

/** Makes `nextId` the master key of books whose key is lost. Without it no other key can be unwrapped, so none is kept. */
export function replaceLostMasterKey(tx: Tx, nextId: string, now: number): void {
  for (const { id } of masterKeyRows(tx)) change(tx, id, { wrapped: null, wrappedBy: null, retiredAt: now });
  tx.insert(masterKeys)
    .values(withChecksum(masterKeys, { id: nextId, createdAt: now }))
    .run();
  setMasterKey(tx, nextId);
}

/** Returns every wallet that is not closed. */
export function openWallets(read: Reader): Wallet[] {
  return reads(read).open.all();
}

/** Gives an open wallet another token. The previous one ends. */
export function giveToken(
  tx: Tx,
  id: string,
  credential: Pick<Wallet, 'masterKeyId' | 'tokenHash' | 'tokenHint'>,
): void {
  const wallet = findWallet(tx, id) as Wallet;
  tx.update(wallets)
    .set(withNewChecksum(wallets, wallet, credential))
    .where(eq(wallets.id, id))
    .run();
}

function change(tx: Tx, id: string, what: Pick<MasterKeyRow, 'wrapped' | 'wrappedBy'> & { retiredAt?: number }): void {
  const row = reads(tx).byId.get({ id });
  if (!row) return;
  const retiredAt = row.retiredAt ?? what.retiredAt ?? null;
  tx.update(masterKeys)
    .set(withNewChecksum(masterKeys, row, { ...what, retiredAt }))
    .where(eq(masterKeys.id, id))
    .run();
}

/**
 * Finds the first wallet from `walletId` on that is not closed and was made with this master key. Examines one page of
 * wallets: `needed` is the id found; `next` is where to continue. Both undefined means there is none.
 */
export function walletNeeding(
  read: Reader,
  keyId: string,
  walletId: string,
): { needed: string | undefined; next: string | undefined } {
  const wallet = reads(read).needing.get({ keyId, from: walletId });
  return {
    needed: wallet?.needed ?? undefined,
    next: wallet && wallet.count === WALLETS_A_PAGE ? wallet.last : undefined,
  };
}
