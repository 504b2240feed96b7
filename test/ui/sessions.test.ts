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
import { openTestServer } from '../helper/server.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { asAccount, asOperator, openBrowser } from './sample.ts';
import { isIn, rows } from './sessions-shared.ts';

const SESSION = 'purser-session';

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

test('the sessions that a revoked key opened are counted no more, whoever revoked it', async (t) => {
  const purser = await openTestServer(t);
  const operator = await asOperator(purser);
  const at = `/accounts/${purser.accountId}`;
  const signIn = async (key: string) => {
    const browser = openBrowser(purser);
    await browser.post('/sign-in/key', { key });
    assert.equal(await isIn(browser), true);
    return browser;
  };
  await signIn(purser.accountKey);
  const made = await purser.run('key.create', { account: purser.accountId, name: 'lost' });
  const acting = await purser.run('operator-key.mint', { account: purser.accountId, name: 'lost' });
  for (const { id, key } of [made, acting]) {
    const thief = await signIn(key);
    assert.match((await operator.get(at)).html, /2 sessions of this account/);
    if (id === made.id) await operator.post(`${at}/keys/${id}/revoke`);
    else await purser.run('operator-key.revoke', { id });
    assert.equal(await isIn(thief), false);
    assert.match(
      (await operator.get(at)).html,
      /1 session of this account/,
      'the page said that a thief was still signed in',
    );
  }
  assert.equal((await purser.run('account.sign-out', { id: purser.accountId })).sessions_ended, 1);
  assert.deepEqual(purser.problems(), []);
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

test('a session that was signed out does not come back with a backup in which it was open', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const token = browser.cookies.get(SESSION) as string;
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', purser.app.clock.now());
  await browser.post('/sign-out');
  await purser.close();
  const config = readConfig({ data: purser.directory }, {});
  await restore(config, { file, force: false });
  await purser.reopen();
  browser.cookies.set(SESSION, token);
  assert.equal(await isIn(browser), false);
  assert.equal(rows(purser), 0);
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
  const config = readConfig({ data: purser.directory }, {});
  assert.equal((await replaceLostKey(config, { apply: true })).is_done, true);
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
