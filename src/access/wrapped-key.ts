import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import { fingerprintOf, type MasterKey } from './master-key.ts';

const CIPHER = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** A key for sealing alone: the master key itself is only ever hashed. */
const sealingKey = (under: MasterKey) => createHmac('sha256', under.key).update('purser/master-key-seal/v1').digest();
/** Whose key it is, and under which, is authenticated with it: a sealed key cannot be put on another row. */
const bound = (id: string, under: MasterKey) => Buffer.from(`${id}\n${under.id}`);

/** A master key, encrypted and authenticated under another: nonce, ciphertext, tag. */
export function wrapKey(key: MasterKey, under: MasterKey): Buffer {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(CIPHER, sealingKey(under), nonce);
  cipher.setAAD(bound(key.id, under));
  return Buffer.concat([nonce, cipher.update(key.key), cipher.final(), cipher.getAuthTag()]);
}

/** Opens what `sealKey` made. Throws when it was damaged, or sealed under another key. */
export function unwrapKey(id: string, sealed: Buffer, under: MasterKey): MasterKey {
  const fault = `The master key ${id} cannot be opened with ${under.id}: its sealed copy in the database is damaged. Restore the newest backup.`;
  try {
    const decipher = createDecipheriv(CIPHER, sealingKey(under), sealed.subarray(0, NONCE_BYTES), {
      authTagLength: TAG_BYTES,
    });
    decipher.setAAD(bound(id, under));
    decipher.setAuthTag(sealed.subarray(-TAG_BYTES));
    const key = Buffer.concat([decipher.update(sealed.subarray(NONCE_BYTES, -TAG_BYTES)), decipher.final()]);
    if (fingerprintOf(key) === id) return { id, key };
  } catch {} // Node says "Unsupported state or unable to authenticate data", or that the tag is short.
  throw new Error(fault);
}
