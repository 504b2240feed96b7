import { generateKeyPairSync } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeCertificate } from '../../src/net/x509.ts';

/** A certificate that signs itself, and its private key, both in PEM. */
export type Pair = { cert: string; key: string };

const DAY = 86_400;

/** Makes a certificate, by default for loopback, valid since yesterday for a month. `from` and `to` are Unix seconds. */
export function makePair({
  names = ['localhost', '127.0.0.1'],
  from = Math.floor(Date.now() / 1000) - DAY,
  to = from + 30 * DAY,
}: {
  names?: string[];
  from?: number;
  to?: number;
} = {}): Pair {
  const keys = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const name = 'purser test';
  return {
    cert: makeCertificate({
      ...{ subject: name, publicKey: keys.publicKey, issuer: { name, ...keys } },
      ...{ from, to, names },
    }),
    key: keys.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  };
}

/** Writes a pair into a directory, over an earlier one, and returns the setting `tls`. */
export function placePair(directory: string, { cert, key }: Pair): { cert: string; key: string } {
  const files = { cert: join(directory, 'tls.crt'), key: join(directory, 'tls.key') };
  writeFileSync(files.cert, cert);
  writeFileSync(files.key, key, { mode: 0o600 });
  return files;
}
