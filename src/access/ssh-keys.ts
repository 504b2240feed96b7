import assert from 'node:assert/strict';
import { createHmac, randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { type SshKey, sshKeyFromSeed } from '../base/ssh-key.ts';
import { writeDurablySync } from '../files/durable-file.ts';
import type { Wallet } from '../ledger/wallet.ts';
import type { Keyring } from './keyring.ts';

const SEED_BYTES = 32;

/** Derives the only SSH key of a resource from its wallet's master key, so that it need not be stored. */
export function resourceKey(keyring: Keyring, wallet: Pick<Wallet, 'masterKeyId'>, resource: { id: string }): SshKey {
  const master = keyring.find(wallet.masterKeyId);
  assert(master, 'a master key is kept until the last wallet that needs it is closed');
  const seed = createHmac('sha256', master).update(`purser/ssh-key/v1\0${resource.id}`).digest();
  return sshKeyFromSeed(seed, resource.id);
}

/** Returns the SSH gateway's host key. Its seed is in `file`, created on first use with mode 0600. */
export function hostKey(file: string): SshKey {
  if (!existsSync(file)) writeDurablySync(file, `${randomBytes(SEED_BYTES).toString('hex')}\n`);
  return sshKeyFromSeed(Buffer.from(readFileSync(file, 'utf8').trim(), 'hex'), 'purser');
}
