import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { childOf, walletOf } from '../helper/tenants.ts';
import { failure } from '../helper/upstream.ts';

const LIMITS = { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 0 };

test('children that spend nothing are limited for the tree of their parent, and nobody else', async (t) => {
  const purser = await openTestServer(t, { settings: { limits: { ...LIMITS, released_per_minute: 4 } } });
  const mine = { accountId: purser.accountId, accountKey: purser.accountKey };
  const attacker = await walletOf(purser, mine);
  const below = await childOf(purser, attacker.token, '2.00');
  const other = await walletOf(purser, mine);
  const order = (token: string, key: string = randomUUID()) =>
    purser.ask('POST', '/v1/run/wallets', {
      token,
      key,
      body: { name: 'child', budget_usd: '0.10', expires_in_seconds: 0 },
    });
  const close = async (token: string, id: string) =>
    assert.equal((await purser.ask('POST', `/v1/run/wallets/${id}/close`, { token })).status, 200);
  const first = randomUUID();
  await close(attacker.token, (await order(attacker.token, first)).body.id);
  for (let i = 0; i < 2; i++) await close(below.token, (await childOf(purser, below.token)).id);
  const open = await childOf(purser, below.token);
  const spends = await childOf(purser, attacker.token);
  assert.equal((await purser.chat(spends.token, { model: 'flat' })).status, 200);
  await close(attacker.token, spends.id); // It has spent something: it is not counted.
  const last = await childOf(purser, attacker.token);
  await close(attacker.token, last.id);

  for (const { token } of [attacker, below]) {
    const { status, body, headers } = await order(token);
    assert.deepEqual([status, body.error.code], [429, 'rate_limited']);
    assert.match(body.error.message, /child wallets that were closed with nothing spent/);
    assert(Number(headers['retry-after']) > 0);
  }
  assert.equal(
    (await order(attacker.token, first)).status,
    409,
    'a repetition is answered as ever: that child is closed',
  );
  for (const { token } of [open, below, attacker])
    assert.equal((await purser.chat(token)).status, 200, 'what is open goes on, the wallet at the top too');
  await close(other.token, (await order(other.token)).body.id);
  assert.equal((await order(other.token)).status, 201);
  assert.deepEqual(purser.problems(), []);
});

test('requests that the model server refuses keep no wallet of their tree from opening a child', async (t) => {
  const purser = await openTestServer(t, { settings: { limits: { ...LIMITS, released_per_minute: 1 } } });
  const { token } = await walletOf(purser, { accountId: purser.accountId, accountKey: purser.accountKey });
  purser.upstream.handle = failure(400, { error: { message: 'No.' } });
  assert.equal((await purser.chat(token)).status, 400);
  assert.equal((await purser.chat(token)).status, 429);
  await childOf(purser, token);
});
