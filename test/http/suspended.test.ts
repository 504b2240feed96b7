import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

const WALLET = { name: 'agent', budget_cents: 500 };
const postWallet = (purser: TestServer, key: string, body: object = WALLET) =>
  purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key, body });

// Design 2.11: a suspended account begins nothing new, and everything that ends or reads goes on. A frozen installation
// takes no new holds anywhere; reads, settlements and cleanup go on (design, section 4).
const STOPS = {
  'a suspended account': {
    stop: (purser: TestServer) => purser.run('account.suspend', { id: purser.accountId }),
    resume: (purser: TestServer) => purser.run('account.resume', { id: purser.accountId }),
    status: 403,
    code: 'account_suspended',
  },
  'a frozen installation': {
    stop: (purser: TestServer) => purser.run('freeze', {}),
    resume: (purser: TestServer) => purser.run('unfreeze', {}),
    status: 503,
    code: 'read_only',
  },
};

for (const [what, { stop, resume, status, code }] of Object.entries(STOPS)) {
  test(`${what} takes no new wallet and no new hold, whether or not it could pay`, async (t) => {
    const purser = await openTestServer(t);
    const { token } = await purser.openWallet({ budget_cents: 100 });
    await stop(purser);
    await assertNothingMoves(purser, async () => {
      assertRefused(await postWallet(purser, 'a'), status, code);
      assertRefused(await postWallet(purser, 'b', { ...WALLET, budget_cents: 1_000_000 }), status, code);
      assertRefused(await purser.chat(token), status, code);
      assertRefused(await purser.chat(token, { model: 'free' }), status, code);
      assertRefused(await purser.chat(token, { model: 'dear', max_tokens: 1000 }), status, code);
    });
  });

  test(`${what} is read as ever`, async (t) => {
    const purser = await openTestServer(t);
    const { id, token } = await purser.openWallet();
    await stop(purser);
    for (const path of [
      '/v1/account',
      '/v1/keys',
      '/v1/wallets',
      `/v1/wallets/${id}`,
      `/v1/wallets/${id}/token`,
      '/v1/resources',
      `/v1/wallets/${id}/resources`,
    ])
      assert.equal((await purser.ask('GET', path, { token: purser.accountKey })).status, 200, path);
    for (const path of ['/v1/budget', '/v1/compute/offers', '/v1/compute/list', '/v1/models'])
      assert.equal((await purser.ask('GET', path, { token })).status, 200, path);
  });

  test(`${what} closes its wallets and gets the rest back`, async (t) => {
    const purser = await openTestServer(t);
    const [one, two] = [await purser.openWallet(), await purser.openWallet()];
    await stop(purser);
    assert.equal((await purser.ask('POST', `/v1/wallets/${one.id}/close`, { token: purser.accountKey })).status, 200);
    assert.equal((await purser.ask('POST', '/v1/run/close', { token: two.token })).status, 200);
    assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).body.available_cents, 100_000);
    assert.deepEqual(purser.problems(), []);
  });

  test(`${what} replays what it answered before`, async (t) => {
    const purser = await openTestServer(t);
    const wallet = await postWallet(purser, 'before');
    const token = wallet.body.agent_token;
    const chat = await purser.chat(token, {}, 'before');
    await stop(purser);
    await assertNothingMoves(purser, async () => {
      const walletAgain = await postWallet(purser, 'before');
      assert.equal(walletAgain.status, 201);
      assert.equal(walletAgain.text, wallet.text);
      const chatAgain = await purser.chat(token, {}, 'before');
      assert.equal(chatAgain.status, 200);
      assert.equal(chatAgain.text, chat.text);
      for (const replay of [walletAgain, chatAgain]) assert.equal(replay.headers['idempotent-replayed'], 'true');
    });
  });

  test(`${what} settles what is in flight`, async (t) => {
    const purser = await openTestServer(t);
    const { token } = await purser.openWallet();
    const slow = gate();
    purser.upstream.handle = slow.handler;
    const running = purser.chat(token);
    await purser.upstream.arrived(1);
    await stop(purser);
    slow.open();
    assert.equal((await running).status, 200);
    const budget = await purser.budget(token);
    assert.deepEqual(budget.holds, []);
    assert.equal(budget.used_usd, '0.00012');
    assert.deepEqual(purser.problems(), []);
  });

  test(`${what} that is let go again works as before, under the keys that were refused`, async (t) => {
    const purser = await openTestServer(t);
    const { token } = await purser.openWallet();
    await stop(purser);
    assertRefused(await postWallet(purser, 'a'), status, code);
    assertRefused(await purser.chat(token, {}, 'a'), status, code);
    await resume(purser);
    assert.equal((await postWallet(purser, 'a')).status, 201);
    assert.equal((await purser.chat(token, {}, 'a')).status, 200);
  });
}

test('a suspended account gets no new key, but its keys work and can be revoked', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.run('key.create', { account: purser.accountId, name: 'old' });
  await purser.run('account.suspend', { id: purser.accountId });
  const token = purser.operatorKey;
  await assertNothingMoves(purser, async () => {
    assertRefused(await purser.ask('POST', '/v1/keys', { token, body: { name: 'new' } }), 403, 'account_suspended');
  });
  assert.equal((await purser.ask('GET', '/v1/keys', { token: purser.accountKey })).status, 200);
  const revoked = await purser.ask('DELETE', `/v1/keys/${id}`, { token });
  assert.equal(revoked.status, 200);
  assert.equal(revoked.body.revoked, true);
});

test('a frozen installation still makes keys: they hold no money', async (t) => {
  const purser = await openTestServer(t);
  await purser.run('freeze', {});
  assert.equal(
    (await purser.ask('POST', '/v1/keys', { token: purser.operatorKey, body: { name: 'new' } })).status,
    201,
  );
});

test('one suspended account is no other account’s affair', async (t) => {
  const purser = await openTestServer(t);
  const { id: account } = await purser.run('account.create', { name: 'other', creditCents: 5000 });
  const token = (await purser.run('key.create', { account, name: 'other' })).key;
  await purser.run('account.suspend', { id: purser.accountId });
  assert.equal((await purser.ask('POST', '/v1/wallets', { token, key: 'a', body: WALLET })).status, 201);
});

test('a frozen installation says when to come back', async (t) => {
  const purser = await openTestServer(t);
  await purser.run('freeze', {});
  const answer = await postWallet(purser, 'a');
  assertRefused(answer, 503, 'read_only');
  assert.match(String(answer.headers['retry-after']), /^[1-9]\d*$/);
});
