import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import type { Keyring } from '../access/keyring.ts';
import type { SecretsOrder } from '../compute/backend.ts';
import type { LeaseSecretSettings } from '../config/accounts.ts';
import type { Config } from '../config/config.ts';
import { type Authority, createAuthority } from '../egress/authority.ts';
import type { Secrets } from '../egress/proxy.ts';
import { findAccount } from '../ledger/account.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import type { TenantOf } from '../ledger/tenant.ts';
import { findWallet } from '../ledger/wallet.ts';
import type { LeaseApp } from './create.ts';

export type SecretsApp = Pick<LeaseApp, 'ledger'> & {
  config: Pick<Config, 'accounts'>;
  keyring: Keyring;
  tenantOf: TenantOf;
};

/** The secrets of leases, as the settings have them at each call. */
type LeaseSecrets = {
  /** Returns the secrets that a new machine is given, or undefined. */
  orderOf(row: Resource): SecretsOrder | undefined;
  /** Returns whether the new machines of a wallet are given any. */
  areGiven(walletId: string): boolean;
  /** Returns the secrets of a lease as its proxy uses them. */
  of(id: string): Omit<Secrets, 'enter'>;
  /** Drops what is kept of a lease. */
  forget(id: string): void;
};

/**
 * Creates the secrets of leases. Placeholders and authorities are derived from the master key of the wallet: they are the same
 * after a restart and stored nowhere, and those of one lease reveal nothing of another's.
 */
export function createLeaseSecrets(app: SecretsApp): LeaseSecrets {
  const authorities = new Map<string, Authority>();

  function settingsOf({ walletId }: Pick<Resource, 'walletId'>): readonly LeaseSecretSettings[] {
    const { accounts } = app.config;
    const name = findAccount(app.ledger.read, app.tenantOf(walletId).accountId)?.name;
    return name !== undefined && Object.hasOwn(accounts, name) ? (accounts[name]?.secrets ?? []) : [];
  }

  function derive({ id, walletId }: Resource, purpose: 'placeholder' | 'authority', name = ''): Buffer {
    const wallet = findWallet(app.ledger.read, walletId);
    const master = wallet && app.keyring.find(wallet.masterKeyId);
    assert(master, 'a master key is kept until the last wallet that needs it is closed');
    return createHmac('sha256', master).update(`purser/secret-${purpose}/v1\0${id}\0${name}`).digest();
  }

  const placeholderOf = (row: Resource, name: string) =>
    `purser_placeholder_${derive(row, 'placeholder', name).toString('hex')}`;

  const makeAuthority = (row: Resource) => createAuthority(derive(row, 'authority'), row.id, row.createdAt);

  function authorityOf(id: string): Authority {
    const authority = authorities.get(id) ?? makeAuthority(findResource(app.ledger.read, id) as Resource);
    authorities.set(id, authority);
    return authority;
  }

  return {
    orderOf(row) {
      const settings = settingsOf(row);
      if (!settings.length) return undefined;
      const variables = Object.fromEntries(settings.map(({ name }) => [name, placeholderOf(row, name)]));
      return { variables, authority: makeAuthority(row).certificate };
    },
    areGiven: (walletId) => settingsOf({ walletId }).length > 0,
    of: (id) => ({
      replacements(host, port) {
        const row = findResource(app.ledger.read, id);
        if (!row) return [];
        const place = [`${host}:${port}`, ...(port === 443 ? [host] : [])];
        return settingsOf(row).flatMap(({ name, host: only, header, value }) =>
          place.includes(only) ? [{ header, placeholder: placeholderOf(row, name), value }] : [],
        );
      },
      authority: () => authorityOf(id),
    }),
    forget: (id) => void authorities.delete(id),
  };
}
