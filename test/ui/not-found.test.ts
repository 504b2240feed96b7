import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, openBrowser, type Shown } from './sample.ts';
import { BROWSER_ACCEPT } from './sessions-shared.ts';

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
