import { eq, gte, sql } from 'drizzle-orm';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { masterKeys, wallets } from '../db/schema.ts';
import { setMasterKey } from './installation.ts';

/**
 * A master key by its fingerprint. `sealed` is the key itself, encrypted under the one that `sealedBy` names: a retired key
 * under the current one, and the current one under the key that the configuration still gives.
 */
export type MasterKeyRow = typeof masterKeys.$inferSelect;

/** So many wallets are looked at in a moment. */
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

export function masterKeyRows(read: Reader): MasterKeyRow[] {
  return reads(read).all.all();
}

export type Rotation = {
  next: { id: string; sealed: Buffer; sealedBy: string };
  /** Every key that is kept, each sealed under the next one. */
  kept: readonly { id: string; sealed: Buffer }[];
};

/** Makes `next` the key of these books. Everything of the rotation is in this one commit. */
export function rotateMasterKey(tx: Tx, { next, kept }: Rotation, now: number): void {
  tx.insert(masterKeys)
    .values(withChecksum(masterKeys, { ...next, createdAt: now }))
    .run();
  for (const key of kept) change(tx, key.id, { sealed: key.sealed, sealedBy: next.id, retiredAt: now });
  setMasterKey(tx, next.id);
}

/** Drops the encrypted copy of a key: of a retired one that no live wallet needs, or of the current one that is given now. */
export function dropSealedKey(tx: Tx, id: string): void {
  change(tx, id, { sealed: null, sealedBy: null });
}

function change(tx: Tx, id: string, what: Pick<MasterKeyRow, 'sealed' | 'sealedBy'> & { retiredAt?: number }): void {
  const row = reads(tx).byId.get({ id });
  if (!row) return;
  const retiredAt = row.retiredAt ?? what.retiredAt ?? null;
  tx.update(masterKeys)
    .set(withNewChecksum(masterKeys, row, { ...what, retiredAt }))
    .where(eq(masterKeys.id, id))
    .run();
}

/**
 * Looks for the first wallet from `walletId` on that is not closed and was made with this master key, among so many wallets
 * as a moment takes. `needed` is its id; `next` is where to go on looking; neither means that there is none.
 */
export function walletNeeding(
  read: Reader,
  keyId: string,
  walletId: string,
): { needed: string | undefined; next: string | undefined } {
  const found = reads(read).needing.get({ keyId, from: walletId });
  return {
    needed: found?.needed ?? undefined,
    next: found && found.count === WALLETS_A_PAGE ? found.last : undefined,
  };
}
