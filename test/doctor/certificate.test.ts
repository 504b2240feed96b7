import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { judgeCertificate } from '../../src/doctor/certificate.ts';
import { readCertificate } from '../../src/net/certificate.ts';
import { makePair, placePair } from '../helper/certificate.ts';

const DAY = 86_400;
const FROM = 1_800_000_000;
const LISTEN = { host: '127.0.0.1', port: 7420 };

test('doctor says when the certificate expires, that this is soon, and for whom it is not', (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-certificate-'));
  t.after(() => rmSync(directory, { recursive: true }));
  const certificate = (days: number) =>
    readCertificate(
      placePair(directory, makePair({ names: ['purser.example', '127.0.0.1'], from: FROM, to: FROM + days * DAY })),
    );
  const judge = (it: ReturnType<typeof certificate>, day: number, url?: string) =>
    judgeCertificate(it, { listen: LISTEN, public_url: url }, FROM + day * DAY);
  const quarter = certificate(90);
  assert.equal(judge(quarter, 60), 'it expires on 2027-04-15, in 30 days');
  assert.equal(judge(quarter, 60, 'https://purser.example'), 'it expires on 2027-04-15, in 30 days');
  assert.match(judge(quarter, 77), /^Warning: it expires on 2027-04-15, in 13 days\. Renew it: a running server/);
  assert.match(
    judge(quarter, 60, 'https://other.example:8443'),
    /^Warning: .* It is not for other\.example, where agents call/,
  );
  assert.match(judge(quarter, 60, 'https://[::1]'), /^Warning: .* It is not for \[::1\]/);
  assert.throws(
    () => judge(quarter, 90),
    /^Error: The certificate expired on 2027-04-15\. Clients refuse it\. Renew it/,
  );
  assert.throws(() => judge(quarter, -1), /^Error: The certificate is valid from 2027-01-15 on\./);
  const week = certificate(7);
  assert.equal(judge(week, 5), 'it expires on 2027-01-22, in 2 days');
  assert.match(judge(week, 6), /^Warning: it expires on 2027-01-22, in 1 day\. Renew/);
});
