import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { leases, now, QUICK, settingsOf } from './vast-shared.ts';

/** A server that says one thing of every account, and the identities that backends on it have. */
async function openAccount(t: TestContext) {
  const account = { status: 200, body: '{"id":7}', calls: 0 };
  const server = http.createServer((_, response) => {
    account.calls++;
    response.writeHead(account.status).end(account.body);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const open = () => {
    const backend = openVastBackend(settingsOf(url), { leases, now, spacing: QUICK });
    t.after(() => backend.close());
    return backend;
  };
  return { account, url, open, identity: async () => open().identity?.() };
}

test('the key of another account is another engine, which proves no absence: none of the first one’s machines are shown to it', async (t) => {
  const { account, url, identity } = await openAccount(t);
  const first = await identity();
  assert.equal(await identity(), first, 'a new key of the same account');
  account.body = '{"id":8}';
  assert.notEqual(await identity(), first);
  Object.assign(account, { status: 403, body: '{}' });
  assert.equal(await identity(), `account at ${url}`, 'a key that may not read its account');
  Object.assign(account, { status: 200, body: '{"credit":1}' });
  assert.equal(await identity(), `account at ${url}`);
});

test('whose key it is, is asked until it is told, and then not again', async (t) => {
  const { account, url, open } = await openAccount(t);
  const backend = open();
  for (const [status, body] of [
    [401, '{}'],
    [500, ''],
    [200, '<html>'],
    [200, 'null'],
  ] as const) {
    Object.assign(account, { status, body });
    await assert.rejects(async () => backend.identity?.(), /whose key/, `${status} ${body}`);
  }
  Object.assign(account, { status: 200, body: '{"id":7}' });
  const { calls: before } = account;
  for (const id of await Promise.all([1, 2, 3].map(async () => backend.identity?.())))
    assert.equal(id, `account 7 at ${url}`);
  assert.equal(account.calls, before + 1, 'those who ask at the same time share the answer');
  const { calls } = account;
  assert.equal(await backend.identity?.(), `account 7 at ${url}`);
  assert.equal(account.calls, calls);
});
