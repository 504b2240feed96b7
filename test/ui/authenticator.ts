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
    publicKey: publicKey.export({ type: 'spki', format: 'der' }),
    /** Makes the credential, as `navigator.credentials.create()` answers in JSON. */
    make(options: Options, twist: Twist = {}): string {
      handle = Buffer.from(options.user?.id as string, 'base64url');
      const credential = Buffer.concat([Buffer.alloc(16), Buffer.from([0, credentialId.length]), credentialId]);
      const made = data(options.rp?.id as string, PRESENT | RECOGNISED | HAS_CREDENTIAL, twist, credential);
      return JSON.stringify({
        id: base64url(twist.rawId ?? credentialId),
        rawId: base64url(twist.rawId ?? credentialId),
        type: 'public-key',
        authenticatorAttachment: 'platform',
        clientExtensionResults: {},
        response: {
          clientDataJSON: base64url(clientData('webauthn.create', options, twist)),
          authenticatorData: base64url(made),
          publicKey: base64url(publicKey.export({ type: 'spki', format: 'der' })),
          publicKeyAlgorithm: -7,
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
