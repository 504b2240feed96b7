import assert from 'node:assert/strict';
import { deriveToken, hashToken, lastFour } from '../token.ts';
import type { MasterKey } from './master-key.ts';

/** The master keys by which tokens are derived: the current one, and any older one that a live wallet still needs. */
export type Keyring = { current: MasterKey; find(id: string): Buffer | undefined };

export function createKeyring(current: MasterKey): Keyring {
  return { current, find: (id) => (id === current.id ? current.key : undefined) };
}

/** A new wallet's token, and what its row may know of it. */
export function walletCredential(keyring: Keyring, walletId: string) {
  const token = deriveToken('wallet', keyring.current.key, walletId);
  return { token, row: { masterKeyId: keyring.current.id, tokenHash: hashToken(token), tokenHint: lastFour(token) } };
}

type Row = { id: string; masterKeyId: string };

/** A wallet's token once more: derived, never stored (design, section 1). */
export const walletToken = (keyring: Keyring, wallet: Row): string => derive(keyring, 'wallet', wallet);

/** The token of a gateway key, in the same way. */
export const routerToken = (keyring: Keyring, key: Row): string => derive(keyring, 'router', key);

function derive(keyring: Keyring, kind: 'wallet' | 'router', { id, masterKeyId }: Row): string {
  const key = keyring.find(masterKeyId);
  assert(key, 'a master key is kept until the last wallet that needs it is closed');
  return deriveToken(kind, key, id);
}
