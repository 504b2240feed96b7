import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import type { Keyring } from '../../access/keyring.ts';
import { parseJson } from '../../base/parse-json.ts';
import type { Wallet } from '../../ledger/wallet.ts';

/** The variables of a sandbox, which often contain its user's keys: stored encrypted, for all commands of its life. */

const CIPHER = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

type KeyFinder = { keyring: Pick<Keyring, 'find'> };
type VariablesOwner = Pick<Wallet, 'id' | 'masterKeyId'>;
type SandboxVariables = Readonly<Record<string, string>>;

function keyOf({ keyring }: KeyFinder, { id, masterKeyId }: VariablesOwner): Buffer {
  const master = keyring.find(masterKeyId);
  if (!master) throw new Error('the master key of a live wallet is gone');
  return createHmac('sha256', master).update(`purser/e2b-environment/v1\0${id}`).digest();
}

/** Encrypts variables for a wallet; null for none. */
export function sealVariables(keys: KeyFinder, owner: VariablesOwner, variables: SandboxVariables): Buffer | null {
  if (!Object.keys(variables).length) return null;
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(CIPHER, keyOf(keys, owner), nonce);
  const text = Buffer.concat([cipher.update(JSON.stringify(variables)), cipher.final()]);
  return Buffer.concat([nonce, text, cipher.getAuthTag()]);
}

/** Decrypts what `sealVariables` returned. Throws when it is damaged or belongs to another wallet. */
export function openVariables(keys: KeyFinder, owner: VariablesOwner, sealed: Buffer | null): SandboxVariables {
  if (!sealed) return {};
  const decipher = createDecipheriv(CIPHER, keyOf(keys, owner), sealed.subarray(0, NONCE_BYTES), {
    authTagLength: TAG_BYTES,
  });
  decipher.setAuthTag(sealed.subarray(-TAG_BYTES));
  const text = Buffer.concat([decipher.update(sealed.subarray(NONCE_BYTES, -TAG_BYTES)), decipher.final()]);
  return parseJson(text.toString()) as SandboxVariables;
}
