import type { Reader } from '../db/handle.ts';
import { findWallet, lineage } from './wallet.ts';

/** The most wallets whose tenants are remembered. */
const KNOWN_COUNT_MAX = 20_000;

/**
 * The owner of a wallet, for every fair share: an agent opens children at will, so they count as one with the wallet above them
 * whose budget comes from the account.
 */
export type Tenant = { treeId: string; accountId: string };
export type TenantOf = (walletId: string) => Tenant;

/** Creates the look-up of tenants. It caches them: a wallet never changes its parent. */
export function createTenantOf(read: Reader): TenantOf {
  const known = new Map<string, Tenant>();
  return (walletId) => {
    const before = known.get(walletId);
    if (before) return before;
    const wallet = findWallet(read, walletId);
    if (!wallet) return { treeId: walletId, accountId: '' };
    let top = wallet;
    for (const it of lineage(read, wallet)) top = it;
    const tenant = { treeId: top.id, accountId: top.accountId };
    if (known.size >= KNOWN_COUNT_MAX) known.clear();
    known.set(walletId, tenant);
    return tenant;
  };
}
