import { generateKeyPairSync, hash, type KeyObject, randomBytes, sign } from 'node:crypto';

/** What differs from an honest answer. */
export type Twist = {
  origin?: string;
  type?: string;
  challenge?: string;
  crossOrigin?: boolean;
  topOrigin?: string;
  site?: string;
  flags?: number;
  count?: number;
  rawId?: Buffer;
  handle?: Buffer | null;
  signer?: KeyObject;
  /** A statement on its maker, which was not asked for. */
  attestation?: { fmt: string; attStmt: Map<string, Cbor> };
  /** Changes the signature, or the bytes of what was signed after they were signed. */
  spoil?: 'signature' | 'data' | 'client';
};
type Options = {
  challenge: string;
  rp?: { id: string };
  rpId?: string;
  user?: { id: string; name: string };
};

export const PRESENT = 0x01;
export const RECOGNISED = 0x04;
const HAS_CREDENTIAL = 0x40;
const base64url = (bytes: Buffer) => bytes.toString('base64url');

/** Encodes text, bytes, integers and maps, which is what an authenticator sends of CBOR (RFC 8949). */
type Cbor = string | number | Buffer | Map<string | number, Cbor>;
function cbor(value: Cbor): Buffer {
  const head = (major: number, count: number) => {
    if (count < 24) return Buffer.from([(major << 5) | count]);
    return count < 256
      ? Buffer.from([(major << 5) | 24, count])
      : Buffer.from([(major << 5) | 25, count >> 8, count & 255]);
  };
  if (typeof value === 'number') return value < 0 ? head(1, -1 - value) : head(0, value);
  if (typeof value === 'string') return Buffer.concat([head(3, Buffer.byteLength(value)), Buffer.from(value)]);
  if (Buffer.isBuffer(value)) return Buffer.concat([head(2, value.length), value]);
  return Buffer.concat([head(5, value.size), ...[...value].flat().map(cbor)]);
}

/** Returns a public key in the form of COSE (RFC 9053). */
function coseOf(key: KeyObject): Buffer {
  const { kty, crv, ...jwk } = key.export({ format: 'jwk' });
  const part = (name: string) => Buffer.from(jwk[name] as string, 'base64url');
  const entries: [number, Cbor][] =
    kty === 'EC'
      ? [
          [1, 2],
          [3, crv === 'P-256' ? -7 : -35],
          [-1, crv === 'P-256' ? 1 : 2],
          [-2, part('x')],
          [-3, part('y')],
        ]
      : kty === 'OKP'
        ? [
            [1, 1],
            [3, -8],
            [-1, 6],
            [-2, part('x')],
          ]
        : [
            [1, 3],
            [3, -257],
            [-1, part('n')],
            [-2, part('e')],
          ];
  return cbor(new Map(entries));
}

const KINDS = {
  ec: () => generateKeyPairSync('ec', { namedCurve: 'prime256v1' }),
  rsa: () => generateKeyPairSync('rsa', { modulusLength: 2048 }),
  ed25519: () => generateKeyPairSync('ed25519'),
  p384: () => generateKeyPairSync('ec', { namedCurve: 'secp384r1' }),
  weak: () => generateKeyPairSync('rsa', { modulusLength: 1024 }),
} as const;
export type Kind = keyof typeof KINDS;

/** An authenticator and the browser in front of it, at one origin. It has one credential, and counts its uses unless told not to. */
export function openAuthenticator(origin: string, kind: Kind = 'ec', isCounting = true) {
  const { publicKey, privateKey } = KINDS[kind]();
  const credentialId = randomBytes(32);
  let handle = Buffer.alloc(0);
  let count = 0;

  function clientData(type: string, options: Options, twist: Twist): Buffer {
    const { challenge = options.challenge, crossOrigin = false, topOrigin } = twist;
    const data = { type: twist.type ?? type, challenge, origin: twist.origin ?? origin, crossOrigin, topOrigin };
    return Buffer.from(JSON.stringify(data));
  }
  function data(site: string, flags: number, twist: Twist, credential = Buffer.alloc(0)): Buffer {
    if (isCounting) count += 1;
    const head = Buffer.alloc(5);
    head.writeUInt8(twist.flags ?? flags);
    head.writeUInt32BE(twist.count ?? count, 1);
    return Buffer.concat([hash('sha256', twist.site ?? site, 'buffer'), head, credential]);
  }
  return {
    credentialId,
    publicKey: coseOf(publicKey),
    /** Makes the credential, as `navigator.credentials.create()` answers in JSON. */
    make(options: Options, twist: Twist = {}): string {
      handle = Buffer.from(options.user?.id as string, 'base64url');
      const credential = Buffer.concat([
        Buffer.alloc(16),
        Buffer.from([0, credentialId.length]),
        credentialId,
        coseOf(publicKey),
      ]);
      const flags = twist.flags ?? PRESENT | RECOGNISED | HAS_CREDENTIAL;
      const isWhole = (flags & HAS_CREDENTIAL) !== 0;
      const made = data(options.rp?.id as string, flags, twist, isWhole ? credential : undefined);
      const { fmt, attStmt } = twist.attestation ?? { fmt: 'none', attStmt: new Map() };
      const object = new Map<string, Cbor>(Object.entries({ fmt, attStmt, authData: made }));
      return JSON.stringify({
        id: base64url(twist.rawId ?? credentialId),
        rawId: base64url(twist.rawId ?? credentialId),
        type: 'public-key',
        authenticatorAttachment: 'platform',
        clientExtensionResults: {},
        response: {
          clientDataJSON: base64url(clientData('webauthn.create', options, twist)),
          attestationObject: base64url(cbor(object)),
          transports: ['internal'],
        },
      });
    },
    /** Signs a challenge, as `navigator.credentials.get()` answers in JSON. */
    answer(options: Options, twist: Twist = {}): string {
      const shown = data(options.rpId as string, PRESENT | RECOGNISED, twist);
      const client = clientData('webauthn.get', options, twist);
      const signed = Buffer.concat([shown, hash('sha256', client, 'buffer')]);
      const signature = sign(kind === 'ed25519' ? null : 'sha256', signed, twist.signer ?? privateKey);
      if (twist.spoil === 'signature') signature.writeUInt8(signature.readUInt8(20) ^ 1, 20);
      if (twist.spoil === 'data') shown.writeUInt32BE(shown.readUInt32BE(33) + 1, 33);
      const told = twist.spoil === 'client' ? Buffer.concat([client, Buffer.from(' ')]) : client;
      return JSON.stringify({
        id: base64url(twist.rawId ?? credentialId),
        rawId: base64url(twist.rawId ?? credentialId),
        type: 'public-key',
        clientExtensionResults: {},
        response: {
          clientDataJSON: base64url(told),
          authenticatorData: base64url(shown),
          signature: base64url(signature),
          userHandle: twist.handle === null ? undefined : base64url(twist.handle ?? handle),
        },
      });
    },
  };
}
export type Authenticator = ReturnType<typeof openAuthenticator>;
