import assert from 'node:assert/strict';
import test from 'node:test';
import { tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { type LeaseHouse, LONG, openMemoryHouse, PRICE } from './leases.ts';

const lost = () => {
  throw new Error('the connection was reset');
};

/** What the wallet has used and still holds. */
async function money(house: LeaseHouse, token: string): Promise<[used: string, held: string]> {
  const { used_usd: used, held_usd: held } = await house.budget(token);
  return [used, held];
}

test('a machine that is known by its reference has ended when that is gone, whatever another host says', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  house.memory.before.find = () => {
    throw new Error('another host of the pool is down');
  };
  assert.equal((await house.stop(token, id)).body.status, 'stopped');
});

test('where a create was once in doubt, the tag is asked too before its lease has ended', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  house.memory.after.create = lost;
  assert.equal((await house.lease(token, 'k')).status, 503);
  const { id } = (await house.lease(token, 'k')).body;
  house.memory.before.find = () => {
    throw new Error('the host is down');
  };
  assert.equal((await house.stop(token, id)).body.status, 'stopping');
  delete house.memory.before.find;
  // A second one has turned up meanwhile: the lease has not ended before that is gone.
  const tag = tagOf(house.app.installationId, id);
  const twin = { tag, state: 'running', deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 } as const;
  house.memory.machines.set('twin', { ref: 'twin', ...twin });
  house.clock.advance(10);
  await house.app.reaper.runOnce();
  house.clock.advance(10);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'stopped');
  assert.deepEqual(await house.machines(), []);
});

test('several found: the one that is furthest is kept, even while another cannot be destroyed', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  house.memory.after.create = lost;
  house.memory.ready = false;
  await house.lease(token, 'k');
  const [first] = house.memory.machines.values();
  assert.ok(first);
  house.memory.machines.set('runs', { ...first, ref: 'runs', state: 'running' });
  house.memory.before.destroy = lost;
  await house.lease(token, 'k');
  house.clock.advance(10);
  await house.app.reaper.runOnce();
  const { body } = await house.lease(token, 'k');
  assert.deepEqual([body.status, body.provider_id, body.charged_usd], ['running', 'runs', PRICE]);
  delete house.memory.before.destroy;
  house.clock.advance(301); // The sweep destroys what is not the row's own.
  await house.app.reaper.runOnce();
  assert.deepEqual(await house.machines(), ['runs']);
  assert.deepEqual(house.problems(), []);
});

test('after a crash the first pass adopts what the create had made, without anybody asking again', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const never = Promise.withResolvers<never>();
  const made = Promise.withResolvers<void>();
  house.memory.after.create = () => {
    made.resolve();
    return never.promise;
  };
  void house.lease(token, 'k').catch(() => {});
  await made.promise;
  const [first] = house.memory.machines.values();
  assert.ok(first);
  house.memory.machines.set('twin', { ...first, ref: 'twin' });
  await house.crash(() => never.reject(new Error('it is dead')));
  house.memory.after.create = () => assert.fail('there is no second create');
  await house.app.reaper.runOnce();
  const [lease] = (await house.ask('GET', '/v1/compute/list', { token })).body.resources;
  assert.deepEqual([lease.status, lease.provider_id, lease.charged_usd], ['running', 'm1', PRICE]);
  assert.deepEqual(await house.machines(), ['m1'], 'one is kept, the other destroyed');
  assert.deepEqual(await money(house, token), [PRICE, '0.00']);
  assert.deepEqual(house.problems(), []);
});

test('after a crash before the create nothing is found, twice, and the hold is released', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const never = Promise.withResolvers<never>();
  const called = Promise.withResolvers<void>();
  house.memory.before.create = () => {
    called.resolve();
    return never.promise;
  };
  void house.lease(token, 'k').catch(() => {});
  await called.promise;
  await house.crash(() => never.reject(new Error('it is dead')));
  await house.app.reaper.runOnce();
  assert.deepEqual(await money(house, token), ['0.00', PRICE], 'one empty list is no proof');
  house.clock.advance(house.backend.absence.apartSeconds);
  await house.app.reaper.runOnce();
  assert.deepEqual(await money(house, token), ['0.00', '0.00']);
  assert.deepEqual(await house.machines(), []);
});

test('a create that the operator released is not charged when its machine turns up: that is destroyed', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet(LONG);
  house.memory.after.create = lost;
  await house.lease(token, 'k');
  const [{ id: operation }] = (await house.budget(token)).holds;
  await house.run('operation.resolve', { id: operation, decision: 'release', reason: 'it never came' });
  await house.app.reaper.runOnce();
  const [lease] = (await house.ask('GET', '/v1/compute/list', { token })).body.resources;
  assert.deepEqual([lease.status, lease.charged_usd, lease.billing_state], ['failed', '0.00', 'settled']);
  assert.deepEqual(await house.machines(), []);
  assert.deepEqual(await money(house, token), ['0.00', '0.00']);
  assert.equal((await house.closeWallet(walletId)).status, 200);
  assert.deepEqual(house.problems(), []);
});

test('a create that the operator charged is charged once, whether its machine turns up or not', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  house.memory.after.create = lost;
  await house.lease(token, 'there');
  house.memory.after.create = () => {
    house.memory.machines.delete('m2');
    lost();
  };
  await house.lease(token, 'not-there');
  for (const { id } of (await house.budget(token)).holds)
    await house.run('operation.resolve', { id, decision: 'charge', reason: 'the provider billed it' });
  for (let i = 0; i < 2; i++) {
    await house.app.reaper.runOnce();
    house.clock.advance(10);
  }
  const { resources } = (await house.ask('GET', '/v1/compute/list', { token })).body;
  assert.deepEqual(resources.map((it: { status: string; charged_usd: string }) => [it.status, it.charged_usd]).sort(), [
    ['failed', PRICE],
    ['running', PRICE],
  ]);
  assert.deepEqual(await money(house, token), ['0.007083334', '0.00']);
  assert.deepEqual(house.problems(), []);
});

test('an extension that the operator decided moves the end if he charged it, and nothing charges it again', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id, expires_at: end } = (await house.rent(token)).body;
  house.memory.after.extend = lost;
  house.memory.readable = false;
  for (const [decision, expected] of [
    ['release', { end, charged: '0.06' }],
    ['charge', { end: end + 300, charged: '0.09' }],
  ] as const) {
    await house.extend(token, id, 300, decision);
    const [{ id: operation }] = (await house.budget(token)).holds;
    await house.run('operation.resolve', { id: operation, decision, reason: 'asked the provider' });
    await house.app.reaper.runOnce();
    const now = await house.status(token, id);
    assert.deepEqual([now.expires_at, now.charged_usd], [expected.end, expected.charged]);
    assert.deepEqual(await money(house, token), [expected.charged, '0.00']);
  }
  assert.deepEqual(house.problems(), []);
});

test('an orphan that cannot be destroyed hides no other, and one pass destroys ten at most', async (t) => {
  const house = await openMemoryHouse(t);
  const prefix = tagPrefix(house.app.installationId);
  const old = { state: 'running', deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 } as const;
  for (let i = 0; i < 25; i++) house.memory.machines.set(`o${i}`, { ref: `o${i}`, tag: `${prefix}res-${i}`, ...old });
  house.memory.before.destroy = ((ref: string) => {
    if (ref === 'o0') lost();
  }) as never;
  const passes: number[] = [];
  for (let i = 0; i < 3; i++) {
    house.clock.advance(60);
    passes.push((await house.app.reaper.runOnce()).orphans);
  }
  assert.deepEqual(passes, [9, 9, 6]);
  assert.deepEqual(await house.machines(), ['o0']);
});
