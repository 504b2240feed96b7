import assert from 'node:assert/strict';
import { newId } from '../base/id.ts';
import type { Reader } from '../db/handle.ts';
import { findInstallation } from '../ledger/installation.ts';
import { type MasterKeyRow, masterKeyRows } from '../ledger/master-keys.ts';
import { type MasterKey, NoMasterKeyError } from './master-key.ts';
import { deriveToken, hashToken, lastFour } from './token.ts';
import { unwrapKey } from './wrapped-key.ts';

/** The master keys that tokens are derived from: the current one, and older ones that live wallets still need. */
export type Keyring = {
  readonly current: MasterKey;
  /** The configured key. It is the current one, except while a rotation has not reached the configuration. */
  given: MasterKey;
  /** All keys, the configured one included. */
  all(): MasterKey[];
  find(id: string): Buffer | undefined;
  /** Makes `next` the current key, which new wallets use. */
  turn(next: MasterKey): void;
  /** Removes a key that no live wallet needs any more. */
  forget(id: string): void;
};

/** Creates a keyring of the `current` key, `others` that live wallets still need, and the configured key, `given`. */
export function createKeyring(current: MasterKey, others: readonly MasterKey[] = [], given = current): Keyring {
  const keys = new Map([...others, given, current].map((it) => [it.id, it]));
  return {
    given,
    get current() {
      return current;
    },
    all: () => [...keys.values()],
    find: (id) => keys.get(id)?.key,
    turn(next) {
      keys.set(next.id, next);
      current = next;
    },
    forget: (id) => void keys.delete(id),
  };
}

/**
 * Opens the keyring of this database with the configured key: the current one, or its predecessor while a rotation has not
 * reached the configuration. Throws when it is another key, or when a wrapped key cannot be unwrapped.
 */
export function openKeyring(read: Reader, given: MasterKey): Keyring {
  const wanted = findInstallation(read)?.masterKeyId;
  if (wanted === undefined) return createKeyring(given);
  const rows = masterKeyRows(read);
  const current = given.id === wanted ? given : successor(rows, wanted, given);
  const older = rows.filter((it) => it.id !== wanted && it.wrapped !== null);
  return createKeyring(
    current,
    older.map(({ id, wrapped }) => unwrapKey(id, wrapped as Buffer, current)),
    given,
  );
}

function successor(rows: readonly MasterKeyRow[], wanted: string, given: MasterKey): MasterKey {
  const row = rows.find((it) => it.id === wanted);
  if (row?.wrapped && row.wrappedBy === given.id) return unwrapKey(wanted, row.wrapped, given);
  throw new NoMasterKeyError(
    `The master key is ${given.id}, but this database belongs to ${wanted}. Give Purser the key it was made with${rows.some((it) => it.id === given.id) ? ', since it was rotated or replaced: the one that `purser master-key rotate` or `replace --lost` made' : ''}`,
  );
}

/** Returns a new wallet's token, and the columns that its row stores in its place. */
export function walletCredential(keyring: Keyring, walletId: string) {
  const token = deriveToken('wallet', keyring.current.key, walletId);
  return { token, row: { masterKeyId: keyring.current.id, tokenHash: hashToken(token), tokenHint: lastFour(token) } };
}

/** Returns the id of a new gateway key of a wallet, and the columns that its row stores in place of its token. */
export function routerCredential(keyring: Keyring, { masterKeyId }: Pick<KeyedRow, 'masterKeyId'>) {
  return routerRow(keyring, { id: newId('key'), masterKeyId });
}

/** Returns the columns that a gateway key's row stores in place of its token. */
export function routerRow(keyring: Keyring, { id, masterKeyId }: KeyedRow) {
  const token = routerToken(keyring, { id, masterKeyId });
  return { id, masterKeyId, tokenHash: hashToken(token), last4: lastFour(token) };
}

type KeyedRow = { id: string; masterKeyId: string };

/** Derives a wallet's token again; it is never stored (design, section 1). */
export const walletToken = (keyring: Keyring, wallet: KeyedRow): string => derive(keyring, 'wallet', wallet);

/** Derives the token of a gateway key again. */
export const routerToken = (keyring: Keyring, key: KeyedRow): string => derive(keyring, 'router', key);

function derive(keyring: Keyring, kind: 'wallet' | 'router', { id, masterKeyId }: KeyedRow): string {
  const key = keyring.find(masterKeyId);
  assert(key, 'a master key is kept until the last wallet that needs it is closed');
  return deriveToken(kind, key, id);
}
