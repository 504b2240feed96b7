import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { readConfig } from '../../src/config/config.ts';
import { files } from '../../src/files/data-directory.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { replaceLostKey } from '../../src/recovery/lost-key.ts';
import { restore } from '../../src/recovery/restore.ts';
import { createOnce } from '../../src/ui/once.ts';
import { openShop } from '../billing/paid.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { reset } from '../helper/upstream.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { asAccount, asOperator, openBrowser, type Shown } from './sample.ts';

const SESSION = 'purser-session';

/** What a browser sends with a page that somebody opens. */
const BROWSER_ACCEPT = 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8';

const rows = (purser: TestServer) =>
  Number(purser.app.ledger.client.prepare('select count(*) from browser_session').pluck().get());

async function isIn(browser: ReturnType<typeof openBrowser>): Promise<boolean> {
  const { status, headers } = await browser.get('/wallets');
  if (status === 303) assert.match(headers.location as string, /^\/sign-in/);
  return status === 200;
}

test('whoever is not signed in sees nothing but the sign-in page, and comes back to where they were', async (t) => {
  const purser = await openTestServer(t);
  const browser = openBrowser(purser);
  for (const path of [
    '/',
    '/wallets',
    '/accounts',
    '/settings',
    '/journal',
    '/leases',
    '/operations',
    '/spend',
    '/keys',
  ]) {
    const { status, headers, html } = await browser.get(path);
    assert.deepEqual([status, html], [303, ''], path);
    assert.match(headers.location as string, /^\/sign-in/);
  }
  assert.equal((await browser.get('/live?page=now')).status, 401);
  const { html } = await browser.get('/sign-in?next=%2Fspend%3Fby%3Dday');
  assert.match(html, /name="next" value="\/spend\?by=day"/);
  const { headers } = await browser.post('/sign-in/key', { key: purser.accountKey, next: '/spend?by=day' });
  assert.equal(headers.location, '/spend?by=day');
  for (const next of [
    'https://evil.example/',
    '//evil.example',
    '/\\evil.example',
    'javascript:alert(1)',
    '/a\r\nX: y',
  ]) {
    const back = await openBrowser(purser).post('/sign-in/key', { key: purser.accountKey, next });
    assert.equal(back.headers.location, '/', next);
  }
});

test('a link of `purser ui` signs in once, within a minute, and is in the books by its hash only', async (t) => {
  const purser = await openTestServer(t);
  const { url, expires_at } = await purser.run('ui.link', {});
  assert.equal(expires_at, purser.app.clock.now() + 60);
  assert.ok(url.startsWith(`${purser.url}/sign-in/link/`), url);
  const path = new URL(url).pathname;
  const browser = openBrowser(purser);
  const { status, headers } = await browser.get(path);
  assert.deepEqual([status, headers.location], [303, '/']);
  assert.match((await browser.get('/')).html, /<h1>Now<\/h1>/);

  const again = openBrowser(purser);
  const used = await again.get(path);
  assert.equal(used.status, 401);
  assert.match(used.html, /used already/);
  assert.equal(await isIn(again), false);

  const late = await purser.run('ui.link', {});
  purser.clock.advance(60);
  assert.equal((await again.get(new URL(late.url).pathname)).status, 401);
  const book = readFileSync(files(purser.directory).database, 'latin1');
  for (const secret of [path.split('/').at(-1) as string, browser.cookies.get(SESSION) as string]) {
    assert.ok(secret.length >= 43);
    assert.ok(
      !book.includes(secret) && !purser.log.join('\n').includes(secret),
      'a secret is in the books or in the log',
    );
  }
  assert.deepEqual(purser.problems(), []);
});

test('an account key opens a session of its account, which ends with the key', async (t) => {
  const purser = await openTestServer(t);
  const browser = openBrowser(purser);
  for (const key of ['', 'cnv_live_wrong', purser.accountKey.slice(0, -1), (await purser.openWallet()).token]) {
    const { status, html } = await browser.post('/sign-in/key', { key });
    assert.equal(status, 401);
    assert.match(html, /no account key of this installation/);
    assert.equal(browser.cookies.size, 0);
  }
  await browser.post('/sign-in/key', { key: ` ${purser.accountKey}\n` });
  assert.match((await browser.get('/')).html, /<h1>Overview<\/h1>/);
  for (const path of ['/accounts', '/settings', '/journal', '/events', '/operations', `/accounts/${purser.accountId}`])
    assert.equal((await browser.get(path)).status, 404, path);
  assert.equal((await browser.post('/keys', { name: 'more' })).status, 403, 'a key makes no keys');
  const [key] = (await purser.run('key.list', { account: purser.accountId })).keys;
  const revoking = `/keys/${key?.id}/revoke`;
  const { status, html } = await browser.get(revoking);
  assert.equal(status, 403, 'nor is it asked whether it shall revoke one');
  assert.ok(!html.includes(`action="${revoking}"`));
  assert.equal((await browser.post(revoking)).status, 403);
  await purser.run('key.revoke', { id: key?.id as string });
  assert.equal(await isIn(browser), false);
});

test('a page of somebody else is not found, and nothing of it can be done', async (t) => {
  const purser = await openTestServer(t);
  const other = await purser.run('account.create', { name: 'other', creditCents: 1000 });
  const theirs = await purser.run('wallet.create', {
    account: other.id,
    name: 'theirs',
    budget_cents: 500,
    expires_in_seconds: 3600,
  });
  const browser = await asAccount(purser);
  const before = purser.wallet(theirs.id);
  for (const path of ['', '/freeze', '/close'])
    assert.equal((await browser.get(`/wallets/${theirs.id}${path}`)).status, 404);
  for (const act of ['token', 'freeze', 'unfreeze', 'budget', 'extend', 'close']) {
    const { status, html } = await browser.post(`/wallets/${theirs.id}/${act}`, { amount: '1', seconds: '3600' });
    assert.equal(status, 404, act);
    assert.ok(!html.includes('svc_agent_'));
  }
  assert.equal((await browser.get(`/live?wallet=${theirs.id}`)).status, 404);
  assert.ok(!(await browser.get('/wallets')).html.includes(theirs.id));
  assert.ok(!(await browser.get(`/wallets?account=${other.id}`)).html.includes(theirs.id));
  assert.deepEqual(purser.wallet(theirs.id), before);
});

test('a form from anywhere else does nothing', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const browser = await asOperator(purser);
  const { port } = new URL(purser.url);
  const foreign: Record<string, string>[] = [
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

test('signing in begins a new session, and the one that the browser had is over', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asAccount(purser);
  const planted = browser.cookies.get(SESSION) as string;
  await browser.post('/sign-in/key', { key: purser.accountKey });
  assert.notEqual(browser.cookies.get(SESSION), planted);
  const victim = openBrowser(purser);
  victim.cookies.set(SESSION, planted);
  assert.equal(await isIn(victim), false);
  victim.cookies.set(SESSION, 'chosen-by-somebody-else');
  assert.equal(await isIn(victim), false);
  await victim.post('/sign-in/key', { key: purser.accountKey });
  assert.notEqual(victim.cookies.get(SESSION), 'chosen-by-somebody-else');
});

test('a session ends after twelve hours without use, and after seven days in any case', async (t) => {
  const purser = await openTestServer(t);
  const idle = await asOperator(purser);
  purser.clock.advance(12 * 3600 - 1);
  assert.equal(await isIn(idle), true);
  purser.clock.advance(12 * 3600);
  assert.equal(await isIn(idle), false);
  const busy = await asOperator(purser);
  for (let hours = 0; hours < 7 * 24 - 6; hours += 6) {
    purser.clock.advance(6 * 3600);
    assert.equal(await isIn(busy), true, `after ${hours + 6} hours`);
  }
  purser.clock.advance(6 * 3600);
  assert.equal(await isIn(busy), false);
  await asOperator(purser);
  assert.equal(rows(purser), 1, 'rows whose time is over are deleted');
  assert.deepEqual(purser.problems(), []);
});

test('sign-out ends the session on the server, and everywhere ends all of the same person', async (t) => {
  const purser = await openTestServer(t);
  const [one, two, three, account] = [
    await asOperator(purser),
    await asOperator(purser),
    await asOperator(purser),
    await asAccount(purser),
  ];
  const token = one.cookies.get(SESSION) as string;
  const { headers } = await one.post('/sign-out');
  assert.match(headers['set-cookie'] as string, /^purser-session=; .*Max-Age=0$/);
  one.cookies.set(SESSION, token);
  assert.equal(await isIn(one), false, 'the cookie alone is worth nothing');
  assert.equal(await isIn(two), true);
  const link = await purser.run('ui.link', {});
  await two.post('/sign-out/everywhere');
  assert.equal(await isIn(three), false);
  assert.equal((await openBrowser(purser).get(new URL(link.url).pathname)).status, 401, 'unused links are over, too');
  assert.equal(await isIn(account), true);
  await account.post('/sign-out/everywhere');
  assert.equal(rows(purser), 0);
});

test('a form whose session ends while it comes slowly does nothing', async (t) => {
  const purser = await openTestServer(t);
  const [slow, other] = [await asOperator(purser), await asOperator(purser)];
  const before = await purser.run('account.show', { id: purser.accountId });
  const body = new URLSearchParams({ amount: '500', reason: 'late', key: 'k' }).toString();
  const request = http.request(`${purser.url}/accounts/${purser.accountId}/credit`, {
    method: 'POST',
    headers: {
      origin: purser.url,
      cookie: `${SESSION}=${slow.cookies.get(SESSION)}`,
      'content-type': 'application/x-www-form-urlencoded',
      'content-length': body.length,
      expect: '100-continue',
    },
  });
  await once(request, 'continue');
  request.write(body.slice(0, 5));
  assert.equal(await isIn(slow), true); // Behind it in the queue: by now its session has been looked at.
  await other.post('/sign-out/everywhere');
  request.end(body.slice(5));
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  response.resume();
  assert.equal(response.statusCode, 401);
  assert.deepEqual(await purser.run('account.show', { id: purser.accountId }), before);
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

test('a browser that goes where no page is sees a page, and how a known one is asked for; programs get JSON', async (t) => {
  const purser = await openTestServer(t);
  const none = openBrowser(purser);
  const accept = BROWSER_ACCEPT;
  for (const browser of [none, await asOperator(purser)]) {
    const lost: [() => Promise<Shown>, number, string | undefined][] = [
      [() => browser.get('/wallets/', { accept }), 404, undefined],
      [() => browser.post('/nowhere', {}, { accept }), 404, undefined],
      [() => browser.get('/sign-in/key', { accept }), 405, 'POST'],
      [() => browser.get('/sign-out', { accept }), 405, 'POST'],
      [() => browser.get('/settings/reload', { accept }), 405, 'POST'],
      [() => browser.get('/accounts/acct_any/keys', { accept }), 405, 'POST'],
      [() => browser.post('/live', {}, { accept }), 405, 'GET, HEAD'],
      [() => browser.post('/wallets/wal_any', {}, { accept }), 405, 'GET, HEAD'],
      [() => browser.post('/accounts/acct_any', {}, { accept }), 405, 'GET, HEAD'],
    ];
    for (const [ask, wanted, allow] of lost) {
      const { status, headers, html } = await ask();
      assert.deepEqual([status, headers.allow], [wanted, allow], ask.toString());
      assert.match(html, /<h1>That did not work<\/h1>/);
      assert.match(headers['content-security-policy'] as string, /default-src 'none'/);
      assert.equal(headers['x-content-type-options'], 'nosniff');
      assert.match(headers['x-request-id'] as string, /^req_/);
    }
  }
  for (const [answer, status, code] of [
    [await none.get('/wallets/'), 404, 'not_found'],
    [await none.get('/nowhere', { accept: 'application/json' }), 404, 'not_found'],
    [await none.get('/v1/nowhere', { accept }), 404, 'not_found'],
    [await none.post('/v1/account', {}, { accept }), 405, 'method_not_allowed'],
    [await none.get('/sign-in/key'), 405, 'method_not_allowed'],
  ] as const)
    assert.deepEqual([answer.status, JSON.parse(answer.html).error.code], [status, code]);
});

test('`ui: false` switches the page off', async (t) => {
  const purser = await openTestServer(t, { settings: { ui: false } });
  const browser = openBrowser(purser);
  for (const path of ['/', '/sign-in', '/wallets', '/live']) {
    const { status, html } = await browser.get(path);
    assert.deepEqual([status, JSON.parse(html).error.code], [404, 'not_found'], path);
  }
  await assert.rejects(purser.run('ui.link', {}), /switched off/);
});

test('wrong credentials of one network are limited', async (t) => {
  const purser = await openTestServer(t, {
    settings: { limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 5 } },
  });
  const browser = openBrowser(purser);
  const statuses: number[] = [];
  for (let i = 0; i < 4; i++) statuses.push((await browser.post('/sign-in/key', { key: 'cnv_live_x' })).status);
  for (let i = 0; i < 3; i++) statuses.push((await browser.get('/sign-in/link/guess')).status);
  assert.deepEqual(statuses, [401, 401, 401, 401, 401, 429, 429]);
});

test('what a form does is what the command does: raise, extend, close, resolve, credit, and it is done once', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const browser = await asOperator(purser);
  const field = (html: string, name: string, action: string) =>
    new RegExp(`action="${action}"[^]*?name="${name}" value="([^"]*)"`).exec(html)?.[1] as string;
  const page = await browser.get(`/wallets/${id}`);
  const key = field(page.html, 'key', `/wallets/${id}/budget`);
  for (let i = 0; i < 2; i++) {
    const { status, headers } = await browser.post(`/wallets/${id}/budget`, { amount: '2.50', key });
    assert.deepEqual([status, headers.location], [303, `/wallets/${id}?done=raised`]);
  }
  assert.equal(purser.wallet(id).budget, 7_500_000_000n, 'sent twice, done once');
  assert.match((await browser.get(`/wallets/${id}?done=raised`)).html, /The budget was changed/);
  assert.ok(!(await browser.get(`/wallets/${id}?done=%3Ci%3E`)).html.includes('<i>'));
  const refused = await browser.post(`/wallets/${id}/budget`, { amount: 'lots', key: 'x' });
  assert.equal(refused.status, 400);
  assert.match(refused.html, /Write the amount in dollars/);
  assert.equal((await browser.post(`/wallets/${id}/budget`, { amount: '9999.00', key: 'y' })).status, 402);
  const { expiresAt } = purser.wallet(id);
  await browser.post(`/wallets/${id}/extend`, { seconds: '3600', key: 'e' });
  assert.equal(purser.wallet(id).expiresAt, (expiresAt as number) + 3600);
  const shown = await browser.post(`/wallets/${id}/token`);
  assert.ok(shown.html.includes(token));
  await browser.post(`/wallets/${id}/close`);
  assert.equal(purser.wallet(id).status, 'closed');
  const credited = (await purser.run('account.show', { id: purser.accountId })).available_cents;
  await browser.post(`/accounts/${purser.accountId}/credit`, { amount: '1', reason: 'test', key: 'once' });
  await browser.post(`/accounts/${purser.accountId}/credit`, { amount: '1', reason: 'test', key: 'once' });
  assert.equal((await purser.run('account.show', { id: purser.accountId })).available_cents, credited + 100);
  assert.deepEqual(purser.problems(), []);
});

test('an account holder makes a wallet and sees its token once', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asAccount(purser);
  const { html } = await browser.get('/wallets/new');
  const key = /name="key" value="([^"]+)"/.exec(html)?.[1] as string;
  const sent = { name: 'mine <b>', budget: '5', life: '3600', key };
  const { status, html: made } = await browser.post('/wallets/new', sent);
  assert.equal(status, 200);
  const token = /svc_agent_\w{49}/.exec(made)?.[0] as string;
  assert.equal((await purser.budget(token)).budget_usd, '5.00');
  assert.ok(!made.includes('<b>'));
  await browser.post('/wallets/new', sent);
  assert.equal((await purser.run('wallet.list', {})).total, 1, 'the same form makes one wallet');
  assert.ok(!(await browser.get('/wallets')).html.includes(token));
});

test('a wallet whose form says nothing of its life lives for a day, as over HTTP', async (t) => {
  const purser = await openTestServer(t);
  for (const browser of [await asAccount(purser), await asOperator(purser)])
    for (const life of [{}, { life: '' }, { life: ' ' }]) {
      const fields = { name: 'brief', budget: '1', account: purser.accountId, ...life };
      const { status, html } = await browser.post('/wallets/new', fields);
      assert.equal(status, 200);
      const { createdAt, expiresAt } = purser.wallet(/"\/wallets\/(wal_\w+)"/.exec(html)?.[1] as string);
      assert.equal(expiresAt, createdAt + 86_400, JSON.stringify(life));
    }
});

test('topping up is offered to whoever may: not to a session that an account key opened', async (t) => {
  const { purser, stripe } = await openShop(t);
  const [byAccountKey, byOperatorKey] = [await asAccount(purser), openBrowser(purser)];
  await byOperatorKey.post('/sign-in/key', { key: purser.operatorKey });
  for (const [browser, mayPay] of [
    [byAccountKey, false],
    [byOperatorKey, true],
  ] as const) {
    const { html } = await browser.get('/');
    const key = /action="\/top-up"[\s\S]*?name="key" value="([^"]+)"/.exec(html)?.[1];
    assert.equal(key !== undefined, mayPay);
    assert.equal(html.includes('a key pays nothing in'), !mayPay);
    assert.equal((await browser.post('/top-up', { amount: '20', key: key ?? 'guess' })).status, mayPay ? 200 : 403);
  }
  assert.equal(stripe.sessions.size, 1);
});

test('a session that was signed out does not come back with a backup in which it was open', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const token = browser.cookies.get(SESSION) as string;
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', purser.app.clock.now());
  await browser.post('/sign-out');
  await purser.close();
  const { config, secrets } = readConfig({ data: purser.directory }, {});
  await restore(config, secrets, { file, force: false });
  await purser.reopen();
  browser.cookies.set(SESSION, token);
  assert.equal(await isIn(browser), false);
  assert.equal(rows(purser), 0);
});

test('a form of the operator that is sent twice debits once and makes one wallet', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const keyIn = (html: string) => /name="key" value="([^"]+)"/.exec(html)?.[1] as string;
  const path = `/accounts/${purser.accountId}`;
  const available = async () => (await purser.run('account.show', { id: purser.accountId })).available_cents;
  const before = await available();
  const debit = { amount: '-1', reason: 'by mistake', key: keyIn((await browser.get(path)).html) };
  for (let i = 0; i < 2; i++) {
    const { status, headers } = await browser.post(`${path}/credit`, debit);
    assert.deepEqual([status, headers.location], [303, `${path}?done=debited`]);
  }
  assert.equal(await available(), before - 100);
  assert.equal((await browser.post(`${path}/credit`, { ...debit, amount: '1' })).status, 409, 'the key is of a debit');

  const wallet = { name: 'one', budget: '5', life: '3600', account: purser.accountId };
  const order = { ...wallet, key: keyIn((await browser.get('/wallets/new')).html) };
  const tokens: (string | undefined)[] = [];
  for (let i = 0; i < 2; i++)
    tokens.push(/svc_agent_\w{49}/.exec((await browser.post('/wallets/new', order)).html)?.[0]);
  assert.ok(tokens[0]);
  assert.equal(tokens[1], tokens[0]);
  assert.equal((await purser.run('wallet.list', {})).total, 1);
  assert.equal((await browser.post('/wallets/new', { ...order, budget: '6' })).status, 409);
  assert.deepEqual(purser.problems(), []);
});

test('a link that was opened under a foreign host name is not in the log: it is still good', async (t) => {
  const purser = await openTestServer(t);
  const path = new URL((await purser.run('ui.link', {})).url).pathname;
  const browser = openBrowser(purser);
  assert.equal((await browser.get(path, { host: 'evil.example' })).status, 404);
  assert.equal((await browser.post(path, {}, { host: 'evil.example' })).status, 404);
  assert.equal((await browser.post(path)).status, 405);
  assert.match(purser.log.join('\n'), /\/sign-in\/link\/…/);
  assert.ok(!purser.log.join('\n').includes(path));
  assert.equal((await browser.get(path)).status, 303);
});

test('a session that was open when the page was switched off does not come back with the page', async (t) => {
  const purser = await openTestServer(t);
  const [operator, account] = [await asOperator(purser), await asAccount(purser)];
  const link = new URL((await purser.run('ui.link', {})).url).pathname;
  const file = join(purser.directory, 'purser.yaml');
  const before = readFileSync(file, 'utf8');
  await purser.reopen(() => writeFileSync(file, stringify({ ...parse(before), ui: false })));
  assert.equal(rows(purser), 0);
  await purser.reopen(() => writeFileSync(file, before));
  for (const browser of [operator, account]) assert.equal(await isIn(browser), false);
  assert.equal((await openBrowser(purser).get(link)).status, 401);
  assert.deepEqual(purser.problems(), []);
});

test('a session that was open when the master key was lost is over with the new key', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  await purser.close();
  rmSync(join(purser.directory, 'master.key'));
  const { config, secrets } = readConfig({ data: purser.directory }, {});
  assert.equal((await replaceLostKey(config, secrets, { apply: true })).is_done, true);
  await purser.reopen();
  assert.equal(await isIn(browser), false);
  assert.equal(rows(purser), 0);
});

test('a program that looks at a link with HEAD does not use it up', async (t) => {
  const purser = await openTestServer(t);
  const path = new URL((await purser.run('ui.link', {})).url).pathname;
  const browser = openBrowser(purser);
  for (const at of [path, '/sign-in', '/sign-in/callback?code=c&state=s', '/live?page=now']) {
    const { headers, html } = await browser.head(at);
    assert.deepEqual([html, headers['set-cookie'], headers.location], ['', undefined, undefined], at);
  }
  assert.equal((await browser.get(path)).status, 303);
  assert.equal((await browser.head('/live?page=now')).status, 200);
});

test('a page that is refused for a while says for how long', async (t) => {
  const purser = await openTestServer(t, {
    settings: { limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 3, failed_auth_per_minute: 2 } },
  });
  const [browser, guesser] = [await asAccount(purser), openBrowser(purser)]; // The sign-in is the first of the three.
  for (let i = 0; i < 2; i++) assert.equal((await browser.get('/wallets')).status, 200);
  for (let i = 0; i < 2; i++) assert.equal((await guesser.post('/sign-in/key', { key: 'cnv_live_x' })).status, 401);
  const viewed = await browser.get('/wallets');
  assert.deepEqual([viewed.status, viewed.headers['retry-after']], [429, '20']);
  const guessed = await guesser.post('/sign-in/key', { key: 'cnv_live_x' });
  assert.deepEqual([guessed.status, guessed.headers['retry-after']], [429, '30']);
});

test('a form that is sent twice makes one account and one key, and shows it both times', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const keyIn = (html: string, action: string) =>
    new RegExp(`action="${action}"[^]*?name="key" value="([^"]+)"`).exec(html)?.[1] as string;
  const account = { name: 'once', key: keyIn((await browser.get('/accounts')).html, '/accounts') };
  const [one, two] = await Promise.all([browser.post('/accounts', account), browser.post('/accounts', account)]);
  assert.deepEqual([one.status, two.status], [303, 303]);
  assert.equal(one.headers.location, two.headers.location);
  assert.equal((await purser.run('account.list', {})).accounts.length, 2);
  const again = { name: 'once', key: keyIn((await browser.get('/accounts')).html, '/accounts') };
  assert.equal((await browser.post('/accounts', again)).status, 409, 'another form, and the name is taken');
  assert.equal(
    (await browser.post('/accounts', { ...again, name: 'twice' })).status,
    303,
    'a refused form is sent anew',
  );

  const at = `${one.headers.location}/keys`;
  const order = { name: 'ci', key: keyIn((await browser.get(one.headers.location as string)).html, at) };
  const shown: (string | undefined)[] = [];
  for (let i = 0; i < 2; i++) shown.push(/cnv_live_\w{49}/.exec((await browser.post(at, order)).html)?.[0]);
  assert.ok(shown[0]);
  assert.equal(shown[1], shown[0]);
  assert.equal((await purser.run('key.list', { account: 'once' })).total, 1);
  const other = await asOperator(purser);
  const theirs = /cnv_live_\w{49}/.exec((await other.post(at, order)).html)?.[0];
  assert.notEqual(theirs, shown[0], 'another session does not see it');
});

test('a form that is sent again after a restart makes no second key, and a new one does', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const at = `/accounts/${purser.accountId}`;
  const formIn = (html: string) => ({
    name: 'again',
    key: new RegExp(`action="${at}/keys"[^]*?name="key" value="([^"]+)"`).exec(html)?.[1] as string,
  });
  const form = formIn((await browser.get(at)).html);
  assert.equal((await browser.post(`${at}/keys`, form)).status, 200);
  const { total } = await purser.run('key.list', { account: purser.accountId });
  await purser.reopen();
  const { status, html } = await browser.post(`${at}/keys`, form);
  assert.equal(status, 409);
  assert.match(html, /restarted since this form was shown/);
  assert.equal((await purser.run('key.list', { account: purser.accountId })).total, total);
  assert.equal((await browser.post(`${at}/keys`, formIn((await browser.get(at)).html))).status, 200);
});

test('a form that is sent again after a minute does nothing, and shows no secret', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const once = createOnce();
  const form = new URLSearchParams({ key: once.newKey(), name: 'ci' });
  const visit = { viewer: { kind: 'operator', sessionId: 's' }, form } as const;
  const make = async () => 'secret';
  return once.run(visit, make).then(async (first) => {
    assert.equal(first, 'secret');
    t.mock.timers.tick(60_000);
    assert.throws(() => once.run(visit, make), { code: 'conflict' });
    const failing = { ...visit, form: new URLSearchParams({ key: once.newKey() }) };
    await assert.rejects(once.run(failing, () => Promise.reject(new Error('no'))));
    assert.equal(await once.run(failing, make), 'secret', 'what failed may be sent again');
  });
});

test('an operator revokes a key of an account, and ends its sessions', async (t) => {
  const purser = await openTestServer(t);
  const operator = await asOperator(purser);
  const [account, other] = [await asAccount(purser), await asAccount(purser)];
  const at = `/accounts/${purser.accountId}`;
  assert.match((await operator.get(at)).html, /2 sessions of this account/);
  assert.equal((await operator.post(`${at}/sign-out`)).headers.location, `${at}?done=sessions-ended`);
  for (const browser of [account, other]) assert.equal(await isIn(browser), false);
  assert.equal(await isIn(operator), true);
  assert.match((await operator.get(at)).html, /Nobody is signed in for this account/);
  assert.deepEqual(await purser.run('account.sign-out', { id: 'default' }), {
    id: purser.accountId,
    sessions_ended: 0,
  });

  const elsewhere = await purser.run('account.create', { name: 'elsewhere' });
  const { id } = await purser.run('key.create', { account: elsewhere.id, name: 'theirs' });
  for (const path of [`${at}/keys/${id}/revoke`, `/accounts/${elsewhere.id}/keys/key_unknown/revoke`]) {
    assert.equal((await operator.get(path)).status, 404, path);
    assert.equal((await operator.post(path)).status, 404, path);
  }
  assert.equal((await other.post(`/accounts/${elsewhere.id}/keys/${id}/revoke`)).status, 401);
  const own = (await purser.run('key.list', { account: purser.accountId })).keys[0]?.id as string;
  assert.match((await operator.get(`${at}/keys/${own}/revoke`)).html, /Revoke it for good\?/);
  assert.equal((await operator.post(`${at}/keys/${own}/revoke`)).headers.location, `${at}?done=revoked`);
  assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).status, 401);
  assert.equal((await purser.run('key.list', { account: elsewhere.id })).keys[0]?.revoked_at, null);
  assert.ok(!(await operator.get(at)).html.includes(`${own}/revoke`));
});

test('the page of a suspended account does what the API does for its key, and no more', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 3600 });
  const browser = await asAccount(purser);
  await purser.run('account.suspend', { id: purser.accountId });
  const ask = async (method: string, path: string, body?: object) =>
    (await purser.ask(method, path, { token: purser.accountKey, key: path, ...(body ? { body } : {}) })).status;
  const post = async (path: string, fields: Record<string, string> = {}) =>
    (await browser.post(path, { key: path, ...fields })).status;
  const at = `/wallets/${id}`;
  const pairs = {
    'a new wallet': [
      await ask('POST', '/v1/wallets', { name: 'new', budget_cents: 100 }),
      await post('/wallets/new', { name: 'new', budget: '1', life: '0' }),
    ],
    'a larger budget': [
      await ask('POST', `/v1${at}/budget`, { add_cents: 100 }),
      await post(`${at}/budget`, { amount: '1' }),
    ],
    'a new key': [await ask('POST', '/v1/keys', { name: 'new' }), await post('/keys', { name: 'new', key: '' })],
    'the token': [await ask('GET', `/v1${at}/token`), await post(`${at}/token`)],
  };
  for (const [what, [api, page]] of Object.entries(pairs)) assert.equal(page, api, what);
  assert.deepEqual(
    Object.values(pairs).map(([api]) => api),
    [403, 403, 403, 200],
  );
  const changes: [string, Record<string, string>][] = [
    ['extend', { seconds: '3600' }],
    ['freeze', {}],
    ['unfreeze', {}],
    ['close', {}],
  ];
  for (const [act, fields] of changes) {
    const api = await ask(
      'POST',
      `/v1${at}/${act}`,
      act === 'extend' ? { seconds: 3600 } : act === 'freeze' ? {} : undefined,
    );
    assert.deepEqual([api, await post(`${at}/${act}`, fields)], [200, 303], act);
  }
  assert.match((await browser.get('/')).html, /This account is suspended/);
});

test('resolving asks on a page of its own, for one decision and a reason, and preselects nothing', async (t) => {
  const purser = await openTestServer(t, { settings: {}, unknownCountMax: 100 });
  const { token } = await purser.openWallet();
  purser.upstream.handle = reset;
  for (let i = 0; i < 2; i++) await purser.chat(token, { model: 'flat' });
  const browser = await asOperator(purser);
  const { operations } = await purser.run('operation.list', { state: 'uncertain' });
  const [one, two] = operations.map((it) => it.id) as [string, string];
  const { html } = await browser.get(`/operations/${one}`);
  assert.doesNotMatch(html, /<select|method="post" action="\/operations/);
  for (const [id, decision, word] of [
    [one, 'charge', 'charged'],
    [two, 'release', 'released'],
  ] as const) {
    assert.ok(html.includes(`?decision=${decision}`));
    const asked = await browser.get(`/operations/${id}/resolve?decision=${decision}`);
    assert.match(asked.html, new RegExp(`name="decision" value="${decision}"`));
    assert.equal((await browser.post(`/operations/${id}/resolve`, { decision })).status, 400, 'without a reason');
    assert.equal((await browser.post(`/operations/${id}/resolve`, { reason: 'r' })).status, 400, 'without a decision');
    const done = await browser.post(`/operations/${id}/resolve`, { decision, reason: 'its log says so' });
    assert.equal(done.headers.location, `/operations/${id}?done=resolved`);
    assert.equal((await purser.run('operation.show', { id })).outcome, word);
    assert.equal((await browser.get(`/operations/${id}/resolve?decision=${decision}`)).status, 409);
  }
  assert.equal((await browser.get(`/operations/${one}/resolve`)).status, 409);
});
