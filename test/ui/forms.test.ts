import assert from 'node:assert/strict';
import test from 'node:test';
import { setDisputed } from '../../src/ledger/account.ts';
import { openShop } from '../billing/paid.ts';
import { writeWith } from '../helper/closures.ts';
import { openTestServer } from '../helper/server.ts';
import { reset } from '../helper/upstream.ts';
import { asAccount, asOperator, openBrowser } from './sample.ts';
import { isIn } from './sessions-shared.ts';

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
  for (const [holder, form] of [
    [browser, 'z'],
    [await asAccount(purser), 'zz'],
  ] as const) {
    const { available_usd: left } = await purser.run('wallet.show', { id });
    const cut = await holder.post(`/wallets/${id}/budget`, { amount: '-500', key: form });
    assert.equal(cut.headers.location, `/wallets/${id}?done=lowered-${Math.floor(Number(left) * 100)}-of-50000`);
    const { html } = await holder.get(cut.headers.location as string);
    assert.ok(html.includes(`$500.00 was asked, $${Number(left).toFixed(2)} could move`), html.slice(0, 3000));
  }
  await browser.post(`/wallets/${id}/budget`, { amount: '2.50', key: 'back' });
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

test('an account with a disputed payment says so, and may be suspended, as its open wallets go on spending', async (t) => {
  const purser = await openTestServer(t);
  const { accountId } = purser;
  const { token } = await purser.openWallet({ budget_cents: 200 });
  const [browser, holder] = [await asOperator(purser), await asAccount(purser)];
  const at = `/accounts/${accountId}`;
  await writeWith(purser.app.ledger, (tx) => setDisputed(tx, accountId, purser.app.clock.now()));
  assert.equal((await purser.chat(token)).status, 200);
  assert.match((await holder.get('/')).html, /A payment of this account is disputed/);
  const disputed = (await browser.get(at)).html;
  assert.match(disputed, /A payment is disputed since .*? Its open wallets go on spending/);
  assert.ok(disputed.includes(`action="${at}/resume"`));
  assert.ok(disputed.includes(`href="${at}/suspend"`));
  assert.equal((await browser.post(`${at}/suspend`)).status, 303);
  assert.equal((await purser.chat(token)).body.error.code, 'account_suspended');
  const both = (await browser.get(at)).html;
  assert.ok(!both.includes('go on spending') && !both.includes(`href="${at}/suspend"`));
  await browser.post(`${at}/resume`);
  const resumed = (await browser.get(at)).html;
  assert.ok(!resumed.includes('disputed') && !resumed.includes(`action="${at}/resume"`));
  assert.ok(!(await holder.get('/')).html.includes('disputed'));
  assert.deepEqual(purser.problems(), []);
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
