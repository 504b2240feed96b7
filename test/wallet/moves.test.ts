import assert from 'node:assert/strict';
import test from 'node:test';
import { fingerprint } from '../../src/base/fingerprint.ts';
import { ZERO } from '../../src/base/money.ts';
import { insertChange } from '../../src/ledger/move.ts';
import { extend } from '../../src/wallet/change.ts';
import { writeWith } from '../helper/closures.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { asOperator } from '../ui/sample.ts';
import { post, recordOf } from './moves-shared.ts';

const accountOf = async (purser: TestServer) =>
  (await purser.ask('GET', '/v1/account', { token: purser.accountKey })).body;

test('a raise and a lower move credit between account and wallet, once a key', async (t) => {
  const purser = await openTestServer(t, { creditCents: 2000 });
  const { id } = await purser.openWallet({ budget_cents: 1000 });
  const raised = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 500 }, 'k1');
  assert.equal(raised.status, 200, raised.text);
  assert.equal(raised.body.budget_usd, '15.00');
  const again = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 500 }, 'k1');
  assert.deepEqual([again.body.budget_usd, again.headers['idempotent-replayed']], ['15.00', 'true']);
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 501 }, 'k1')).body.error.code,
    'idempotency_conflict',
  );
  const tooMuch = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 501 }, 'k2');
  assert.deepEqual([tooMuch.status, tooMuch.body.error.code], [402, 'insufficient_funds']);
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: -1200 }, 'k3')).body.budget_usd, '3.00');
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 0 }, 'k4')).status, 400);
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 1 })).body.error.code,
    'idempotency_key_required',
  );
  const account = await accountOf(purser);
  assert.deepEqual([account.available_cents, account.reserved_cents], [1700, 300]);
  assert.deepEqual(purser.problems(), []);
});

test('the same key may change the budget and the expiry: each endpoint has keys of its own', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 3600 });
  const { expires_at } = await recordOf(purser, id);
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 5 }, 'k')).body.budget_usd, '10.05');
  for (const replayed of [undefined, 'true']) {
    const extended = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 60 }, 'k');
    assert.deepEqual([extended.status, extended.headers['idempotent-replayed']], [200, replayed], extended.text);
    assert.equal(extended.body.expires_at, expires_at + 60);
  }
  const other = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 61 }, 'k');
  assert.equal(other.body.error.code, 'idempotency_conflict');
  assert.equal((await post(purser, `/v1/wallets/${id}/budget`, { add_cents: 5 }, 'k')).body.budget_usd, '10.05');
});

test('an extension of an older version, whose key was kept as it came, is not made again', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ expires_in_seconds: 3600 });
  const { expires_at } = await recordOf(purser, id);
  const row = { walletId: id, kind: 'extend' as const, amount: ZERO, expiresAt: expires_at, idempotencyKey: 'k' };
  await writeWith(purser.app.ledger, (tx) =>
    insertChange(tx, { ...row, fingerprint: fingerprint({ extend: { seconds: 60 } }) }, expires_at - 3600),
  );
  const again = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 60 }, 'k');
  assert.deepEqual([again.body.expires_at, again.headers['idempotent-replayed']], [expires_at, 'true'], again.text);
});

test('lowering stops at what is spent, held and delegated', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 1000 });
  assert.equal((await purser.chat(token, { model: 'flat' })).status, 200); // 0.01 USD
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'child', budget_usd: '2.005' } });
  const lowered = await post(purser, `/v1/wallets/${id}/budget`, { add_cents: -100_000 }, 'k');
  assert.deepEqual(
    [lowered.body.budget_usd, lowered.body.used_usd, lowered.body.delegated_usd, lowered.body.available_usd],
    ['2.02', '0.01', '2.005', '0.005'],
  );
  assert.deepEqual(purser.problems(), []);
});

test('an extended wallet lives longer, with the same token', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
  const { expires_at } = await recordOf(purser, id);
  const extended = await post(purser, `/v1/wallets/${id}/extend`, { seconds: 3600 }, 'k');
  assert.equal(extended.body.expires_at, expires_at + 3600);
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/extend`, { seconds: 3600 }, 'k')).body.expires_at,
    expires_at + 3600,
  );
  purser.clock.advance(120);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.chat(token)).status, 200);
  purser.clock.advance(3600);
  assert.equal((await purser.chat(token)).body.error.code, 'wallet_expired');
  assert.equal(
    (await post(purser, `/v1/wallets/${id}/extend`, { seconds: 60 }, 'k2')).body.error.code,
    'wallet_expired',
  );
  const never = await purser.openWallet({ expires_in_seconds: 0 });
  assert.equal((await post(purser, `/v1/wallets/${never.id}/extend`, { seconds: 60 }, 'k')).status, 400);
});

test('no wallet is extended beyond the times that can be written, so that one account spoils no list', async (t) => {
  const purser = await openTestServer(t);
  const year = 31_536_000;
  const { id, token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 3600 });
  const never = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 0 });
  const body = { name: 'child', budget_usd: '1', expires_in_seconds: 3600 };
  const child = await purser.ask('POST', '/v1/run/wallets', { token: never.token, key: 'child', body });
  const last = Date.UTC(9999, 11, 31, 23, 59, 59) / 1000;
  for (const walletId of [id, child.body.id]) {
    const { expires_at } = await recordOf(purser, walletId);
    // As if by thousands of extensions.
    const far = { walletId, idempotencyKey: 'far', fingerprint: Buffer.alloc(32), requestId: 'req_x' };
    await extend(purser.app, { ...far, seconds: last - year - expires_at });
    const final = await post(purser, `/v1/wallets/${walletId}/extend`, { seconds: year }, 'k1');
    assert.equal(final.body.expires_at, last);
    const beyond = await post(purser, `/v1/wallets/${walletId}/extend`, { seconds: 1 }, 'k2');
    assert.equal(beyond.body.error?.code, 'wallet_limit_exceeded');
    await assert.rejects(extend(purser.app, { ...far, idempotencyKey: 'farther', seconds: 300_000 * year }), {
      code: 'wallet_limit_exceeded',
    });
  }
  const operator = await asOperator(purser);
  for (const path of ['/wallets', `/wallets/${id}`, `/accounts/${purser.accountId}`])
    assert.equal((await operator.get(path)).status, 200, path);
  assert.equal((await purser.chat(token)).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that is extended in its last second is not ended by a pass that began before', async (t) => {
  for (const writesHere of [true, false]) {
    const purser = await openTestServer(t, { writesHere });
    const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
    purser.clock.advance(59);
    const order = {
      walletId: id,
      idempotencyKey: null,
      fingerprint: Buffer.alloc(32),
      requestId: 'req_x',
      seconds: 3600,
    };
    const extended = extend(purser.app, order);
    purser.clock.advance(1);
    const pass = purser.app.reaper.runOnce();
    assert.equal((await extended).wallet.status, 'active');
    assert.equal((await pass).expired, 0);
    assert.equal((await recordOf(purser, id)).status, 'active');
    assert.equal((await purser.chat(token)).status, 200);
  }
});
