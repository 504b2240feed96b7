import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { addTenant } from '../helper/tenants.ts';
import { asAccount, asOperator, openBrowser } from './sample.ts';

const keyIn = (html: string, action: string) =>
  new RegExp(`action="${action}"[^]*?name="key" value="([^"]*)"`).exec(html)?.[1] as string;

for (const [who, signIn] of [
  ['an operator', asOperator],
  ['the holder of the account', asAccount],
] as const) {
  test(`${who} sets, changes and ends the refill of a wallet on its page`, async (t) => {
    const purser = await openTestServer(t);
    const { id } = await purser.openWallet({ budget_cents: 500 });
    const browser = await signIn(purser);
    const at = `/wallets/${id}`;
    const order = { amount: '5', every: 'day', zone: 'Europe/Berlin', carry: 'none' };
    const { status, headers } = await browser.post(`${at}/refill`, order);
    assert.deepEqual([status, headers.location], [303, `${at}?done=refill-set`]);
    const shown = await purser.run('wallet.show', { id });
    const { next_at, ...refill } = shown.refill as { next_at: number };
    assert.deepEqual(refill, { cents: 500, every: 'day', zone: 'Europe/Berlin', carry: 'none' });
    assert.ok(next_at > purser.app.clock.now());
    const { html } = await browser.get(at);
    assert.match(html, /up to \$5\.00 every midnight \(Europe\/Berlin\), next/);
    assert.match(html, /name="zone"[^>]* value="Europe\/Berlin"/, 'the form shows what is set');
    await browser.post(`${at}/refill`, { ...order, amount: '7.50', every: 'month', carry: 'all' });
    assert.match((await browser.get(at)).html, /plus \$7\.50 every first of the month/);

    for (const wrong of [
      { amount: '0' },
      { amount: '-1' },
      { zone: 'Mars/Olympus' },
      { every: 'hour' },
      { amount: 'lots' },
    ])
      assert.equal((await browser.post(`${at}/refill`, { ...order, ...wrong })).status, 400, JSON.stringify(wrong));
    assert.equal((await browser.post(`${at}/refill/end`)).headers.location, `${at}?done=refill-ended`);
    assert.equal((await purser.run('wallet.show', { id })).refill, null);
    assert.deepEqual(purser.problems(), []);
  });

  test(`${who} changes the amount of a refill, and what is left over stays as it was set elsewhere`, async (t) => {
    const purser = await openTestServer(t);
    const { id } = await purser.openWallet({ budget_cents: 500 });
    const browser = await signIn(purser);
    const at = `/wallets/${id}`;
    for (const [carry, sentence, kept] of [
      ['none', 'up to $5.00', 'none'],
      [0, 'up to $5.00', 'none'],
      [250, 'with at most $2.50 left over, $5.00', 250],
      ['all', 'plus $5.00', 'all'],
    ] as const) {
      await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day', carry } });
      const { html } = await browser.get(at);
      assert.ok(html.includes(`${sentence} every midnight`), `${carry}`);
      const chosen = /<select[^>]* name="carry">.*?<option value="([^"]+)" selected>/.exec(html)?.[1];
      await browser.post(`${at}/refill`, { amount: '6', every: 'day', zone: 'UTC', carry: `${chosen}` });
      const { refill } = await purser.run('wallet.show', { id });
      assert.deepEqual([refill?.cents, refill?.carry], [600, kept]);
    }
    const wrong = { amount: '6', every: 'day', zone: 'UTC', carry: '1000001' };
    assert.equal((await browser.post(`${at}/refill`, wrong)).status, 400);
    assert.deepEqual(purser.problems(), []);
  });

  test(`${who} opens a child wallet once, whose budget comes out of its parent`, async (t) => {
    const purser = await openTestServer(t);
    const { id, token } = await purser.openWallet({ budget_cents: 500 });
    const browser = await signIn(purser);
    const at = `/wallets/${id}/children`;
    const key = keyIn((await browser.get(`/wallets/${id}`)).html, at);
    const order = { name: 'sub <b>', budget: '1.50', life: '3600', key };
    const tokens = [];
    for (let time = 0; time < 2; time++) {
      const { status, html } = await browser.post(at, order);
      assert.equal(status, 200, html);
      assert.ok(!html.includes('<b>'));
      tokens.push(/svc_agent_\w{49}/.exec(html)?.[0]);
    }
    assert.equal(tokens[0], tokens[1], 'the same form makes one');
    assert.deepEqual([(await purser.budget(tokens[0] as string)).budget_usd], ['1.50']);
    assert.equal((await purser.budget(token)).available_usd, '3.50');
    assert.equal((await browser.post(at, { ...order, budget: '2' })).status, 409, 'the key is of another order');
    const poor = await browser.post(at, { ...order, budget: '100', key: 'more' });
    assert.equal(poor.status, 402);
    assert.equal((await browser.post(at, { ...order, budget: '', key: 'none' })).status, 400);
    assert.equal((await browser.post(at, { ...order, budget: '-1', key: 'minus' })).status, 400);
    assert.match((await browser.get(`/wallets/${id}`)).html, /sub &lt;b&gt;/);
    await purser.run('wallet.freeze', { id });
    assert.equal((await browser.post(at, { ...order, key: 'frozen' })).status, 403);
    assert.deepEqual(purser.problems(), []);
  });

  test(`${who} makes a gateway key that is limited to models and to a price`, async (t) => {
    const purser = await openTestServer(t);
    const { id } = await purser.openWallet({ budget_cents: 500 });
    const browser = await signIn(purser);
    const at = `/wallets/${id}/gateway-keys`;
    const { status, html } = await browser.post(at, { models: ' chat , flat,', price: '0.10' });
    assert.equal(status, 200);
    const key = /svc_router_\w{49}/.exec(html)?.[0] as string;
    const models = await purser.ask('GET', '/v1/router/models', { token: key });
    assert.deepEqual(models.body.data.map((it: { id: string }) => it.id).toSorted(), ['chat', 'flat']);
    const page = (await browser.get(`/wallets/${id}`)).html;
    assert.match(page, /chat, flat, at most \$0\.10 a request/);
    assert.ok(!page.includes(key));
    const again = await browser.post(at, { models: 'chat, flat', price: '0.10' });
    assert.ok(again.html.includes(key), 'the same limits are the same key');
    const all = /svc_router_\w{49}/.exec((await browser.post(at)).html)?.[0] as string;
    assert.ok((await purser.ask('GET', '/v1/router/models', { token: all })).body.data.length > 2);
    assert.equal((await browser.post(at, { models: 'chatt' })).status, 404, 'a model that is not on offer');
    assert.equal((await browser.post(at, { price: 'much' })).status, 400);
    assert.equal((await browser.post(at, { price: '-1' })).status, 400);
  });
}

test('an operator revokes a gateway key of this wallet; its holder does not', async (t) => {
  const purser = await openTestServer(t);
  const [{ id }, other] = [await purser.openWallet(), await purser.openWallet()];
  const [browser, holder] = [await asOperator(purser), await asAccount(purser)];
  const token = /svc_router_\w{49}/.exec((await browser.post(`/wallets/${id}/gateway-keys`)).html)?.[0] as string;
  const key = (await purser.run('wallet.gateway-keys', { id })).keys[0]?.id as string;
  const at = `/wallets/${id}/gateway-keys/${key}/revoke`;
  for (const path of [`/wallets/${other.id}/gateway-keys/${key}/revoke`, `/wallets/${id}/gateway-keys/key_x/revoke`])
    assert.equal((await browser.post(path)).status, 404, path);
  assert.equal((await holder.post(at)).status, 404);
  assert.equal((await purser.ask('GET', '/v1/router/models', { token })).status, 200);
  assert.match((await browser.get(at)).html, /Revoke it for good/);
  assert.equal((await browser.post(at)).headers.location, `/wallets/${id}?done=revoked`);
  assert.equal((await purser.ask('GET', '/v1/router/models', { token })).status, 401);
});

test('a valid gateway key is listed and revoked, however many newer ones were revoked', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const browser = await asOperator(purser);
  const made = async (body: object) => {
    assert.equal((await purser.ask('POST', '/v1/router/key', { token, body })).status, 200);
  };
  await made({});
  const listed = async () => (await purser.run('wallet.gateway-keys', { id })).keys;
  const oldest = (await listed())[0]?.id as string;
  for (let round = 0; round < 2; round++) {
    for (let i = 1; i < 100; i++) await made({ max_price_usd: `${round}.${100 + i}` });
    if (round === 0)
      for (const key of await listed()) if (key.id !== oldest) await purser.run('key.revoke', { id: key.id });
  }
  const valid = (await listed()).filter((it) => it.revoked_at === null).map((it) => it.id);
  assert.deepEqual([valid.length, valid.at(-1)], [100, oldest], 'newest first');
  const at = `/wallets/${id}/gateway-keys/${oldest}/revoke`;
  assert.ok((await browser.get(`/wallets/${id}`)).html.includes(at));
  assert.equal((await browser.post(at)).status, 303);
  assert.equal((await browser.post(at)).status, 303, 'the second time changes nothing');
  assert.ok(!(await browser.get(`/wallets/${id}`)).html.includes(at));
  assert.deepEqual(purser.problems(), []);
});

test('nobody does any of it to a wallet of another account, to a closed one, or without a session', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const paths = ['refill', 'refill/end', 'children', 'gateway-keys'].map((it) => `/wallets/${id}/${it}`);
  const other = openBrowser(purser);
  await other.post('/sign-in/key', { key: (await addTenant(purser, 'other')).accountKey });
  const order = { amount: '5', every: 'day', name: 'x', budget: '1', key: 'k' };
  for (const path of paths) {
    assert.equal((await other.post(path, order)).status, 404, path);
    assert.equal((await openBrowser(purser).post(path, order)).status, 401, path);
  }
  await purser.run('wallet.close', { id });
  const browser = await asOperator(purser);
  for (const path of paths) assert.equal((await browser.post(path, order)).status, 409, path);
  assert.equal((await purser.run('wallet.list', {})).total, 1);
});
