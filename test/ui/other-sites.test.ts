import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { asOperator, openBrowser } from './sample.ts';
import { BROWSER_ACCEPT, isIn } from './sessions-shared.ts';

test('a form from anywhere else does nothing', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const browser = await asOperator(purser);
  const { port } = new URL(purser.url);
  const foreign: Record<string, string | undefined>[] = [
    { origin: undefined },
    { origin: undefined, 'sec-fetch-site': undefined },
    { origin: 'https://evil.example' },
    { origin: 'null' },
    { origin: '' },
    { origin: `http://127.0.0.1:${Number(port) + 1}` },
    { origin: `http://localhost:${port}` },
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'same-site' },
    { 'sec-fetch-site': 'none' },
  ];
  for (const headers of foreign) {
    for (const path of [`/wallets/${id}/freeze`, '/sign-out', '/sign-in/key', '/settings/freeze'])
      assert.equal(
        (await browser.post(path, { key: purser.accountKey }, headers)).status,
        403,
        `${path} ${JSON.stringify(headers)}`,
      );
  }
  assert.equal(purser.wallet(id).frozenAt, null);
  assert.equal(await isIn(browser), true);
  // The same as a GET changes nothing either: it asks first.
  await browser.get(`/wallets/${id}/freeze`);
  assert.equal(purser.wallet(id).frozenAt, null);
  await browser.post(`/wallets/${id}/freeze`, { reason: 'loops' });
  assert.deepEqual([purser.wallet(id).frozenAt, purser.wallet(id).freezeReason], [purser.app.clock.now(), 'loops']);
});

test('a foreign host name gets nothing, so that no other site can pretend to be this one', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const { port } = new URL(purser.url);
  for (const host of [
    'evil.example',
    `evil.example:${port}`,
    `127.0.0.1.evil.example:${port}`,
    `10.0.0.7:${port}`,
    'localhost.',
    '127.0.0.256',
  ]) {
    for (const path of ['/', '/sign-in', '/wallets', '/live?page=now']) {
      const { status, html } = await browser.get(path, { host });
      assert.equal(status, 404, `${host}${path}`);
      assert.ok(!html.includes('<html'), html);
    }
    assert.equal(
      (await browser.post('/sign-in/key', { key: purser.accountKey }, { host, origin: `http://${host}` })).status,
      404,
    );
  }
  for (const host of [`localhost:${port}`, '127.0.0.1', `[::1]:${port}`, `LOCALHOST:${port}`])
    assert.equal((await browser.get('/', { host })).status, 200, host);
});

test('by TLS the cookie is held to the host; on loopback it goes without, for an SSH tunnel', async (t) => {
  const purser = await openTestServer(t, { settings: { public_url: 'https://purser.example' } });
  const host = 'purser.example';
  const public_ = openBrowser(purser);
  const { headers } = await public_.post(
    '/sign-in/key',
    { key: purser.accountKey },
    { host, origin: 'https://purser.example' },
  );
  assert.match(
    headers['set-cookie'] as string,
    /^__Host-purser-session=[\w-]{43}; Path=\/; HttpOnly; SameSite=Lax; Max-Age=604800; Secure$/,
  );
  assert.equal((await public_.get('/', { host })).status, 200);
  // A proxy may write the port of the address it was asked at.
  assert.equal((await public_.get('/', { host: 'Purser.example:443' })).status, 200);
  assert.equal((await public_.get('/')).status, 303, 'the cookie is that of the address');
  const again = { host: 'purser.example:443', origin: 'https://purser.example' };
  assert.equal((await openBrowser(purser).post('/sign-in/key', { key: purser.accountKey }, again)).status, 303);
  for (const other of [
    'purser.example:80',
    'purser.example:',
    'x@purser.example',
    'purser.example/',
    'purser.example?',
  ])
    assert.match(String((await public_.get('/', { host: other })).status), /^40[04]$/, other);
  assert.equal((await public_.get('/')).status, 303, 'the cookie of the one place is nothing at the other');
  const tunnel = openBrowser(purser);
  const { headers: plain } = await tunnel.post('/sign-in/key', { key: purser.accountKey });
  assert.match(
    plain['set-cookie'] as string,
    /^purser-session=[\w-]{43}; Path=\/; HttpOnly; SameSite=Lax; Max-Age=604800$/,
  );
  assert.equal((await tunnel.get('/')).status, 200);
});

test('no page may be framed, sniffed, stored or asked for by another site', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  for (const path of ['/', '/sign-in', '/nowhere-else', '/wallets/wal_unknown', '/sign-in/link/wrong']) {
    const { headers, status } = await browser.get(path, { accept: BROWSER_ACCEPT });
    assert.equal(status === 404, /nowhere|unknown/.test(path), path);
    const policy = headers['content-security-policy'] as string;
    for (const rule of [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "img-src 'self' data:",
      "connect-src 'self'",
      "form-action 'self'",
      "frame-ancestors 'none'",
      "base-uri 'none'",
    ])
      assert.ok(policy.split('; ').includes(rule), `${path}: ${rule}`);
    assert.equal(headers['x-frame-options'], 'DENY');
    assert.equal(headers['x-content-type-options'], 'nosniff');
    assert.equal(headers['cache-control'], 'no-store');
    assert.equal(headers['cross-origin-opener-policy'], 'same-origin');
  }
});
