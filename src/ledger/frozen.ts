import { count, min, sql } from 'drizzle-orm';
import { prepare, type Reader } from '../db/handle.ts';
import { accounts, wallets } from '../db/schema.ts';
import { installationOf } from './installation.ts';
import { isFrozenOnly } from './wallet.ts';

const reads = prepare((read: Reader) => ({
  accounts: read
    .select({ count: count(), since: min(accounts.suspendedAt) })
    .from(accounts)
    .where(sql`${accounts.suspendedAt} is not null`)
    .prepare(),
  wallets: read
    .select({ count: count(), since: min(wallets.frozenAt) })
    .from(wallets)
    .where(isFrozenOnly(sql.placeholder('now')))
    .prepare(),
}));

/**
 * The number of holders that are frozen: 1 for the installation, suspended accounts, and wallets that may spend once they are
 * unfrozen.
 */
type FrozenCounts = { installation: 0 | 1; account: number; wallet: number };

/** Counts everything that is frozen at `now`, Unix seconds: it takes no new holds (design, section 13). */
export function countFrozen(read: Reader, now: number): FrozenCounts {
  return {
    installation: installationOf(read).frozenAt === null ? 0 : 1,
    account: Number(reads(read).accounts.get()?.count),
    wallet: Number(reads(read).wallets.get({ now })?.count),
  };
}

/** Returns the Unix seconds since which the installation, the first account and the first wallet are frozen; null where none is. */
export const frozenSince = (read: Reader, now: number) => ({
  installation: installationOf(read).frozenAt,
  accounts: reads(read).accounts.get()?.since ?? null,
  wallets: reads(read).wallets.get({ now })?.since ?? null,
});

/**
 * Describes everything that takes no new holds at `now`, and for the installation when and why it was frozen; undefined while
 * nothing is frozen.
 */
export function describeFrozen(read: Reader, now: number): string | undefined {
  const { installation, account, wallet } = countFrozen(read, now);
  const { frozenAt, freezeReason } = installationOf(read);
  const since = frozenAt === null ? '' : new Date(frozenAt * 1000).toISOString().replace('.000', '');
  const parts = [
    installation ? `the installation is frozen since ${since}${freezeReason === null ? '' : ` (${freezeReason})`}` : '',
    account ? `${account} ${account === 1 ? 'account is' : 'accounts are'} suspended` : '',
    wallet ? `${wallet} ${wallet === 1 ? 'wallet is' : 'wallets are'} frozen` : '',
  ].filter(Boolean);
  return parts.length ? `${parts.join(', ')}: no new holds` : undefined;
}
