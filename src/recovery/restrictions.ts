import { findKey, type Key, revokeKey } from '../access/keys.ts';
import { findPasskeyById, notePasskeyUses } from '../access/passkeys.ts';
import { findRouterKey, revokeRouterKey } from '../access/router-keys.ts';
import { removePasskey } from '../access/writes.ts';
import type { Reader, Tx } from '../db/handle.ts';
import type { Database } from '../db/open.ts';
import { findAccount, setDisputed, suspendAccount } from '../ledger/account.ts';
import { freeze, isFrozen } from '../ledger/installation.ts';
import { endKeep, findKeep } from '../ledger/keep.ts';
import { endRefill } from '../ledger/refill.ts';
import { changeResource, findResource } from '../ledger/resource.ts';
import { endedBy, findWallet, type Wallet } from '../ledger/wallet.ts';
import { freezeAny } from '../ledger/wallet-change.ts';

/**
 * The restrictions in the books that a restore replaces, by id: an older backup lacks what was stopped or narrowed there.
 * test/recovery/restore.test.ts has the decision for each column of the schema that stops something.
 */
export type Restrictions = {
  keys: { id: string; kind: Key['kind'] }[];
  routerKeys: { id: string }[];
  /** All passkeys: a copy of one is noticed by its number of uses. */
  passkeys: { id: string; useCount: number; isRemoved: 0 | 1 }[];
  accounts: { id: string }[];
  disputed: { id: string; at: number }[];
  /** The frozen wallets, and with `hasEnded` those that had ended, by themselves or with one above them. */
  wallets: { id: string; reason: string | null; hasEnded: 0 | 1 }[];
  /** The active wallets that get no refill. */
  unfilled: { id: string }[];
  /** The orders to extend a lease while it is busy that have ended. */
  keeps: { id: string }[];
  /** The agents' lists of what their leases reach. */
  egress: { id: string; allow: string }[];
  installation: { isFrozen: 0 | 1; reason: string | null };
};

/** Counts of restrictions that the restored books did not have and were given. */
export type KeptRestrictions = {
  /** Keys, gateway keys and passkeys. */
  revoked_keys: number;
  suspended_accounts: number;
  frozen_wallets: number;
  /** Refills, and orders to extend a lease while it is busy. */
  ended_orders: number;
  /** Leases whose list is again the one that their agents set last. */
  narrowed_leases: number;
  frozen_installation: boolean;
};

const ENDED_SINCE = 'it had ended in the books that were replaced by a backup of before';
/** The wallets that had ended, as `endedBy` says: one below another keeps its own row until it is closed. */
const FROZEN_OR_ENDED = `with recursive ended(id) as (
    select id from wallet where status <> 'active'
    union select wallet.id from wallet join ended on wallet.parent_id = ended.id where wallet.parent_id is not null
  )
  select id, freeze_reason as reason, id in ended as hasEnded from wallet where frozen_at is not null or id in ended`;

/** Reads the restrictions from books of any version that has them. Throws the errors of SQLite. */
export function readRestrictions(client: Database['client']): Restrictions {
  const all = <Row>(query: string) => client.prepare(query).all() as Row[];
  const hasColumn = client.prepare('select 1 from pragma_table_info(?) where name = ?');
  /** Returns none where the books are older than this column: what it stops did not exist then. */
  const since = <Row>(table: string, column: string, query: string) =>
    hasColumn.get(table, column) ? all<Row>(query) : [];
  const [installation] = all<Restrictions['installation']>(
    'select frozen_at is not null as isFrozen, freeze_reason as reason from installation',
  );
  return {
    keys: all('select id, kind from key where revoked_at is not null'),
    routerKeys: all('select id from router_key where revoked_at is not null'),
    passkeys: since(
      'passkey',
      'removed_at',
      'select id, use_count as useCount, removed_at is not null as isRemoved from passkey',
    ),
    accounts: all('select id from account where suspended_at is not null'),
    disputed: since(
      'account',
      'disputed_at',
      'select id, disputed_at as at from account where disputed_at is not null',
    ),
    wallets: all(FROZEN_OR_ENDED),
    unfilled: since('wallet', 'refill', "select id from wallet where status = 'active' and refill is null"),
    keeps: since('keep', 'ended_at', 'select id from keep where ended_at is not null'),
    egress: since(
      'resource',
      'egress_allow',
      'select id, egress_allow as allow from resource where ended_at is null and egress_allow is not null',
    ),
    installation: installation ?? { isFrozen: 0, reason: null },
  };
}

/**
 * Revokes, suspends, freezes, ends and narrows in restored books everything that was in the replaced ones. Freezes an active wallet
 * that had ended there: its rest may go back to its account, but must not be spent. The rows alone say what is active, as the clock
 * of the machine may be wrong.
 */
export function keepRestrictions(tx: Tx, from: Restrictions, now: number): KeptRestrictions {
  const wallets = from.wallets.filter(({ id }) => findActive(tx, id)?.frozenAt === null);
  for (const { id, reason, hasEnded } of wallets)
    freezeAny(tx, findWallet(tx, id) as Wallet, { frozenAt: now, reason: hasEnded ? ENDED_SINCE : reason, now });
  const accounts = from.accounts.filter(({ id }) => findAccount(tx, id)?.suspendedAt === null);
  for (const { id } of accounts) suspendAccount.run(tx, { id, at: now });
  for (const { id, at } of from.disputed) if (findAccount(tx, id)?.disputedAt === null) setDisputed(tx, id, at);
  const { installation } = from;
  const freezes = installation.isFrozen === 1 && !isFrozen(tx);
  if (freezes) freeze.run(tx, { at: now, reason: installation.reason });
  return {
    revoked_keys: revoke(tx, from, now),
    suspended_accounts: accounts.length,
    frozen_wallets: wallets.length,
    ended_orders: endOrders(tx, from, now),
    narrowed_leases: narrow(tx, from),
    frozen_installation: freezes,
  };
}

/** Returns a wallet that may spend by the rows, whatever the time. */
function findActive(read: Reader, id: string): Wallet | undefined {
  const wallet = findWallet(read, id);
  return wallet && !endedBy(read, wallet) ? wallet : undefined;
}

/** Revokes keys and gateway keys, removes passkeys, and notes the uses of the others. Returns the number of those that worked. */
function revoke(tx: Tx, from: Restrictions, now: number): number {
  const keys = from.keys.filter(({ id, kind }) => {
    const known = findKey(tx, id);
    return known?.revokedAt === null && known.kind === kind;
  });
  for (const { id, kind } of keys) revokeKey(tx, id, kind, now);
  const routerKeys = from.routerKeys.filter(({ id }) => findRouterKey(tx, id)?.revokedAt === null);
  for (const { id } of routerKeys) revokeRouterKey(tx, id, now);
  const passkeys = from.passkeys.filter(({ id }) => findPasskeyById(tx, id)?.removedAt === null);
  for (const { id, useCount } of passkeys) notePasskeyUses(tx, id, useCount);
  const removed = passkeys.filter(({ isRemoved }) => isRemoved === 1);
  for (const { id } of removed) removePasskey.run(tx, { id, now });
  return keys.length + routerKeys.length + removed.length;
}

/** Ends what would spend by itself: refills, and the extension of busy leases. Returns how many had not ended. */
function endOrders(tx: Tx, { wallets, unfilled, keeps }: Restrictions, now: number): number {
  const ids = new Set([...unfilled, ...wallets.filter((it) => it.hasEnded)].map((it) => it.id));
  const refills = [...ids].flatMap((id) => {
    const known = findActive(tx, id);
    return known && known.refill !== null ? [known] : [];
  });
  for (const wallet of refills) endRefill(tx, wallet);
  const active = keeps.filter(({ id }) => findKeep(tx, id)?.endedAt === null);
  for (const { id } of active) endKeep.run(tx, { id, reason: 'requested', message: null, now });
  return refills.length + active.length;
}

/** Gives the leases the lists that their agents named last. Returns how many had another one. */
function narrow(tx: Tx, { egress }: Restrictions): number {
  const leases = egress.filter(({ id, allow }) => {
    const known = findResource(tx, id);
    return known?.endedAt === null && known.egressAllow !== allow;
  });
  for (const { id, allow } of leases) changeResource.run(tx, { id, values: { egressAllow: allow } });
  return leases.length;
}
