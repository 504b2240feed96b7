import { eq, gte, sql } from 'drizzle-orm';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { masterKeys, wallets } from '../db/schema.ts';
import { setMasterKey } from './installation.ts';

/**
 * A master key, identified by its fingerprint. `sealed` is the key itself, wrapped with the key that `sealedBy` names:
 * retired keys are wrapped with the current one, and the current one with the key that the configuration still gives.
 */
export type MasterKeyRow = typeof masterKeys.$inferSelect;

/** How many wallets one query examines, so that it takes only a moment. */
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

/** Returns every master key, oldest first. */
export function masterKeyRows(read: Reader): MasterKeyRow[] {
  return reads(read).all.all();
}

export type Rotation = {
  next: { id: string; sealed: Buffer; sealedBy: string };
  /** Every retained key, wrapped with the next one. */
  kept: readonly { id: string; sealed: Buffer }[];
};

/** Makes `next` the master key. The whole rotation is one commit. */
export function rotateMasterKey(tx: Tx, { next, kept }: Rotation, now: number): void {
  tx.insert(masterKeys)
    .values(withChecksum(masterKeys, { ...next, createdAt: now }))
    .run();
  for (const key of kept) change(tx, key.id, { sealed: key.sealed, sealedBy: next.id, retiredAt: now });
  setMasterKey(tx, next.id);
}

/**
 * Deletes the wrapped copy of a key: of a retired key that no open wallet needs, or of the current key once the
 * configuration gives it.
 */
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
 * Finds the first wallet from `walletId` on that is not closed and was made with this master key. Examines one page of
 * wallets: `needed` is the id found; `next` is where to continue. Both undefined means there is none.
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
