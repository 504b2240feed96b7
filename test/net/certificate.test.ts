import assert from 'node:assert/strict';
import { createPrivateKey } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { CertificateFault, datesFault, readCertificate } from '../../src/net/certificate.ts';
import { makePair } from '../helper/certificate.ts';

const PAIR = makePair({
  names: ['purser.example', '*.ports.example', '10.0.0.7'],
  from: 1_800_000_000,
  to: 1_800_086_400,
});
const DER = Buffer.from(PAIR.cert.replace(/-----.*-----|\n/g, ''), 'base64');
const LOCKED = createPrivateKey(PAIR.key)
  .export({ type: 'pkcs8', format: 'pem', cipher: 'aes-256-cbc', passphrase: 'x' })
  .toString();

test('files that cannot be served are refused in a sentence that names the setting and the file', (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-certificate-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const read = (cert: string | Buffer | undefined, key: string | Buffer | undefined) => {
    const files = { cert: join(directory, 'cert'), key: join(directory, 'key') };
    for (const [file, content] of [
      [files.cert, cert],
      [files.key, key],
    ] as const) {
      rmSync(file, { force: true });
      if (content !== undefined) writeFileSync(file, content);
    }
    return readCertificate(files);
  };
  const other = makePair();
  for (const [cert, key, fault] of [
    [undefined, PAIR.key, /^tls\.cert: there is no file .*\/cert\.$/],
    [PAIR.cert, undefined, /^tls\.key: there is no file .*\/key\.$/],
    [PAIR.key, PAIR.key, /^tls\.cert: .*\/cert contains no certificate in PEM/],
    ['', PAIR.key, /^tls\.cert: .*\/cert contains no certificate in PEM/],
    [DER, PAIR.key, /^tls\.cert: .*\/cert contains no certificate in PEM/],
    [PAIR.cert.slice(0, 200), PAIR.key, /^tls\.cert: .*\/cert contains no certificate in PEM/],
    [PAIR.cert, PAIR.cert, /^tls\.key: .*\/key contains no private key in PEM/],
    [PAIR.cert, LOCKED, /^tls\.key: .*\/key is encrypted\. Purser has no passphrase/],
    [PAIR.cert, other.key, /^tls\.key: .*\/key is not the key of the first certificate in .*\/cert\./],
    [other.cert + PAIR.cert, PAIR.key, /^tls\.key: .*\/key is not the key of the first certificate in .*\/cert\./],
    [
      `${PAIR.cert}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n`,
      PAIR.key,
      /^tls: .* cannot be served \(/,
    ],
    [Buffer.alloc(1024 * 1024 + 1), PAIR.key, /^tls\.cert: .*\/cert is larger than 1 MiB\.$/],
  ] as const)
    assert.throws(
      () => read(cert, key),
      (error) => error instanceof CertificateFault && fault.test(error.message),
      String(fault),
    );
  assert.throws(() => readCertificate({ cert: '/dev/zero', key: '/dev/zero' }), /^CertificateFault|is not a file\./);
  assert.ok(read(PAIR.cert + other.cert, PAIR.key).isSame(read(PAIR.cert + other.cert, PAIR.key)));
  assert.ok(!read(PAIR.cert, PAIR.key).isSame(read(PAIR.cert + other.cert, PAIR.key)), 'the chain is another');

  // One file may have both.
  writeFileSync(join(directory, 'both'), PAIR.key + PAIR.cert);
  const one = readCertificate({ cert: join(directory, 'both'), key: join(directory, 'both') });
  assert.deepEqual(
    ['purser.example', 'a.ports.example', '10.0.0.7', 'example', '10.0.0.8', '::1', 'localhost'].filter(one.isFor),
    ['purser.example', 'a.ports.example', '10.0.0.7'],
  );
  assert.deepEqual(
    [1_799_999_999, 1_800_000_000, 1_800_086_399, 1_800_086_400].map((now) => datesFault(one, now)),
    ['The certificate is valid from 2027-01-15 on.', undefined, undefined, 'The certificate expired on 2027-01-16.'],
  );
});
