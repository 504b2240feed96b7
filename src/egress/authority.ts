import {
  constants,
  createECDH,
  createHmac,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
} from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';
import { TLS_VERSION_MIN } from '../net/certificate.ts';
import { makeCertificate } from '../net/x509.ts';

/** The authority of one lease, whose certificates only that lease trusts. */
export type Authority = {
  /** The authority's certificate, in PEM. */
  certificate: string;
  /** Returns the context of a TLS server that is this host towards the lease. */
  contextOf(host: string): SecureContext;
};

const DAY = 86_400;
/** Longer than any lease lasts. */
const LIFE_SECONDS = 3650 * DAY;
/** Contexts that are kept. One of a host is enough; settings that change may name many in the end. */
const CONTEXT_COUNT_MAX = 64;

/**
 * Creates an authority from a seed: the same seed makes the same key, which is stored nowhere. The key of its servers is new at each
 * start. `since` is in Unix seconds; a day before is added, as clocks differ.
 */
export function createAuthority(seed: Buffer, id: string, since: number): Authority {
  const privateKey = keyFromSeed(seed);
  const issuer = { name: `Purser ${id}`, publicKey: createPublicKey(privateKey), privateKey };
  const dates = { from: since - DAY, to: since + LIFE_SECONDS };
  const certificate = makeCertificate({ subject: issuer.name, publicKey: issuer.publicKey, issuer, ...dates });
  const server = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const key = server.privateKey.export({ type: 'pkcs8', format: 'pem' });
  const contexts = new Map<string, SecureContext>();
  return {
    certificate,
    contextOf(host) {
      const known = contexts.get(host);
      if (known) return known;
      if (contexts.size >= CONTEXT_COUNT_MAX) contexts.clear();
      const cert = makeCertificate({ subject: 'Purser', publicKey: server.publicKey, issuer, ...dates, names: [host] });
      // The tickets of a context are under a key of its own: no session is resumed in another lease.
      const made = createSecureContext({
        ...{ cert, key, ca: certificate, minVersion: TLS_VERSION_MIN },
        secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
      });
      contexts.set(host, made);
      return made;
    },
  };
}

/** Makes a private key of P-256. Not every number is one; the next is tried then. */
function keyFromSeed(seed: Buffer): KeyObject {
  for (let count = 0; ; count++) {
    const d = createHmac('sha256', seed).update(String(count)).digest();
    const curve = createECDH('prime256v1');
    try {
      curve.setPrivateKey(d);
    } catch {
      continue;
    }
    const point = curve.getPublicKey(); // 4, x, y.
    const [x, y] = [point.subarray(1, 33), point.subarray(33)].map((it) => it.toString('base64url'));
    const key = { kty: 'EC', crv: 'P-256', d: d.toString('base64url'), x: x as string, y: y as string };
    return createPrivateKey({ format: 'jwk', key });
  }
}
