import assert from 'node:assert/strict';
import test from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { LONG, openMemoryHouse, PRICE } from './leases.ts';

const DAY = 86_400;

test('after a leap forward nothing is ended, swept or leased for five minutes; what callers order is done', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet({ ...LONG, expires_in_seconds: 0 });
  const first = (await house.rent(token)).body.id;
  const second = (await house.rent(token)).body.id;
  const tag = `${tagPrefix(house.app.installationId)}res-orphan`;
  house.memory.machines.set('o', { ref: 'o', tag, state: 'running', deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 });
  for (const it of house.memory.machines.values()) it.deadline += 10 * DAY; // Only Purser's own clock is at stake here.
  house.clock.leap(DAY);
  assert.equal((await house.lease(token)).body.error.code, 'read_only');
  assert.equal((await house.extend(token, first, 60)).body.error.code, 'read_only');
  for (let i = 0; i < 4; i++) {
    house.clock.advance(60);
    assert.equal((await house.app.reaper.runOnce()).orphans, 0);
  }
  assert.equal((await house.status(token, first)).status, 'running');
  assert.equal((await house.stop(token, second)).body.status, 'stopped');
  assert.deepEqual((await house.machines()).sort(), ['m1', 'o']);

  house.clock.advance(61); // It has lasted: now it is the time.
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, first)).end_reason, 'lease_expired');
  assert.deepEqual(await house.machines(), []);
  assert.equal((await house.closeWallet(walletId)).status, 200);
  assert.deepEqual(house.problems(), []);
});

test('a leap forward that is taken back ends no lease, and none too late', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.rent(token)).body;
  house.clock.leap(DAY);
  house.clock.advance(120);
  await house.app.reaper.runOnce();
  house.clock.leap(-DAY);
  house.clock.advance(479);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'running');
  house.clock.advance(1);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'stopped');
});

test('a lease whose own time ends while a leap is doubted takes no commands, and ends afterwards', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.rent(token)).body;
  for (const it of house.memory.machines.values()) it.deadline += DAY; // Only Purser's own clock is at stake here.
  house.clock.advance(500);
  house.clock.leap(DAY);
  house.clock.advance(100);
  await house.app.reaper.runOnce();
  const exec = await house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  assert.equal(exec.body.error.code, 'resource_not_active');
  assert.equal((await house.status(token, id)).status, 'running');
  house.clock.advance(300); // Five minutes since somebody noticed.
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'stopped');
});

test('a machine that becomes ready while a leap is doubted is paid for when the time is known again', async (t) => {
  const house = await openMemoryHouse(t);
  house.app.answerSeconds = 0.1;
  house.memory.ready = false;
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  for (const it of house.memory.machines.values()) it.state = 'running';
  house.clock.leap(600);
  house.clock.advance(10);
  await house.app.reaper.runOnce();
  const waiting = await house.status(token, id);
  assert.deepEqual([waiting.status, waiting.charged_usd], ['provisioning', '0.00']);
  house.clock.leap(-600);
  house.clock.advance(10);
  await house.app.reaper.runOnce();
  const running = await house.status(token, id);
  assert.deepEqual([running.status, running.charged_usd], ['running', PRICE]);
  assert.equal([...house.memory.machines.values()][0]?.deadline, running.expires_at);
});

test('a clock that is set back lengthens no lease: it ends when its seconds have passed', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.rent(token)).body;
  house.clock.advance(100);
  house.clock.leap(-DAY);
  assert.equal((await house.lease(token)).body.error.code, 'read_only');
  house.clock.advance(499);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'running');
  house.clock.advance(1);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'stopped');
  assert.equal(house.memory.machines.size, 0);
});

test('a clock that is set back across a restart neither lengthens a lease nor ends it early', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id, expires_at: end } = (await house.rent(token)).body;
  house.clock.leap(-DAY);
  await house.reopen();
  house.clock.advance(599);
  await house.app.reaper.runOnce();
  assert.deepEqual(
    [(await house.status(token, id)).status, (await house.status(token, id)).expires_at],
    ['running', end],
  );
  house.clock.advance(2); // The restart may have cost a part of a second.
  await house.app.reaper.runOnce();
  assert.equal((await house.status(token, id)).status, 'stopped');
});
