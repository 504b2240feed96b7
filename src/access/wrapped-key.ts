import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import { fingerprintOf, type MasterKey } from './master-key.ts';

const CIPHER = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** Derives a separate wrapping key, as the master key itself is only used for HMAC. */
const wrappingKey = (under: MasterKey) => createHmac('sha256', under.key).update('purser/master-key-seal/v1').digest();
/** The additional authenticated data: both key ids, so that a wrapped key cannot be moved to another row. */
const associatedData = (id: string, under: MasterKey) => Buffer.from(`${id}\n${under.id}`);

/** Encrypts and authenticates a master key with another. Returns nonce, ciphertext and tag. */
export function wrapKey(key: MasterKey, under: MasterKey): Buffer {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(CIPHER, wrappingKey(under), nonce);
  cipher.setAAD(associatedData(key.id, under));
  return Buffer.concat([nonce, cipher.update(key.key), cipher.final(), cipher.getAuthTag()]);
}

/** Decrypts the result of `wrapKey`. Throws when it is damaged or was wrapped with another key. */
export function unwrapKey(id: string, wrapped: Buffer, under: MasterKey): MasterKey {
  const fault = `The master key ${id} cannot be opened with ${under.id}: its wrapped copy in the database is damaged. Restore the newest backup.`;
  try {
    const decipher = createDecipheriv(CIPHER, wrappingKey(under), wrapped.subarray(0, NONCE_BYTES), {
      authTagLength: TAG_BYTES,
    });
    decipher.setAAD(associatedData(id, under));
    decipher.setAuthTag(wrapped.subarray(-TAG_BYTES));
    const key = Buffer.concat([decipher.update(wrapped.subarray(NONCE_BYTES, -TAG_BYTES)), decipher.final()]);
    if (fingerprintOf(key) === id) return { id, key };
  } catch {} // Node's message is "Unsupported state or unable to authenticate data", or that the tag is short.
  throw new Error(fault);
}
