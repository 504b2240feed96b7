import assert from 'node:assert/strict';
import test from 'node:test';
import { tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { until } from '../helper/waiting.ts';
import { type LeaseServer, LONG, openMemoryServer, PRICE } from './leases.ts';

const lost = () => {
  throw new Error('the connection was reset');
};

/** What the wallet has used and still holds. */
async function money(purser: LeaseServer, token: string): Promise<[used: string, held: string]> {
  const { used_usd: used, held_usd: held } = await purser.budget(token);
  return [used, held];
}

test('a machine that is known by its reference has ended when that is gone, whatever another host says', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.memory.before.find = () => {
    throw new Error('another host of the pool is down');
  };
  assert.equal((await purser.stop(token, id)).body.status, 'stopped');
});

test('where a create was once in doubt, the tag is asked too before its lease has ended', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.after.create = lost;
  assert.equal((await purser.lease(token, 'k')).status, 503);
  const { id } = (await purser.lease(token, 'k')).body;
  purser.memory.before.find = () => {
    throw new Error('the host is down');
  };
  assert.equal((await purser.stop(token, id)).body.status, 'stopping');
  delete purser.memory.before.find;
  // A second one has turned up meanwhile: the lease has not ended before that is gone.
  const tag = tagOf(purser.app.installationId, id);
  const twin = { tag, state: 'running', deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 } as const;
  purser.memory.machines.set('twin', { ref: 'twin', ...twin });
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopped');
  assert.deepEqual(await purser.machines(), []);
});

test('several found: the one that is furthest is kept, even while another cannot be destroyed', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.after.create = lost;
  purser.memory.ready = false;
  await purser.lease(token, 'k');
  const [first] = purser.memory.machines.values();
  assert.ok(first);
  purser.memory.machines.set('runs', { ...first, ref: 'runs', state: 'running' });
  purser.memory.before.destroy = lost;
  await purser.lease(token, 'k');
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  const { body } = await purser.lease(token, 'k');
  assert.deepEqual([body.status, body.provider_id, body.charged_usd], ['running', 'runs', PRICE]);
  delete purser.memory.before.destroy;
  purser.clock.advance(301); // The sweep destroys what is not the row's own.
  await purser.app.reaper.runOnce();
  assert.deepEqual(await purser.machines(), ['runs']);
  assert.deepEqual(purser.problems(), []);
});

test('after a crash the first pass adopts what the create had made, without anybody asking again', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const never = Promise.withResolvers<never>();
  const made = Promise.withResolvers<void>();
  purser.memory.after.create = () => {
    made.resolve();
    return never.promise;
  };
  void purser.lease(token, 'k').catch(() => {});
  await made.promise;
  const [first] = purser.memory.machines.values();
  assert.ok(first);
  purser.memory.machines.set('twin', { ...first, ref: 'twin' });
  await purser.crash(() => never.reject(new Error('it is dead')));
  purser.memory.after.create = () => assert.fail('there is no second create');
  await purser.app.reaper.runOnce();
  const [lease] = (await purser.ask('GET', '/v1/compute/list', { token })).body.resources;
  assert.deepEqual([lease.status, lease.provider_id, lease.charged_usd], ['running', 'm1', PRICE]);
  assert.deepEqual(await purser.machines(), ['m1'], 'one is kept, the other destroyed');
  assert.deepEqual(await money(purser, token), [PRICE, '0.00']);
  assert.deepEqual(purser.problems(), []);
});

test('after a crash before the create nothing is found, twice, and the hold is released', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const never = Promise.withResolvers<never>();
  const called = Promise.withResolvers<void>();
  purser.memory.before.create = () => {
    called.resolve();
    return never.promise;
  };
  void purser.lease(token, 'k').catch(() => {});
  await called.promise;
  await purser.crash(() => never.reject(new Error('it is dead')));
  await purser.app.reaper.runOnce();
  assert.deepEqual(await money(purser, token), ['0.00', PRICE], 'one empty list is no proof');
  purser.clock.advance(purser.backend.absence.apartSeconds);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await money(purser, token), ['0.00', '0.00']);
  assert.deepEqual(await purser.machines(), []);
});

test('a create that the operator released is not charged when its machine turns up: that is destroyed', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  purser.memory.after.create = lost;
  await purser.lease(token, 'k');
  const [{ id: operation }] = (await purser.budget(token)).holds;
  await purser.run('operation.resolve', { id: operation, decision: 'release', reason: 'it never came' });
  await purser.app.reaper.runOnce();
  const [lease] = (await purser.ask('GET', '/v1/compute/list', { token })).body.resources;
  assert.deepEqual([lease.status, lease.charged_usd, lease.billing_state], ['failed', '0.00', 'settled']);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(await money(purser, token), ['0.00', '0.00']);
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('a create that the operator charged is charged once, whether its machine turns up or not', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.after.create = lost;
  await purser.lease(token, 'there');
  purser.memory.after.create = () => {
    purser.memory.machines.delete('m2');
    lost();
  };
  await purser.lease(token, 'not-there');
  for (const { id } of (await purser.budget(token)).holds)
    await purser.run('operation.resolve', { id, decision: 'charge', reason: 'the provider billed it' });
  for (let i = 0; i < 2; i++) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(10);
  }
  const { resources } = (await purser.ask('GET', '/v1/compute/list', { token })).body;
  assert.deepEqual(resources.map((it: { status: string; charged_usd: string }) => [it.status, it.charged_usd]).sort(), [
    ['failed', PRICE],
    ['running', PRICE],
  ]);
  assert.deepEqual(await money(purser, token), ['0.007083334', '0.00']);
  assert.deepEqual(purser.problems(), []);
});

test('an extension that the operator decided moves the end if he charged it, and nothing charges it again', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.memory.after.extend = lost;
  purser.memory.readable = false;
  for (const [decision, expected] of [
    ['release', { end, charged: '0.06' }],
    ['charge', { end: end + 300, charged: '0.09' }],
  ] as const) {
    await purser.extend(token, id, 300, decision);
    const [{ id: operation }] = (await purser.budget(token)).holds;
    await purser.run('operation.resolve', { id: operation, decision, reason: 'asked the provider' });
    await purser.app.reaper.runOnce();
    const now = await purser.status(token, id);
    assert.deepEqual([now.expires_at, now.charged_usd], [expected.end, expected.charged]);
    assert.deepEqual(await money(purser, token), [expected.charged, '0.00']);
  }
  assert.deepEqual(purser.problems(), []);
});

test('an orphan that cannot be destroyed hides no other, and one pass destroys ten at most', async (t) => {
  const purser = await openMemoryServer(t);
  const prefix = tagPrefix(purser.app.installationId);
  const old = { state: 'running', deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 } as const;
  for (let i = 0; i < 25; i++) purser.memory.machines.set(`o${i}`, { ref: `o${i}`, tag: `${prefix}res-${i}`, ...old });
  purser.memory.before.destroy = ((ref: string) => {
    if (ref === 'o0') lost();
  }) as never;
  const passes: number[] = [];
  for (let i = 0; i < 3; i++) {
    purser.clock.advance(60);
    passes.push((await purser.app.reaper.runOnce()).orphans);
  }
  assert.deepEqual(passes, [9, 9, 6]);
  assert.deepEqual(await purser.machines(), ['o0']);
});

test('a machine is paid for once it has proved itself, and not before', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  let fault: string | undefined = 'nothing can be run in it';
  purser.backend.guest.prove = async () => fault;
  const made = purser.lease(token);
  const row = await until('it was tried', async () => {
    const [it] = (await purser.run('resource.list', {})).resources;
    return it?.last_error ? it : undefined;
  });
  assert.deepEqual([row.status, row.last_error], ['provisioning', fault]);
  assert.deepEqual(await money(purser, token), ['0.00', PRICE]);
  fault = undefined;
  assert.equal((await made).body.status, 'running');
  assert.deepEqual(await money(purser, token), [PRICE, '0.00']);
  // What a tenant does to his machine afterwards is no reason to try it again.
  purser.backend.guest.prove = () => assert.fail('it was proved');
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
});
