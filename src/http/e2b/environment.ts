import { createCipheriv, createDecipheriv, createHmac, type DecipherGCM, randomBytes } from 'node:crypto';
import type { Keyring } from '../../access/keyring.ts';
import { parseJson } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';
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

/** Decrypts what `sealVariables` returned. Throws `invalid_request` when that was under a master key that was lost since. */
export function openVariables(keys: KeyFinder, owner: VariablesOwner, sealed: Buffer | null): SandboxVariables {
  if (!sealed) return {};
  const decipher = createDecipheriv(CIPHER, keyOf(keys, owner), sealed.subarray(0, NONCE_BYTES), {
    authTagLength: TAG_BYTES,
  });
  decipher.setAuthTag(sealed.subarray(-TAG_BYTES));
  return parseJson(finished(decipher, sealed.subarray(NONCE_BYTES, -TAG_BYTES)).toString()) as SandboxVariables;
}

/** Returns the whole text. The checksum of its row tells damage, so what does not fit is the key: `master-key replace --lost`. */
function finished(decipher: DecipherGCM, text: Buffer): Buffer {
  try {
    return Buffer.concat([decipher.update(text), decipher.final()]);
  } catch (cause) {
    const message =
      'The variables of this sandbox were encrypted under a master key that was lost. Create another sandbox with them.';
    throw new Refusal('invalid_request', message, { cause });
  }
}
