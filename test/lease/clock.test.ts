import assert from 'node:assert/strict';
import test from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { until } from '../helper/waiting.ts';
import { inWrongFuture } from '../helper/wrong-future.ts';
import { LONG, openMemoryServer, PRICE } from './leases.ts';

const DAY = 86_400;

test('after a leap forward nothing is ended, swept or leased for five minutes; what callers order is done', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet({ ...LONG, expires_in_seconds: 0 });
  const first = (await purser.rent(token)).body.id;
  const second = (await purser.rent(token)).body.id;
  const tag = `${tagPrefix(purser.app.installationId)}res-orphan`;
  purser.memory.machines.set('o', { ref: 'o', tag, state: 'running', deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 });
  for (const it of purser.memory.machines.values()) it.deadline += 10 * DAY; // Only Purser's own clock is at stake here.
  purser.clock.leap(DAY);
  assert.equal((await purser.lease(token)).body.error.code, 'read_only');
  assert.equal((await purser.extend(token, first, 60)).body.error.code, 'read_only');
  for (let i = 0; i < 4; i++) {
    purser.clock.advance(60);
    assert.equal((await purser.app.reaper.runOnce()).orphans, 0);
  }
  assert.equal((await purser.status(token, first)).status, 'running');
  assert.equal((await purser.stop(token, second)).body.status, 'stopped');
  assert.deepEqual((await purser.machines()).sort(), ['m1', 'o']);

  purser.clock.advance(61); // It has lasted: now it is the time.
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, first)).end_reason, 'lease_expired');
  assert.deepEqual(await purser.machines(), []);
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('a leap forward that is taken back ends no lease, and none too late', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  purser.clock.leap(DAY);
  purser.clock.advance(120);
  await purser.app.reaper.runOnce();
  purser.clock.leap(-DAY);
  purser.clock.advance(479);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'running');
  purser.clock.advance(1);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopped');
});

test('a lease whose own time ends while a leap is doubted takes no commands, and ends afterwards', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  for (const it of purser.memory.machines.values()) it.deadline += DAY; // Only Purser's own clock is at stake here.
  purser.clock.advance(500);
  purser.clock.leap(DAY);
  purser.clock.advance(100);
  await purser.app.reaper.runOnce();
  const exec = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  assert.equal(exec.body.error.code, 'resource_not_active');
  assert.equal((await purser.status(token, id)).status, 'running');
  purser.clock.advance(300); // Five minutes since somebody noticed.
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopped');
});

for (const state of ['running', 'paused'] as const)
  test(`a ${state} lease whose time ends while a leap is doubted is looked at now and then, not without a pause`, async (t) => {
    const purser = await openMemoryServer(t);
    const { token } = await purser.openWallet({ ...LONG, expires_in_seconds: 1000 });
    const { id } = (await purser.rent(token)).body;
    if (state === 'paused') await purser.ask('POST', '/v1/compute/pause', { token, body: { id } });
    const { expires_at: end } = await purser.status(token, id);
    for (const it of purser.memory.machines.values()) it.deadline += DAY; // Only Purser's own clock is at stake here.
    purser.clock.advance(end - 10 - purser.app.clock.now());
    purser.clock.leap(DAY);
    for (let i = 0; i < 3; i++) {
      purser.clock.advance(20);
      await purser.app.reaper.runOnce();
      const { status, due_at: dueAt } = await purser.run('resource.show', { id });
      assert.equal(status, state);
      assert.ok(
        dueAt > purser.app.clock.now(),
        `after ${i + 1} passes it is due ${purser.app.clock.now() - dueAt} s ago`,
      );
    }
    purser.clock.advance(300);
    await purser.app.reaper.runOnce();
    assert.equal((await purser.status(token, id)).status, 'stopped');
    assert.equal(purser.memory.machines.size, 0);
  });

test('a machine that becomes ready while a leap is doubted is paid for when the time is known again', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.1;
  purser.memory.ready = false;
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  await until('it has a machine', () => purser.memory.machines.size === 1);
  for (const it of purser.memory.machines.values()) it.state = 'running';
  purser.clock.leap(600);
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  const waiting = await purser.status(token, id);
  assert.deepEqual([waiting.status, waiting.charged_usd], ['provisioning', '0.00']);
  purser.clock.leap(-600);
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  const running = await purser.status(token, id);
  assert.deepEqual([running.status, running.charged_usd], ['running', PRICE]);
  assert.equal([...purser.memory.machines.values()][0]?.deadline, running.expires_at);
});

test('a clock that is set back lengthens no lease: it ends when its seconds have passed', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  purser.clock.advance(100);
  purser.clock.leap(-DAY);
  assert.equal((await purser.lease(token)).body.error.code, 'read_only');
  purser.clock.advance(499);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'running');
  purser.clock.advance(1);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopped');
  assert.equal(purser.memory.machines.size, 0);
});

test('a lease that became ready in a wrong future keeps its length when the clock is right again', async (t) => {
  const offers = [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: PRICE }];
  const nowhere = { backend: 'container', socket: 'unix:///nowhere/docker.sock', image: 'nowhere:1', offers };
  const compute = { provider_three: { ...nowhere, provision_seconds: 900 } };
  const purser = await openMemoryServer(t, { settings: { compute } });
  const { token } = await purser.openWallet({ ...LONG, expires_in_seconds: DAY });
  purser.app.answerSeconds = 0.1;
  purser.memory.ready = false;
  const { id } = (await purser.rent(token)).body;
  await until('it has a machine', () => purser.memory.machines.size === 1);
  const makeReady = async () => {
    for (const it of purser.memory.machines.values()) it.state = 'running';
    await purser.app.reaper.runOnce();
    assert.equal((await purser.status(token, id)).status, 'running');
  };
  await inWrongFuture(purser, makeReady, 800);
  const left = async () => (await purser.status(token, id)).expires_at - purser.app.clock.now();
  assert.equal(await left(), (await purser.status(token, id)).purchased_seconds);
  const before = await left();
  await inWrongFuture(purser, () => purser.openWallet(), DAY);
  assert.equal(await left(), before, 'a second wrong future takes nothing of it');
  assert.deepEqual(purser.problems(), []);
});

test('a clock that is set back across a restart, and accepted, neither lengthens a lease nor ends it early', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.clock.leap(-DAY);
  await purser.reopen();
  assert.equal((await purser.lease(token)).body.error.code, 'read_only');
  assert.equal((await purser.status(token, id)).expires_at, end);
  await purser.reopen(() => {}, { acceptClock: true });
  purser.clock.advance(598); // The restarts may have cost a part of a second.
  await purser.app.reaper.runOnce();
  const { status, expires_at: at } = await purser.status(token, id);
  assert.equal(status, 'running');
  assert.ok(Math.abs(at - (end - DAY)) <= 1, `${at} is a day earlier than ${end}`);
  purser.clock.advance(3);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'stopped');
});

for (const way of ['by hand', 'of a lease that is kept'] as const)
  test(`an extension ${way} that is in doubt while the clock is set back buys its own seconds and no more`, async (t) => {
    const purser = await openMemoryServer(t);
    purser.memory.cpuSeconds = 0;
    const { token } = await purser.openWallet(LONG);
    const { id, expires_at: end } = (await purser.rent(token)).body;
    const lost = () => {
      throw new Error('the line died');
    };
    purser.memory.after.extend = lost;
    purser.memory.before.inspect = lost;
    if (way === 'by hand') {
      assert.equal((await purser.extend(token, id, 60)).body.error.code, 'operation_uncertain');
    } else {
      const body = { id, extend_seconds: 60, max_seconds: 120 };
      assert.equal((await purser.ask('POST', '/v1/compute/keep', { token, key: 'k', body })).status, 200);
      for (const seconds of [480, 60]) {
        purser.clock.advance(seconds);
        purser.memory.cpuSeconds += seconds;
        await purser.app.reaper.runOnce();
      }
    }
    assert.equal((await purser.budget(token)).held_usd, '0.006');
    purser.clock.leap(-DAY);
    await purser.reopen();
    await purser.reopen(() => {}, { acceptClock: true });
    delete purser.memory.after.extend;
    delete purser.memory.before.inspect;
    for (let i = 0; i < 3; i++) {
      purser.clock.advance(10);
      await purser.app.reaper.runOnce();
    }
    const { expires_at: at, purchased_seconds: purchased, charged_usd: charged, keep } = await purser.status(token, id);
    assert.deepEqual([purchased, charged], [660, '0.066']);
    assert.ok(Math.abs(at - (end - DAY + 60)) <= 1, `${at} is a day earlier than ${end + 60}`);
    if (keep) assert.deepEqual([keep.state, keep.bought_seconds], ['active', 60]);
    assert.deepEqual(purser.problems(), []);
  });
