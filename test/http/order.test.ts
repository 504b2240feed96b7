import assert from 'node:assert/strict';
import test, { suite } from 'node:test';
import { openedOnce } from '../helper/opened-once.ts';
import { openTestServer } from '../helper/server.ts';
import { WITH_BODY } from './interface.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

// Design 2.6: 401 → 403 → schema 400 → 404 of the caller's own ids → idempotency → catalogue and configuration → state
// 409 → money 402 → outside 503. Each test has two faults and says which one is told.

const GARBAGE = { body: '{"torn', headers: { 'content-type': 'text/plain', 'content-encoding': 'gzip' } };

suite('any endpoint with a body', () => {
  const opened = openedOnce(openTestServer);
  for (const { path, auth } of WITH_BODY) {
    test(`POST ${path}: who asks comes before what, and the scope before the body`, async () => {
      const purser = opened();
      const { token } = await purser.openWallet();
      const wrongScope = auth === 'Account' ? token : purser.accountKey;
      await assertNothingMoves(purser, async () => {
        assertRefused(await purser.ask('POST', path, { token: 'cnv_live_nobody', ...GARBAGE }), 401, 'unauthenticated');
        assertRefused(await purser.ask('POST', path, GARBAGE), 401, 'unauthenticated');
        assertRefused(await purser.ask('POST', path, { token: wrongScope, ...GARBAGE }), 403, 'wrong_token_scope');
      });
    });
  }
});

test('the scope comes before ids and queries: nobody learns of ids with a token of another kind', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  await assertNothingMoves(purser, async () => {
    for (const it of [id, 'wal_none']) {
      assertRefused(await purser.ask('GET', `/v1/wallets/${it}`, { token }), 403, 'wrong_token_scope');
      assertRefused(await purser.ask('POST', `/v1/wallets/${it}/close`, { token }), 403, 'wrong_token_scope');
      assertRefused(await purser.ask('GET', `/v1/wallets/${it}`), 401, 'unauthenticated');
    }
    assertRefused(
      await purser.ask('GET', `/v1/resources?before=${'a'.repeat(201)}`, { token }),
      403,
      'wrong_token_scope',
    );
    assertRefused(
      await purser.ask('DELETE', '/v1/keys/key_none', { token: purser.accountKey }),
      403,
      'wrong_token_scope',
    );
  });
});

test('the schema comes before ids: a wrong field is told of an id that does not exist', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await assertNothingMoves(purser, async () => {
    const extend = { id: 'res_none', additional_seconds: 0 };
    assertRefused(
      await purser.ask('POST', '/v1/compute/extend', { token, key: 'a', body: extend }),
      400,
      'invalid_request',
    );
    const exec = { id: 'res_none', command: 'true', timeout: 3601 };
    assertRefused(await purser.ask('POST', '/v1/compute/exec', { token, body: exec }), 400, 'invalid_request');
    const upload = { id: 'res_none', path: '/a', content_base64: '%' };
    assertRefused(await purser.ask('POST', '/v1/compute/upload', { token, body: upload }), 400, 'invalid_request');
    const query = `wallet_id=wal_none&before=${'a'.repeat(201)}`;
    assertRefused(
      await purser.ask('GET', `/v1/resources?${query}`, { token: purser.accountKey }),
      400,
      'invalid_request',
    );
  });
});

test('the schema comes before configuration: a wrong field is told where nothing is configured', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await assertNothingMoves(purser, async () => {
    const amount = { amount_cents: 499 };
    assertRefused(
      await purser.ask('POST', '/v1/billing/checkout', { token: purser.operatorKey, key: 'a', body: amount }),
      400,
      'invalid_request',
    );
    const sign = { object: 'a', operation: 'delete' };
    assertRefused(await purser.ask('POST', '/v1/transfer/sign', { token, body: sign }), 400, 'invalid_request');
    const spec = { provider: 'provider_two', spec: { chip: 'a', max_seconds: 1 } };
    assertRefused(
      await purser.ask('POST', '/v1/compute/create', { token, key: 'a', body: spec }),
      400,
      'invalid_request',
    );
  });
});

test('ids of the caller come before cursors', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const get = (query: string) => purser.ask('GET', `/v1/resources?${query}`, { token: purser.accountKey });
  assertRefused(await get('wallet_id=wal_none&before=a'), 404, 'not_found');
  assertRefused(await get(`wallet_id=${id}&before=a`), 400, 'invalid_cursor');
});

test('idempotency comes before the catalogue: a used key is a conflict, whatever the new body asks for', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  assert.equal((await purser.chat(token, {}, 'used')).status, 200);
  await assertNothingMoves(purser, async () => {
    assertRefused(await purser.chat(token, { model: 'none' }, 'used'), 409, 'idempotency_conflict');
    assertRefused(await purser.chat(token, { web_search_options: {} }, 'used'), 409, 'idempotency_conflict');
  });
});

test('idempotency comes before state: a closed wallet replays, and says that a key was used', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const first = await purser.chat(token, {}, 'used');
  await purser.run('wallet.close', { id });
  await assertNothingMoves(purser, async () => {
    const replay = await purser.chat(token, {}, 'used');
    assert.equal(replay.status, 200);
    assert.equal(replay.headers['idempotent-replayed'], 'true');
    assert.equal(replay.text, first.text);
    assertRefused(await purser.chat(token, { max_tokens: 7 }, 'used'), 409, 'idempotency_conflict');
    assertRefused(await purser.chat(token, {}, 'new'), 409, 'wallet_closed');
  });
});

test('idempotency comes before money: under a used key even what nobody could pay for is a conflict', async (t) => {
  const purser = await openTestServer(t, { creditCents: 1000 });
  const post = (key: string, budget_cents: number) =>
    purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key, body: { name: 'a', budget_cents } });
  assert.equal((await post('used', 1000)).status, 201);
  await assertNothingMoves(purser, async () => {
    assertRefused(await post('used', 2000), 409, 'idempotency_conflict');
    assertRefused(await post('new', 2000), 402, 'insufficient_funds');
    const replay = await post('used', 1000);
    assert.equal(replay.status, 201);
    assert.equal(replay.headers['idempotent-replayed'], 'true');
  });
});

test('catalogue and configuration come before state: a closed wallet hears that there is no such model', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  await purser.run('wallet.close', { id });
  await assertNothingMoves(purser, async () => {
    assertRefused(await purser.chat(token, { model: 'none' }), 404, 'model_not_found');
    assertRefused(await purser.chat(token, { web_search_options: {} }), 400, 'unsupported_parameter');
    const create = { provider: 'provider_two', spec: { chip: 'a', max_seconds: 60 } };
    assertRefused(
      await purser.ask('POST', '/v1/compute/create', { token, key: 'a', body: create }),
      501,
      'provider_not_configured',
    );
    const sign = { object: 'a', operation: 'get' };
    assertRefused(await purser.ask('POST', '/v1/transfer/sign', { token, body: sign }), 501, 'transfer_not_configured');
  });
});

test('state comes before money: a closed wallet says that it is closed, not that it is poor', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  await purser.run('wallet.close', { id });
  assertRefused(await purser.chat(token, { model: 'dear', max_tokens: 1000 }), 409, 'wallet_closed');
});

test('money comes before the outside: what nobody can pay for, nobody outside hears of', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 100 });
  await purser.upstream.close();
  await assertNothingMoves(purser, async () => {
    assertRefused(await purser.chat(token, { model: 'dear', max_tokens: 1000 }), 402, 'insufficient_funds');
  });
  assertRefused(await purser.chat(token), 503, 'gateway_unavailable');
});
