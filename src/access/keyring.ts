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

/** A wallet's token once more: derived, never stored (design, section 1). */
export function walletToken(keyring: Keyring, wallet: { id: string; masterKeyId: string }): string {
  const key = keyring.find(wallet.masterKeyId);
  assert(key, 'a master key is kept until the last wallet that needs it is closed');
  return deriveToken('wallet', key, wallet.id);
}
