import assert from 'node:assert/strict';
import test from 'node:test';
import { LONG, openMemoryServer } from './leases.ts';
import { events, statusOf } from './outage-shared.ts';

const failing = () => Promise.reject(new Error('the engine is down'));

test('whoever waits for a close adds nothing to its back-off and no line to the log', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  const { id: walletId, token } = await purser.openWallet(LONG);
  await purser.lease(token);
  purser.memory.before.destroy = failing;
  for (let i = 0; i < 3; i++) assert.equal((await purser.closeWallet(walletId)).body.error.code, 'cleanup_pending');
  const tried = purser.memory.calls.filter((it) => it === 'destroy').length;
  assert.ok(tried > 6, `${tried} attempts in three waits of a second`);
  const [lease] = (await purser.run('resource.list', {})).resources;
  assert.deepEqual([lease?.attempts, (lease?.due_at ?? 0) - purser.app.clock.now()], [1, 2]);
  assert.equal(events(purser, 'lease.trouble').length, 1);
  delete purser.memory.before.destroy;
  assert.equal((await purser.closeWallet(walletId)).status, 200);
});

test('after an outage of half an hour every wallet is closed within 20 s of the return, and the log is short', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  const wallets = await Promise.all(Array.from({ length: 5 }, () => purser.openWallet(LONG)));
  for (const { token } of wallets) for (let i = 0; i < 2; i++) await purser.lease(token);
  Object.assign(purser.memory.before, { destroy: failing, inspect: failing });
  for (const { id } of wallets) assert.equal((await purser.closeWallet(id)).body.error.code, 'cleanup_pending');
  purser.memory.calls.length = 0;
  for (let seconds = 0; seconds < 1800; seconds += 5) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(5);
  }
  const tried = purser.memory.calls.filter((it) => it === 'destroy').length;
  assert.ok(tried < 320, `${tried} attempts: one lease every ten seconds, the others every five minutes`);
  const told = events(purser, 'lease.trouble').length;
  assert.ok(told >= 4 && told <= 8, `${told} lines: the first leases, and one every ten minutes`);
  assert.equal(events(purser, 'lease.trouble_over').length, 0);

  purser.memory.before = {};
  for (let seconds = 0; seconds < 20; seconds += 2) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(2);
  }
  assert.deepEqual(
    await Promise.all(wallets.map(({ id }) => statusOf(purser, id))),
    wallets.map(() => 'closed'),
  );
  const [over, ...others] = events(purser, 'lease.trouble_over');
  assert.deepEqual([over?.place, over?.seconds >= 1800, others.length], ['provider_one', true, 0]);
  assert.deepEqual(purser.problems(), []);
});

test('a lease that alone cannot be ended does not wake itself by the others, and is logged rarely', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  for (let i = 0; i < 20; i++) await purser.lease(token);
  purser.memory.before.destroy = (ref: string) => (ref === 'm1' ? failing() : undefined);
  await purser.stop(token, id);
  purser.memory.calls.length = 0;
  for (let seconds = 0; seconds < 300; seconds++) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(1);
  }
  const tried = purser.memory.calls.filter((it) => it === 'destroy').length;
  assert.ok(tried >= 20 && tried <= 32, `${tried} attempts in five minutes`);
  assert.equal(events(purser, 'lease.trouble').length, 1);
  delete purser.memory.before.destroy;
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopped');
  assert.equal(events(purser, 'lease.trouble_over').length, 1);
});

test('an outage of a whole backend is over once its lease is answered for, though its part became known only then', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  await purser.lease(token);
  const parts = new Map<string, string>();
  purser.backend.partOf = (ref) => parts.get(ref);
  purser.memory.before.inspect = failing;
  const pass = async () => {
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
    return purser.app.outages.list().map(({ unit }) => unit);
  };
  assert.deepEqual(await pass(), ['provider_one']);
  purser.memory.before.inspect = (ref: string) => void parts.set(ref, 'north');
  assert.deepEqual(await pass(), []);
  assert.deepEqual(
    events(purser, 'lease.trouble_over').map(({ place }) => place),
    ['provider_one'],
  );
});

test('a process that starts anew wakes what an earlier one had put off, as soon as the backend answers', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const ids = [(await purser.lease(token)).body.id, (await purser.lease(token)).body.id];
  purser.memory.before.destroy = failing;
  for (const id of ids) await purser.stop(token, id);
  for (let i = 0; i < 16; i++) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(10);
  }
  const due = (await purser.run('resource.list', {})).resources.map((it) => it.due_at - purser.app.clock.now());
  assert.ok(Math.max(...due) > 30, `one is put off by ${due} s`);
  delete purser.memory.before.destroy;
  await purser.reopen();
  purser.clock.advance(10);
  for (let i = 0; i < 2; i++) await purser.app.reaper.runOnce();
  assert.deepEqual(await Promise.all(ids.map(async (id) => (await purser.status(token, id)).status)), [
    'stopped',
    'stopped',
  ]);
});
