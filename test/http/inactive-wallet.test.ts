import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';
import { INTERFACE } from './interface.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

/** The ways in which a wallet stops being active. Each answers its token, and what spending then answers. */
type Ended = { id: string; token: string; code: 'wallet_closed' | 'wallet_expired'; status: string };
const ENDS: Record<string, (purser: TestServer) => Promise<Ended>> = {
  async 'closed by its account'(purser) {
    const wallet = await purser.openWallet();
    const closed = await purser.ask('POST', `/v1/wallets/${wallet.id}/close`, { token: purser.accountKey });
    assert.equal(closed.status, 200);
    return { ...wallet, code: 'wallet_closed', status: 'closed' };
  },
  async 'closed by its agent'(purser) {
    const wallet = await purser.openWallet();
    assert.equal((await purser.ask('POST', '/v1/run/close', { token: wallet.token })).status, 200);
    return { ...wallet, code: 'wallet_closed', status: 'closed' };
  },
  async 'closed by the operator'(purser) {
    const wallet = await purser.openWallet();
    await purser.run('wallet.close', { id: wallet.id });
    return { ...wallet, code: 'wallet_closed', status: 'closed' };
  },
  async 'past its expiry, which no reaper has seen yet'(purser) {
    const wallet = await purser.openWallet({ expires_in_seconds: 60 });
    purser.clock.advance(60);
    return { ...wallet, code: 'wallet_expired', status: 'expired' };
  },
  async 'closed by its expiry'(purser) {
    const wallet = await purser.openWallet({ expires_in_seconds: 60 });
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
    return { ...wallet, code: 'wallet_expired', status: 'closed' };
  },
};

/**
 * What each agent endpoint does with the token of a wallet that is not active (design 2.11): it reads, ends, or answers
 * 409. No resource can exist yet, and nothing is configured: their 404 and 501 come before the 409 (design 2.6).
 */
const AFTERWARDS: Record<string, 'works' | 'not_found' | 'not_configured' | 'refused'> = {
  'GET /v1/budget': 'works',
  'GET /v1/compute/offers': 'works',
  'GET /v1/compute/list': 'works',
  'GET /v1/models': 'works',
  'POST /v1/run/close': 'works',
  'POST /v1/compute/stop': 'not_found',
  'POST /v1/compute/status': 'not_found',
  'POST /v1/compute/extend': 'not_found',
  'POST /v1/compute/ssh': 'not_found',
  'POST /v1/compute/exec': 'not_found',
  'POST /v1/compute/upload': 'not_found',
  'POST /v1/compute/create': 'not_configured',
  'POST /v1/transfer/sign': 'not_configured',
  'POST /v1/router/key': 'refused',
  'POST /v1/chat/completions': 'refused',
};

test('the table names every agent endpoint', () => {
  const agents = INTERFACE.filter((line) => line.auth === 'Wallet').map(({ method, path }) => `${method} ${path}`);
  assert.deepEqual(Object.keys(AFTERWARDS).sort(), agents.sort());
});

for (const [how, end] of Object.entries(ENDS)) {
  test(`the token of a wallet ${how} reads and ends, and spends nothing`, async (t) => {
    const purser = await openTestServer(t);
    const { token, code, status } = await end(purser);
    // Ending it comes last: it is what might change what the others see.
    const lines = INTERFACE.filter((line) => line.auth === 'Wallet');
    for (const line of [
      ...lines.filter((it) => it.path !== '/v1/run/close'),
      ...lines.filter((it) => it.path === '/v1/run/close'),
    ]) {
      const { method, path, key, body } = line;
      const calls = purser.upstream.calls.length;
      const answer = await purser.ask(method, path, { token, body, key: key ? randomUUID() : undefined });
      const afterwards = AFTERWARDS[`${method} ${path}`];
      if (afterwards === 'works') assert.equal(answer.status, 200, `${path}: ${answer.text}`);
      else if (afterwards === 'not_found') assertRefused(answer, 404, 'not_found', path);
      else if (afterwards === 'not_configured') assert.equal(answer.status, 501, `${path}: ${answer.text}`);
      else assertRefused(answer, 409, code, path);
      if (path === '/v1/budget') assert.equal(answer.body.status, status);
      assert.equal(purser.upstream.calls.length, calls);
    }
    assert.deepEqual(purser.problems(), []);
  });

  test(`the account of a wallet ${how} reads it and closes it again, and gets no token`, async (t) => {
    const purser = await openTestServer(t);
    const { id, code, status } = await end(purser);
    const token = purser.accountKey;
    assertRefused(await purser.ask('GET', `/v1/wallets/${id}/token`, { token }), 409, code);
    const read = await purser.ask('GET', `/v1/wallets/${id}`, { token });
    assert.equal(read.body.status, status);
    assert.equal(read.body.budget_cents, 1000);
    assert.equal(read.body.used_cents, 0);
    assert.equal((await purser.ask('GET', `/v1/wallets/${id}/resources`, { token })).status, 200);
    assert.equal((await purser.ask('GET', `/v1/resources?wallet_id=${id}`, { token })).status, 200);
    const closed = await purser.ask('POST', `/v1/wallets/${id}/close`, { token });
    assert.equal(closed.status, 200, closed.text);
    assert.equal(closed.body.status, 'closed');
    assert.equal(closed.body.close_reason === 'expired', code === 'wallet_expired');
    assert.equal(
      (await purser.ask('POST', `/v1/wallets/${id}/close`, { token })).text,
      closed.text,
      'closing again is the same answer',
    );
    assert.equal((await purser.ask('GET', '/v1/account', { token })).body.available_cents, 100_000);
    assert.deepEqual(purser.problems(), []);
  });

  test(`the creation of a wallet ${how} cannot be replayed: no dead credential is handed out`, async (t) => {
    const purser = await openTestServer(t);
    const { id, code } = await end(purser);
    const { idempotencyKey } = purser.wallet(id);
    const body = { name: 'test', budget_cents: 1000, expires_in_seconds: code === 'wallet_expired' ? 60 : 3600 };
    await assertNothingMoves(purser, async () => {
      const answer = await purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: idempotencyKey, body });
      assertRefused(answer, 409, code);
      assert.match(answer.body.error.message, new RegExp(id), 'the message names the wallet');
      assert.doesNotMatch(answer.text, /svc_agent_/);
    });
  });
}

test('a wallet with cleanup pending stays closing: the close says so until it is done, and nothing is spent', async (t) => {
  const purser = await openTestServer(t, { settings: { close_wait_seconds: 0 } });
  const { id, token } = await purser.openWallet();
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const running = purser.chat(token, {}, 'slow');
  await purser.upstream.arrived(1);

  const closing = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assertRefused(closing, 409, 'cleanup_pending');
  assertRefused(await purser.ask('POST', '/v1/run/close', { token }), 409, 'cleanup_pending');
  const { body } = await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey });
  assert.equal(body.status, 'closing');
  assert.equal(body.cleanup.pending, true);
  assertRefused(await purser.chat(token, {}, 'new'), 409, 'wallet_closed');
  assertRefused(await purser.ask('GET', `/v1/wallets/${id}/token`, { token: purser.accountKey }), 409, 'wallet_closed');
  assert.equal((await purser.budget(token)).holds.length, 1);

  slow.open();
  assert.equal((await running).status, 200, 'what was in flight is answered');
  const closed = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.equal(closed.status, 200);
  assert.equal(closed.body.close_reason, 'account_request', 'who closed it first closed it');
  assert.equal(purser.upstream.calls.length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a wallet lives until its second, and not a second longer', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ expires_in_seconds: 60 });
  purser.clock.advance(59);
  assert.equal((await purser.chat(token)).status, 200);
  purser.clock.advance(1);
  assertRefused(await purser.chat(token), 409, 'wallet_expired');
});
