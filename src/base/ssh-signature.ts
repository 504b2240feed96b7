import { createPublicKey, hash, verify } from 'node:crypto';

/** Verifies signatures of `ssh-keygen -Y sign` (OpenSSH, PROTOCOL.sshsig), of ed25519 keys alone. */

const MAGIC = Buffer.from('SSHSIG');
const VERSION = 1;
const ALGORITHM = 'ssh-ed25519';
const [KEY_BYTES, SIGNATURE_BYTES] = [32, 64];
/** An ed25519 public key as SubjectPublicKeyInfo, up to its 32 bytes (RFC 8410). */
const SPKI_HEAD = Buffer.from('302a300506032b6570032100', 'hex');
const ARMOUR = /^-----BEGIN SSH SIGNATURE-----\n([A-Za-z0-9+/=\n]+)-----END SSH SIGNATURE-----\n?$/;

/** Reads the fields of a blob of SSH one after another. Throws RangeError where it is cut. */
function fieldsOf(blob: Buffer) {
  let at = 0;
  const take = (bytes: number): Buffer => {
    if (at + bytes > blob.length) throw new RangeError('it is cut');
    at += bytes;
    return blob.subarray(at - bytes, at);
  };
  const uint32 = () => take(4).readUInt32BE();
  return {
    take,
    uint32,
    string: () => take(uint32()),
    /** Throws where there is more. */
    end() {
      if (at !== blob.length) throw new RangeError('it has more bytes than it should have');
    },
  };
}

/** Returns a string of SSH: its length, then its bytes. */
function stringOf(content: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(content.length);
  return Buffer.concat([length, content]);
}

/** Returns the 32 bytes of a key in the form of SSH. Throws RangeError where it is no ed25519 key. */
function pointOf(blob: Buffer): Buffer {
  const fields = fieldsOf(blob);
  if (fields.string().toString('latin1') !== ALGORITHM) throw new RangeError('its key is no ed25519 key');
  const point = fields.string();
  fields.end();
  if (point.length !== KEY_BYTES) throw new RangeError('its key is no ed25519 key');
  return point;
}

/** Returns the key of a line `ssh-ed25519 AAAA… comment` in the form of SSH; undefined where it is none. */
export function ed25519KeyOf(line: string): Buffer | undefined {
  const [type, text = ''] = line.trim().split(/ +/);
  const blob = Buffer.from(text, 'base64');
  if (type !== ALGORITHM || blob.toString('base64') !== text) return undefined;
  try {
    pointOf(blob);
    return blob;
  } catch {
    return undefined;
  }
}

/**
 * Returns why an armoured signature is not that of one of the `trusted` keys (in the form of SSH) on `content` in `namespace`, as a
 * sentence without its subject; undefined if it is.
 */
export function signatureFault(
  content: Buffer,
  armoured: string,
  namespace: string,
  trusted: readonly Buffer[],
): string | undefined {
  const text = ARMOUR.exec(armoured.replaceAll('\r\n', '\n'))?.[1]?.replaceAll('\n', '');
  if (text === undefined) return 'is not in the form that `ssh-keygen -Y sign` writes';
  const blob = Buffer.from(text, 'base64');
  if (blob.toString('base64') !== text) return 'is not in the form that `ssh-keygen -Y sign` writes';
  try {
    const fields = fieldsOf(blob);
    if (!fields.take(MAGIC.length).equals(MAGIC) || fields.uint32() !== VERSION) return 'is no signature of version 1';
    const [key, space, reserved] = [fields.string(), fields.string(), fields.string()];
    const algorithm = fields.string();
    const signature = fieldsOf(fields.string());
    fields.end();
    const point = pointOf(key);
    if (!trusted.some((it) => it.equals(key))) return 'is by a key that is not trusted';
    if (space.toString('latin1') !== namespace) return `is for ${JSON.stringify(space.toString('latin1'))}`;
    const digest = algorithm.toString('latin1');
    if (digest !== 'sha256' && digest !== 'sha512') return 'has another digest than SHA-256 and SHA-512';
    const [type, bytes] = [signature.string().toString('latin1'), signature.string()];
    signature.end();
    if (type !== ALGORITHM || bytes.length !== SIGNATURE_BYTES) return 'is not of ed25519';
    const signed = [space, reserved, algorithm, hash(digest, content, 'buffer')].map(stringOf);
    const spki = { key: Buffer.concat([SPKI_HEAD, point]), format: 'der', type: 'spki' } as const;
    if (verify(null, Buffer.concat([MAGIC, ...signed]), createPublicKey(spki), bytes)) return undefined;
    return 'does not fit what it signs';
  } catch (error) {
    if (error instanceof RangeError) return `cannot be read: ${error.message}`;
    throw error;
  }
}
