import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

const WALLET = { name: 'agent', budget_cents: 500 };
const postWallet = (house: TestServer, key: string, body: object = WALLET) =>
  house.ask('POST', '/v1/wallets', { token: house.accountKey, key, body });

// Design 2.11: a suspended account begins nothing new, and everything that ends or reads goes on. A frozen installation
// takes no new holds anywhere; reads, settlements and cleanup go on (design, section 4).
const STOPS = {
  'a suspended account': {
    stop: (house: TestServer) => house.run('account.suspend', { id: house.accountId }),
    resume: (house: TestServer) => house.run('account.resume', { id: house.accountId }),
    status: 403,
    code: 'account_suspended',
  },
  'a frozen installation': {
    stop: (house: TestServer) => house.run('freeze', {}),
    resume: (house: TestServer) => house.run('unfreeze', {}),
    status: 503,
    code: 'read_only',
  },
};

for (const [what, { stop, resume, status, code }] of Object.entries(STOPS)) {
  test(`${what} takes no new wallet and no new hold, whether or not it could pay`, async (t) => {
    const house = await openTestServer(t);
    const { token } = await house.openWallet({ budget_cents: 100 });
    await stop(house);
    await assertNothingMoves(house, async () => {
      assertRefused(await postWallet(house, 'a'), status, code);
      assertRefused(await postWallet(house, 'b', { ...WALLET, budget_cents: 1_000_000 }), status, code);
      assertRefused(await house.chat(token), status, code);
      assertRefused(await house.chat(token, { model: 'free' }), status, code);
      assertRefused(await house.chat(token, { model: 'dear', max_tokens: 1000 }), status, code);
    });
  });

  test(`${what} is read as ever`, async (t) => {
    const house = await openTestServer(t);
    const { id, token } = await house.openWallet();
    await stop(house);
    for (const path of [
      '/v1/account',
      '/v1/keys',
      '/v1/wallets',
      `/v1/wallets/${id}`,
      `/v1/wallets/${id}/token`,
      '/v1/resources',
      `/v1/wallets/${id}/resources`,
    ])
      assert.equal((await house.ask('GET', path, { token: house.accountKey })).status, 200, path);
    for (const path of ['/v1/budget', '/v1/compute/offers', '/v1/compute/list', '/v1/models'])
      assert.equal((await house.ask('GET', path, { token })).status, 200, path);
  });

  test(`${what} closes its wallets and gets the rest back`, async (t) => {
    const house = await openTestServer(t);
    const [one, two] = [await house.openWallet(), await house.openWallet()];
    await stop(house);
    assert.equal((await house.ask('POST', `/v1/wallets/${one.id}/close`, { token: house.accountKey })).status, 200);
    assert.equal((await house.ask('POST', '/v1/run/close', { token: two.token })).status, 200);
    assert.equal((await house.ask('GET', '/v1/account', { token: house.accountKey })).body.available_cents, 100_000);
    assert.deepEqual(house.problems(), []);
  });

  test(`${what} replays what it answered before`, async (t) => {
    const house = await openTestServer(t);
    const wallet = await postWallet(house, 'before');
    const token = wallet.body.agent_token;
    const chat = await house.chat(token, {}, 'before');
    await stop(house);
    await assertNothingMoves(house, async () => {
      const walletAgain = await postWallet(house, 'before');
      assert.equal(walletAgain.status, 201);
      assert.equal(walletAgain.text, wallet.text);
      const chatAgain = await house.chat(token, {}, 'before');
      assert.equal(chatAgain.status, 200);
      assert.equal(chatAgain.text, chat.text);
      for (const replay of [walletAgain, chatAgain]) assert.equal(replay.headers['idempotent-replayed'], 'true');
    });
  });

  test(`${what} settles what is in flight`, async (t) => {
    const house = await openTestServer(t);
    const { token } = await house.openWallet();
    const slow = gate();
    house.upstream.handle = slow.handler;
    const running = house.chat(token);
    await house.upstream.arrived(1);
    await stop(house);
    slow.open();
    assert.equal((await running).status, 200);
    const budget = await house.budget(token);
    assert.deepEqual(budget.holds, []);
    assert.equal(budget.used_usd, '0.00012');
    assert.deepEqual(house.problems(), []);
  });

  test(`${what} that is let go again works as before, under the keys that were refused`, async (t) => {
    const house = await openTestServer(t);
    const { token } = await house.openWallet();
    await stop(house);
    assertRefused(await postWallet(house, 'a'), status, code);
    assertRefused(await house.chat(token, {}, 'a'), status, code);
    await resume(house);
    assert.equal((await postWallet(house, 'a')).status, 201);
    assert.equal((await house.chat(token, {}, 'a')).status, 200);
  });
}

test('a suspended account gets no new key, but its keys work and can be revoked', async (t) => {
  const house = await openTestServer(t);
  const { id } = await house.run('key.create', { account: house.accountId, name: 'old' });
  await house.run('account.suspend', { id: house.accountId });
  const token = house.operatorKey;
  await assertNothingMoves(house, async () => {
    assertRefused(await house.ask('POST', '/v1/keys', { token, body: { name: 'new' } }), 403, 'account_suspended');
  });
  assert.equal((await house.ask('GET', '/v1/keys', { token: house.accountKey })).status, 200);
  const revoked = await house.ask('DELETE', `/v1/keys/${id}`, { token });
  assert.equal(revoked.status, 200);
  assert.equal(revoked.body.revoked, true);
});

test('a frozen installation still makes keys: they hold no money', async (t) => {
  const house = await openTestServer(t);
  await house.run('freeze', {});
  assert.equal((await house.ask('POST', '/v1/keys', { token: house.operatorKey, body: { name: 'new' } })).status, 201);
});

test('one suspended account is no other account’s affair', async (t) => {
  const house = await openTestServer(t);
  const { id: account } = await house.run('account.create', { name: 'other', creditCents: 5000 });
  const token = (await house.run('key.create', { account, name: 'other' })).key;
  await house.run('account.suspend', { id: house.accountId });
  assert.equal((await house.ask('POST', '/v1/wallets', { token, key: 'a', body: WALLET })).status, 201);
});

test('a frozen installation says when to come back', async (t) => {
  const house = await openTestServer(t);
  await house.run('freeze', {});
  const answer = await postWallet(house, 'a');
  assertRefused(answer, 503, 'read_only');
  assert.match(String(answer.headers['retry-after']), /^[1-9]\d*$/);
});
