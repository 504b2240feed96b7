import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../compute/conformance.ts';
import { openLeaseHouse } from './docker-leases.ts';
import { openMemoryHouse } from './leases.ts';

const MANY = { budget_cents: 5000, expires_in_seconds: 7200 };

test('a hundred and fifty leases that expire at once are ended in one pass, and none of them twice', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet(MANY);
  const made = await Promise.all(Array.from({ length: 150 }, () => house.rent(token)));
  assert.deepEqual([...new Set(made.map((it) => it.body.status))], ['running']);
  assert.equal(house.memory.machines.size, 150);
  house.clock.advance(600);
  // Some cannot be ended: they hide none of the others.
  house.memory.before.destroy = ((ref: string) => {
    if (['m1', 'm2', 'm3'].includes(ref)) throw new Error('the engine will not');
  }) as never;
  await house.app.reaper.runOnce();
  assert.deepEqual((await house.machines()).sort(), ['m1', 'm2', 'm3']);
  assert.equal(house.memory.calls.filter((it) => it === 'destroy').length, 150);
  delete house.memory.before.destroy;
  house.clock.advance(10);
  await house.app.reaper.runOnce();
  assert.deepEqual(await house.machines(), []);
  const closed = await house.closeWallet(walletId);
  assert.deepEqual([closed.status, closed.body.used_usd, closed.body.returned_cents], [200, '9.00', 4100]);
  assert.deepEqual(house.problems(), []);
});

test('a page of a hundred resources that is the last one says so, and a hundred and one are two pages', async (t) => {
  const house = await openMemoryHouse(t);
  const { id, token } = await house.openWallet(MANY);
  const ids: string[] = [];
  const pages = async (query: string): Promise<string[][]> => {
    const all: string[][] = [];
    for (let cursor = ''; ; ) {
      const { body } = await house.ask('GET', `/v1/resources?${query}before=${cursor}`, { token: house.accountKey });
      all.push(body.resources.map((it: { id: string }) => it.id));
      cursor = body.next_cursor;
      if (!cursor) return all;
    }
  };
  for (let i = 0; i < 100; i++) ids.unshift((await house.rent(token)).body.id);
  assert.deepEqual(await pages(''), [ids]);
  assert.deepEqual(await pages(`wallet_id=${id}&`), [ids]);
  ids.unshift((await house.rent(token)).body.id);
  assert.deepEqual(await pages(''), [ids.slice(0, 100), ids.slice(100)]);
});

test('a hundred leases that hang hide none of those that are due after them', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(MANY);
  for (let i = 0; i < 101; i++) await house.rent(token);
  house.clock.advance(600);
  const stuck = Promise.withResolvers<void>();
  house.memory.before.destroy = ((ref: string) => (ref === 'm101' ? undefined : stuck.promise)) as never;
  const pass = house.app.reaper.runOnce();
  await until('the last has ended', async () => !house.memory.machines.has('m101'), 25_000);
  stuck.resolve();
  await pass;
  await until('all have ended', async () => house.memory.machines.size === 0);
});

test('twenty containers that expire at once are gone, and the wallet of each closes to the cent', async (t) => {
  const house = await openLeaseHouse(t);
  if (!house) return;
  const wallets = await Promise.all(Array.from({ length: 20 }, () => house.openWallet({ expires_in_seconds: 1800 })));
  const made = await Promise.all(wallets.map(({ token }) => house.lease(token)));
  assert.deepEqual([...new Set(made.map((it) => it.body.status))], ['running'], made[0]?.text);
  assert.equal((await house.machines()).length, 20);
  house.clock.advance(600);
  await house.app.reaper.runOnce();
  await until('all are gone', async () => {
    await house.app.reaper.runOnce();
    return (await house.machines()).length === 0;
  });
  const closed = await Promise.all(wallets.map(({ id }) => house.closeWallet(id)));
  assert.deepEqual([...new Set(closed.map((it) => `${it.status} ${it.body.returned_cents}`))], ['200 999']);
  assert.deepEqual(house.problems(), []);
});
