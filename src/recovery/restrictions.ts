import { findKey, type Key, revokeKey } from '../access/keys.ts';
import { findRouterKey, revokeRouterKey } from '../access/router-keys.ts';
import type { Tx } from '../db/handle.ts';
import type { Database } from '../db/open.ts';
import { findAccount, suspendAccount } from '../ledger/account.ts';
import { freeze, isFrozen } from '../ledger/installation.ts';
import { findWallet } from '../ledger/wallet.ts';
import { freezeWallet } from '../ledger/wallet-change.ts';

/** The ids of everything that was stopped in the books that a restore replaces. An older backup would let it continue. */
export type Restrictions = {
  keys: { id: string; kind: Key['kind'] }[];
  routerKeys: { id: string }[];
  accounts: { id: string }[];
  /** The frozen wallets, and with `isClosed` those that were closed or have expired. */
  wallets: { id: string; reason: string | null; isClosed: 0 | 1 }[];
  installation: { isFrozen: 0 | 1; reason: string | null };
};

/** Counts of restrictions that the restored books did not have and were given. */
export type KeptRestrictions = {
  revoked_keys: number;
  suspended_accounts: number;
  frozen_wallets: number;
  frozen_installation: boolean;
};

const CLOSED_SINCE = 'it had ended in the books that were replaced by a backup of before';

/** Reads the restrictions from books of any version that has them. Throws the errors of SQLite. */
export function readRestrictions(client: Database['client']): Restrictions {
  const all = <Row>(query: string) => client.prepare(query).all() as Row[];
  const [installation] = all<Restrictions['installation']>(
    'select frozen_at is not null as isFrozen, freeze_reason as reason from installation',
  );
  return {
    keys: all('select id, kind from key where revoked_at is not null'),
    routerKeys: all('select id from router_key where revoked_at is not null'),
    accounts: all('select id from account where suspended_at is not null'),
    wallets: all(
      "select id, freeze_reason as reason, status <> 'active' as isClosed from wallet where frozen_at is not null or status <> 'active'",
    ),
    installation: installation ?? { isFrozen: 0, reason: null },
  };
}

/**
 * Revokes, suspends and freezes in restored books everything that was stopped in the replaced ones. A wallet that was closed there
 * and is active here is frozen: its rest may go back to its account, but must not be spent.
 */
export function keepRestrictions(tx: Tx, from: Restrictions, now: number): KeptRestrictions {
  const keys = from.keys.filter(({ id, kind }) => {
    const known = findKey(tx, id);
    return known?.revokedAt === null && known.kind === kind;
  });
  for (const { id, kind } of keys) revokeKey(tx, id, kind, now);
  const routerKeys = from.routerKeys.filter(({ id }) => findRouterKey(tx, id)?.revokedAt === null);
  for (const { id } of routerKeys) revokeRouterKey(tx, id, now);
  const accounts = from.accounts.filter(({ id }) => findAccount(tx, id)?.suspendedAt === null);
  for (const { id } of accounts) suspendAccount.run(tx, { id, at: now });
  const wallets = from.wallets.filter(({ id }) => {
    const known = findWallet(tx, id);
    return known?.status === 'active' && known.frozenAt === null && (known.expiresAt ?? now + 1) > now;
  });
  for (const { id, reason, isClosed } of wallets)
    freezeWallet.run(tx, { id, frozenAt: now, reason: isClosed ? CLOSED_SINCE : reason, now });
  const { installation } = from;
  const freezes = installation.isFrozen === 1 && !isFrozen(tx);
  if (freezes) freeze.run(tx, { at: now, reason: installation.reason });
  return {
    revoked_keys: keys.length + routerKeys.length,
    suspended_accounts: accounts.length,
    frozen_wallets: wallets.length,
    frozen_installation: freezes,
  };
}
