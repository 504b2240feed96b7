import { generateKeyPairSync, randomBytes, sign } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { join } from 'node:path';

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
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const algorithm = sequence(oid(1, 2, 840, 10045, 4, 3, 2)); // ecdsa-with-SHA256
  const name = sequence(element(0x31, sequence(oid(2, 5, 4, 3), element(0x0c, Buffer.from('purser test')))));
  const alternatives = names.map((it) =>
    isIP(it) ? element(0x87, Buffer.from(it.split('.').map(Number))) : element(0x82, Buffer.from(it)),
  );
  const extension = sequence(oid(2, 5, 29, 17), element(0x04, sequence(...alternatives)));
  const content = sequence(
    element(0xa0, element(0x02, Buffer.from([2]))), // Version 3.
    element(0x02, Buffer.concat([Buffer.from([1]), randomBytes(8)])),
    algorithm,
    name,
    sequence(time(from), time(to)),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    element(0xa3, sequence(extension)),
  );
  const signature = element(0x03, Buffer.from([0]), sign('sha256', content, privateKey));
  const body = sequence(content, algorithm, signature)
    .toString('base64')
    .match(/.{1,64}/g)
    ?.join('\n');
  return {
    cert: `-----BEGIN CERTIFICATE-----\n${body}\n-----END CERTIFICATE-----\n`,
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  };
}

/** Writes a pair into a directory, over an earlier one, and returns the setting `tls`. */
export function placePair(directory: string, { cert, key }: Pair): { cert: string; key: string } {
  const files = { cert: join(directory, 'tls.crt'), key: join(directory, 'tls.key') };
  writeFileSync(files.cert, cert);
  writeFileSync(files.key, key, { mode: 0o600 });
  return files;
}

/** An element of DER (X.690). */
function element(tag: number, ...content: Buffer[]): Buffer {
  const body = Buffer.concat(content);
  const { length } = body;
  const head = length < 128 ? [tag, length] : [tag, 0x82, length >> 8, length & 255];
  return Buffer.concat([Buffer.from(head), body]);
}

const sequence = (...content: Buffer[]) => element(0x30, ...content);

function oid(first: number, second: number, ...more: number[]): Buffer {
  const bytes = more.flatMap((it) => {
    const digits = [it & 127];
    for (let rest = it >> 7; rest; rest >>= 7) digits.unshift((rest & 127) | 128);
    return digits;
  });
  return element(0x06, Buffer.from([40 * first + second, ...bytes]));
}

const time = (seconds: number) =>
  element(0x18, Buffer.from(`${new Date(seconds * 1000).toISOString().replace(/[-:T]|\.\d+/g, '')}`));
