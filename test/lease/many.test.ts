import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openMemoryServer } from './leases.ts';

const MANY = { budget_cents: 5000, expires_in_seconds: 7200 };

test('a hundred and fifty leases that expire at once are ended in one pass, and none of them twice', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(MANY);
  const made = await Promise.all(Array.from({ length: 150 }, () => purser.rent(token)));
  assert.deepEqual([...new Set(made.map((it) => it.body.status))], ['running']);
  assert.equal(purser.memory.machines.size, 150);
  purser.clock.advance(600);
  // Some cannot be ended: they hide none of the others.
  purser.memory.before.destroy = ((ref: string) => {
    if (['m1', 'm2', 'm3'].includes(ref)) throw new Error('the engine will not');
  }) as never;
  await purser.app.reaper.runOnce();
  assert.deepEqual((await purser.machines()).sort(), ['m1', 'm2', 'm3']);
  assert.equal(purser.memory.calls.filter((it) => it === 'destroy').length, 150);
  delete purser.memory.before.destroy;
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await purser.machines(), []);
  const closed = await purser.closeWallet(walletId);
  assert.deepEqual([closed.status, closed.body.used_usd, closed.body.returned_cents], [200, '9.00', 4100]);
  assert.deepEqual(purser.problems(), []);
});

test('a page of a hundred resources that is the last one says so, and a hundred and one are two pages', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet(MANY);
  const ids: string[] = [];
  const pages = async (query: string): Promise<string[][]> => {
    const all: string[][] = [];
    for (let cursor = ''; ; ) {
      const { body } = await purser.ask('GET', `/v1/resources?${query}before=${cursor}`, { token: purser.accountKey });
      all.push(body.resources.map((it: { id: string }) => it.id));
      cursor = body.next_cursor;
      if (!cursor) return all;
    }
  };
  for (let i = 0; i < 100; i++) ids.unshift((await purser.rent(token)).body.id);
  assert.deepEqual(await pages(''), [ids]);
  assert.deepEqual(await pages(`wallet_id=${id}&`), [ids]);
  ids.unshift((await purser.rent(token)).body.id);
  assert.deepEqual(await pages(''), [ids.slice(0, 100), ids.slice(100)]);
});

test('a hundred leases that hang hide none of those that are due after them', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(MANY);
  for (let i = 0; i < 101; i++) await purser.rent(token);
  purser.clock.advance(600);
  const stuck = Promise.withResolvers<void>();
  purser.memory.before.destroy = ((ref: string) => (ref === 'm101' ? undefined : stuck.promise)) as never;
  const pass = purser.app.reaper.runOnce();
  await until('the last has ended', async () => !purser.memory.machines.has('m101'));
  stuck.resolve();
  await pass;
  await until('all have ended', async () => purser.memory.machines.size === 0);
});
