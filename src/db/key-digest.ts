import { hash } from 'node:crypto';

/** Two keys with one digest would take 2^64 attempts. */
const DIGEST_BYTES = 16;

/** Returns the digest of an idempotency key in its scope, 16 bytes of SHA-256. */
export function keyDigest(walletId: string, route: string, key: string): Buffer {
  return hash('sha256', `${walletId}\n${route}\n${key}`, 'buffer').subarray(0, DIGEST_BYTES);
}
