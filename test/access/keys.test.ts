import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { assertRefused } from '../http/refused.ts';

const mint = async (house: TestServer, name = 'ci') =>
  (await house.ask('POST', '/v1/keys', { token: house.operatorKey, body: { name } })).body as Record<string, any> & {
    id: string;
    key: string;
  };
const read = (house: TestServer, token: string) => house.ask('GET', '/v1/account', { token });
const list = async (house: TestServer) =>
  (await house.ask('GET', '/v1/keys', { token: house.accountKey })).body.keys as Record<string, any>[];

test('a new key works at once, and its secret is told once', async (t) => {
  const house = await openTestServer(t);
  const { key, ...record } = await mint(house);
  assert.match(key, /^cnv_live_[0-9A-Za-z]{49}$/);
  assert.deepEqual(record, {
    id: record.id,
    name: 'ci',
    prefix: 'cnv_live_',
    last4: key.slice(-4),
    created_at: record.created_at,
    last_used_at: null,
    revoked_at: null,
  });
  assert.equal((await read(house, key)).status, 200);
  assert.deepEqual((await list(house))[0], record, 'the list has the record and nothing more');
});

test('a revoked key is dead at the next request, on the same connection and on others', async (t) => {
  const house = await openTestServer(t);
  const { id, key } = await mint(house);
  assert.equal((await read(house, key)).status, 200);
  const revoked = await house.ask('DELETE', `/v1/keys/${id}`, { token: house.operatorKey });
  assert.equal(revoked.status, 200);
  assert.deepEqual(Object.keys(revoked.body).sort(), ['id', 'revoked', 'revoked_at']);
  for (const answer of await Promise.all(Array.from({ length: 5 }, () => read(house, key))))
    assertRefused(answer, 401, 'unauthenticated');
  await house.reopen();
  assertRefused(await read(house, key), 401, 'unauthenticated');
});

test('revoking twice is the same answer, and the first moment counts', async (t) => {
  const house = await openTestServer(t);
  const { id } = await mint(house);
  const first = await house.ask('DELETE', `/v1/keys/${id}`, { token: house.operatorKey });
  house.clock.advance(100);
  const second = await house.ask('DELETE', `/v1/keys/${id}`, { token: house.operatorKey });
  assert.deepEqual(second.body, first.body);
  assert.equal((await list(house)).find((it) => it.id === id)?.revoked_at, first.body.revoked_at);
});

test('a key revoked by the operator at the terminal is dead at once too', async (t) => {
  const house = await openTestServer(t);
  const { id, key } = await mint(house);
  await house.run('key.revoke', { id });
  assertRefused(await read(house, key), 401, 'unauthenticated');
  const operator = await house.run('operator-key.mint', {});
  await house.run('operator-key.revoke', { id: operator.id });
  assertRefused(await read(house, operator.key), 401, 'unauthenticated');
});

test('keys outlive the operator key that minted them, and the operator’s list says who did', async (t) => {
  const house = await openTestServer(t);
  const operator = await house.run('operator-key.mint', {});
  const minted = await house.ask('POST', '/v1/keys', { token: operator.key, body: { name: 'child' } });
  await house.run('operator-key.revoke', { id: operator.id });
  assert.equal((await read(house, minted.body.key)).status, 200);
  const { keys } = await house.run('key.list', { account: house.accountId });
  assert.deepEqual(
    keys.map((it) => [it.name, it.minted_by]),
    [
      ['child', operator.id],
      ['test', 'cli'],
    ],
  );
});

test('a wallet outlives the key that opened it, and its token with it', async (t) => {
  const house = await openTestServer(t);
  const { id, key } = await mint(house);
  const wallet = await house.ask('POST', '/v1/wallets', {
    token: key,
    key: 'a',
    body: { name: 'a', budget_cents: 100 },
  });
  await house.ask('DELETE', `/v1/keys/${id}`, { token: house.operatorKey });
  assert.equal((await house.budget(wallet.body.agent_token)).status, 'active');
});

test('a new account key may replay what a revoked one began', async (t) => {
  const house = await openTestServer(t);
  const { id, key } = await mint(house);
  const body = { name: 'a', budget_cents: 100 };
  const first = await house.ask('POST', '/v1/wallets', { token: key, key: 'once', body });
  await house.ask('DELETE', `/v1/keys/${id}`, { token: house.operatorKey });
  const again = await house.ask('POST', '/v1/wallets', { token: (await mint(house)).key, key: 'once', body });
  assert.equal(again.status, 201);
  assert.equal(again.headers['idempotent-replayed'], 'true');
  assert.deepEqual(again.body, first.body);
});

test('when a key was last used is written by the reaper, and only for those that were', async (t) => {
  const house = await openTestServer(t);
  const [used, idle] = [await mint(house, 'used'), await mint(house, 'idle')];
  house.clock.advance(100);
  await read(house, used.key);
  await house.app.reaper.runOnce();
  const keys = await list(house);
  assert.equal(keys.find((it) => it.id === used.id)?.last_used_at, used.created_at + 100);
  assert.equal(keys.find((it) => it.id === idle.id)?.last_used_at, null);

  house.clock.advance(50);
  await read(house, used.key);
  await read(house, `${used.key}x`);
  await house.app.reaper.runOnce();
  assert.equal((await list(house)).find((it) => it.id === used.id)?.last_used_at, used.created_at + 150);
  const operators = (await house.run('operator-key.list', {})).keys;
  assert.equal(operators[0]?.last_used_at, used.created_at, 'an operator key that minted was used');
});

test('a key that is revoked while its request comes slowly makes nothing', async (t) => {
  const house = await openTestServer(t);
  const body = JSON.stringify({ name: 'left behind' });
  const headers = { authorization: `Bearer ${house.operatorKey}`, 'content-type': 'application/json' };
  const slow = http.request(`${house.url}/v1/keys`, {
    method: 'POST',
    headers: { ...headers, 'content-length': body.length, expect: '100-continue' },
  });
  await once(slow, 'continue');
  slow.write(body.slice(0, 5));
  await read(house, house.accountKey); // Behind it in the queue: by now its token has been looked at.
  const [operator] = (await house.run('operator-key.list', {})).keys;
  await house.run('operator-key.revoke', { id: operator?.id as string });
  slow.end(body.slice(5));
  const [response] = (await once(slow, 'response')) as [http.IncomingMessage];
  assert.equal(response.statusCode, 401);
  response.resume();
  assert.equal((await list(house)).length, 1, 'the house’s own');
});

test('a revoked key that is tried is not used', async (t) => {
  const house = await openTestServer(t);
  const { id, key } = await mint(house);
  await house.ask('DELETE', `/v1/keys/${id}`, { token: house.operatorKey });
  await read(house, key);
  await house.app.reaper.runOnce();
  assert.equal((await list(house)).find((it) => it.id === id)?.last_used_at, null);
});

test('the list has the latest 100 keys, newest first, and older ones still work', async (t) => {
  const house = await openTestServer(t);
  let at = Date.now();
  t.mock.method(Date, 'now', () => ++at); // ids carry the millisecond: each of these has its own
  const made = [];
  for (let i = 0; i < 101; i++)
    made.push(await house.run('key.create', { account: house.accountId, name: `key ${i}` }));
  const keys = await list(house);
  assert.deepEqual(
    keys.map((it) => it.id),
    made
      .map((it) => it.id)
      .slice(1)
      .reverse(),
  );
  assert.equal((await read(house, made[0]?.key as string)).status, 200);
});
