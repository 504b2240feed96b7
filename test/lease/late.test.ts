import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { hold, LONG, openMemoryServer } from './leases.ts';

/** Backends that take their time: what is paid for, and what counts as proof. */

for (const [how, isOnce] of [
  ['once', true],
  ['each time', false],
] as const)
  test(`a backend that takes long ${how} to set the deadline takes nothing of the paid time`, async (t) => {
    const purser = await openMemoryServer(t);
    const { token } = await purser.openWallet(LONG);
    purser.memory.after.extend = () => {
      if (isOnce) delete purser.memory.after.extend;
      purser.clock.advance(20);
    };
    const { status, ready_at: readyAt, expires_at: end, charged_usd: charged } = (await purser.rent(token)).body;
    assert.deepEqual([status, charged], ['running', '0.06']);
    const now = Math.floor(purser.clock.wall() / 1000);
    assert.ok(Math.abs(end - now - 600) <= 2, `of 600 s ${end - now} are left`);
    assert.equal(end, readyAt + 600);
    assert.equal([...purser.memory.machines.values()][0]?.deadline, end);
    assert.deepEqual(purser.problems(), []);
  });

test('a backend that takes longer each time to set the deadline is asked again later, and nothing is charged before', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.2;
  const { token } = await purser.openWallet(LONG);
  const seconds = [3, 6, 9, 21];
  purser.memory.after.extend = () => purser.clock.advance(seconds.shift() ?? 0);
  const { id, status, charged_usd: charged } = (await purser.rent(token)).body;
  assert.deepEqual([status, charged], ['provisioning', '0.00']);
  await until('it was asked four times', () => !seconds.length);
  purser.clock.advance(5);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'running');
  assert.deepEqual(purser.problems(), []);
});

test('a lease that is stopped while its deadline is set is not charged, and its backend is not asked for it again', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  let stopped: Promise<unknown> | undefined;
  purser.memory.after.extend = async () => {
    purser.clock.advance(10);
    const [{ id }] = (await purser.ask('GET', '/v1/compute/list', { token })).body.resources;
    stopped ??= purser.stop(token, id);
    await until('it is to end', async () => (await purser.status(token, id)).status === 'stopping');
  };
  assert.equal((await purser.rent(token)).body.error.code, 'provider_unavailable');
  await stopped;
  assert.equal((await purser.budget(token)).available_usd, '5.00');
  assert.equal(purser.memory.calls.filter((it) => it === 'extend').length, 1);
  assert.deepEqual([...purser.memory.machines], []);
  assert.deepEqual(purser.problems(), []);
});

for (const when of ['before', 'after'] as const)
  test(`dying ${when} the deadline is set a second time leaves one machine, which is paid for once`, async (t) => {
    const purser = await openMemoryServer(t);
    const { id: walletId, token } = await purser.openWallet(LONG);
    const dead = hold();
    const never = Promise.withResolvers<never>();
    let count = 0;
    purser.memory.before.extend = () => {
      purser.clock.advance(5);
      count++;
      if (when === 'before' && count === 2) return dead.wait().then(() => never.promise);
    };
    purser.memory.after.extend = () => {
      if (when === 'after' && count === 2) return dead.wait().then(() => never.promise);
    };
    void purser.rent(token, 'k').catch(() => {});
    await dead.arrived;
    dead.go();
    purser.memory.before = {};
    purser.memory.after = {};
    await purser.crash(() => never.reject(new Error('it is dead')));
    const { status, expires_at: end, charged_usd: charged } = (await purser.rent(token, 'k')).body;
    assert.deepEqual([status, charged], ['running', '0.06']);
    const { used_usd: used, held_usd: held } = await purser.budget(token);
    assert.deepEqual([used, held], ['0.06', '0.00']);
    assert.deepEqual(
      [...purser.memory.machines.values()].map((it) => it.deadline),
      [end],
    );
    assert.equal((await purser.closeWallet(walletId)).status, 200);
    assert.deepEqual([...purser.memory.machines], []);
    assert.deepEqual(purser.problems(), []);
  });

test('two lists that were asked for at once prove no absence, however late the second is answered', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.before.create = () => {
    throw new Error('the connection was reset');
  };
  const { apartSeconds, lists } = purser.backend.absence;
  assert.equal(lists, 2);
  const repeat = async () => (await purser.lease(token, 'k')).body.error?.code;
  assert.equal(await repeat(), 'operation_uncertain');
  assert.equal(await repeat(), 'operation_uncertain');
  purser.memory.after.find = () => purser.clock.advance(apartSeconds + 1);
  assert.equal(await repeat(), 'operation_uncertain');
  assert.notEqual((await purser.budget(token)).held_usd, '0.00');
  delete purser.memory.after.find;
  purser.clock.advance(apartSeconds);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).held_usd, '0.00', 'asked for later, it is a proof');
  assert.deepEqual(purser.problems(), []);
});

test('an extension that takes effect after its lease was over is not charged', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.memory.before.extend = () => {
    throw new Error('the line died');
  };
  purser.clock.advance(599);
  assert.equal((await purser.extend(token, id, 300)).body.error.code, 'operation_uncertain');
  purser.clock.advance(2);
  purser.memory.before.destroy = () => {
    delete purser.memory.before.destroy;
    for (const it of purser.memory.machines.values()) it.deadline = end + 300; // Only now the request has arrived.
    throw new Error('it is busy');
  };
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopping');
  purser.clock.advance(3);
  await purser.app.reaper.runOnce();
  const { status, end_reason: reason, charged_usd: charged, expires_at: at } = await purser.status(token, id);
  assert.deepEqual([status, reason, charged, at], ['stopped', 'lease_expired', '0.06', end]);
  const { used_usd: used, held_usd: held } = await purser.budget(token);
  assert.deepEqual([used, held], ['0.06', '0.00']);
  assert.deepEqual(purser.problems(), []);
});
