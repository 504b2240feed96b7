import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { assertRefused } from '../http/refused.ts';

const mint = async (purser: TestServer, name = 'ci') =>
  (await purser.ask('POST', '/v1/keys', { token: purser.operatorKey, body: { name } })).body as Record<string, any> & {
    id: string;
    key: string;
  };
const read = (purser: TestServer, token: string) => purser.ask('GET', '/v1/account', { token });
const list = async (purser: TestServer) =>
  (await purser.ask('GET', '/v1/keys', { token: purser.accountKey })).body.keys as Record<string, any>[];

test('a new key works at once, and its secret is told once', async (t) => {
  const purser = await openTestServer(t);
  const { key, ...record } = await mint(purser);
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
  assert.equal((await read(purser, key)).status, 200);
  assert.deepEqual((await list(purser))[0], record, 'the list has the record and nothing more');
});

test('a revoked key is dead at the next request, on the same connection and on others', async (t) => {
  const purser = await openTestServer(t);
  const { id, key } = await mint(purser);
  assert.equal((await read(purser, key)).status, 200);
  const revoked = await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey });
  assert.equal(revoked.status, 200);
  assert.deepEqual(Object.keys(revoked.body).sort(), ['id', 'revoked', 'revoked_at']);
  for (const answer of await Promise.all(Array.from({ length: 5 }, () => read(purser, key))))
    assertRefused(answer, 401, 'unauthenticated');
  await purser.reopen();
  assertRefused(await read(purser, key), 401, 'unauthenticated');
});

test('revoking twice is the same answer, and the first moment counts', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await mint(purser);
  const first = await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey });
  purser.clock.advance(100);
  const second = await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey });
  assert.deepEqual(second.body, first.body);
  assert.equal((await list(purser)).find((it) => it.id === id)?.revoked_at, first.body.revoked_at);
});

test('a key revoked by the operator at the terminal is dead at once too', async (t) => {
  const purser = await openTestServer(t);
  const { id, key } = await mint(purser);
  await purser.run('key.revoke', { id });
  assertRefused(await read(purser, key), 401, 'unauthenticated');
  const operator = await purser.run('operator-key.mint', {});
  await purser.run('operator-key.revoke', { id: operator.id });
  assertRefused(await read(purser, operator.key), 401, 'unauthenticated');
});

test('keys outlive the operator key that minted them, and the operator’s list says who did', async (t) => {
  const purser = await openTestServer(t);
  const operator = await purser.run('operator-key.mint', {});
  const minted = await purser.ask('POST', '/v1/keys', { token: operator.key, body: { name: 'child' } });
  await purser.run('operator-key.revoke', { id: operator.id });
  assert.equal((await read(purser, minted.body.key)).status, 200);
  const { keys } = await purser.run('key.list', { account: purser.accountId });
  assert.deepEqual(
    keys.map((it) => [it.name, it.minted_by]),
    [
      ['child', operator.id],
      ['test', 'cli'],
    ],
  );
});

test('a wallet outlives the key that opened it, and its token with it', async (t) => {
  const purser = await openTestServer(t);
  const { id, key } = await mint(purser);
  const wallet = await purser.ask('POST', '/v1/wallets', {
    token: key,
    key: 'a',
    body: { name: 'a', budget_cents: 100 },
  });
  await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey });
  assert.equal((await purser.budget(wallet.body.agent_token)).status, 'active');
});

test('a new account key may replay what a revoked one began', async (t) => {
  const purser = await openTestServer(t);
  const { id, key } = await mint(purser);
  const body = { name: 'a', budget_cents: 100 };
  const first = await purser.ask('POST', '/v1/wallets', { token: key, key: 'once', body });
  await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey });
  const again = await purser.ask('POST', '/v1/wallets', { token: (await mint(purser)).key, key: 'once', body });
  assert.equal(again.status, 201);
  assert.equal(again.headers['idempotent-replayed'], 'true');
  assert.deepEqual(again.body, first.body);
});

test('when a key was last used is written by the reaper, and only for those that were', async (t) => {
  const purser = await openTestServer(t);
  const [used, idle] = [await mint(purser, 'used'), await mint(purser, 'idle')];
  purser.clock.advance(100);
  await read(purser, used.key);
  await purser.app.reaper.runOnce();
  const keys = await list(purser);
  assert.equal(keys.find((it) => it.id === used.id)?.last_used_at, used.created_at + 100);
  assert.equal(keys.find((it) => it.id === idle.id)?.last_used_at, null);

  purser.clock.advance(50);
  await read(purser, used.key);
  await read(purser, `${used.key}x`);
  await purser.app.reaper.runOnce();
  assert.equal((await list(purser)).find((it) => it.id === used.id)?.last_used_at, used.created_at + 150);
  const operators = (await purser.run('operator-key.list', {})).keys;
  assert.equal(operators[0]?.last_used_at, used.created_at, 'an operator key that minted was used');
});

test('a key that is revoked while its request comes slowly makes nothing', async (t) => {
  const purser = await openTestServer(t);
  const body = JSON.stringify({ name: 'left behind' });
  const headers = { authorization: `Bearer ${purser.operatorKey}`, 'content-type': 'application/json' };
  const slow = http.request(`${purser.url}/v1/keys`, {
    method: 'POST',
    headers: { ...headers, 'content-length': body.length, expect: '100-continue' },
  });
  await once(slow, 'continue');
  slow.write(body.slice(0, 5));
  await read(purser, purser.accountKey); // Behind it in the queue: by now its token has been looked at.
  const [operator] = (await purser.run('operator-key.list', {})).keys;
  await purser.run('operator-key.revoke', { id: operator?.id as string });
  slow.end(body.slice(5));
  const [response] = (await once(slow, 'response')) as [http.IncomingMessage];
  assert.equal(response.statusCode, 401);
  response.resume();
  assert.equal((await list(purser)).length, 1, 'the server’s own');
});

test('a revoked key that is tried is not used', async (t) => {
  const purser = await openTestServer(t);
  const { id, key } = await mint(purser);
  await purser.ask('DELETE', `/v1/keys/${id}`, { token: purser.operatorKey });
  await read(purser, key);
  await purser.app.reaper.runOnce();
  assert.equal((await list(purser)).find((it) => it.id === id)?.last_used_at, null);
});

test('the list has the latest 100 keys, newest first, and older ones still work', async (t) => {
  const purser = await openTestServer(t);
  let at = Date.now();
  t.mock.method(Date, 'now', () => ++at); // ids carry the millisecond: each of these has its own
  const made = [];
  for (let i = 0; i < 101; i++)
    made.push(await purser.run('key.create', { account: purser.accountId, name: `key ${i}` }));
  const keys = await list(purser);
  assert.deepEqual(
    keys.map((it) => it.id),
    made
      .map((it) => it.id)
      .slice(1)
      .reverse(),
  );
  assert.equal((await read(purser, made[0]?.key as string)).status, 200);
});
