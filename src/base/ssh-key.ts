import { createPrivateKey, createPublicKey, hash } from 'node:crypto';

/** PKCS#8 of an ed25519 key up to its seed (RFC 8410). */
const PKCS8_HEAD = Buffer.from('302e020100300506032b657004220420', 'hex');
const SEED_BYTES = 32;
const LINE_CHARACTERS = 70;

export type SshKey = {
  /** PEM in OpenSSH's own format, without a passphrase. */
  privateKey: string;
  /** A line of the form `ssh-ed25519 AAAA… comment`. */
  publicKey: string;
};

/**
 * Returns the ed25519 key of a seed of 32 bytes, in the formats of OpenSSH: equal seeds give equal keys, byte for byte. ssh2's own
 * generator makes a malformed key about once in 300.
 */
export function sshKeyFromSeed(seed: Buffer, comment: string): SshKey {
  if (seed.length !== SEED_BYTES) throw new RangeError(`a seed has ${SEED_BYTES} bytes, not ${seed.length}`);
  const key = createPrivateKey({ key: Buffer.concat([PKCS8_HEAD, seed]), format: 'der', type: 'pkcs8' });
  const point = Buffer.from(createPublicKey(key).export({ format: 'jwk' }).x as string, 'base64url');
  const blob = Buffer.concat([field('ssh-ed25519'), field(point)]);
  // Four bytes, repeated, distinguish a right passphrase from a wrong one; without a passphrase they may follow from the seed.
  const check = hash('sha256', Buffer.concat([Buffer.from('check'), point]), 'buffer').subarray(0, 4);
  const inner = Buffer.concat([check, check, blob, field(Buffer.concat([seed, point])), field(comment)]);
  const padding = Buffer.from([1, 2, 3, 4, 5, 6, 7].slice(0, (8 - (inner.length % 8)) % 8));
  const body = Buffer.concat([
    Buffer.from('openssh-key-v1\0'),
    field('none'),
    field('none'),
    field(''),
    Buffer.from([0, 0, 0, 1]),
    field(blob),
    field(Buffer.concat([inner, padding])),
  ]);
  const lines = body.toString('base64').match(new RegExp(`.{1,${LINE_CHARACTERS}}`, 'g')) as string[];
  return {
    privateKey: `-----BEGIN OPENSSH PRIVATE KEY-----\n${lines.join('\n')}\n-----END OPENSSH PRIVATE KEY-----\n`,
    publicKey: `ssh-ed25519 ${blob.toString('base64')} ${comment}`,
  };
}

/** A string of the SSH protocol: its length, then its bytes. */
function field(content: Buffer | string): Buffer {
  const bytes = Buffer.from(content as Buffer);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}
