import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { readConfig } from '../../src/config/config.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { LONG, openMemoryHouse, PRICE } from './leases.ts';

const MACHINE = '0123456789abcdef0123456789abcdef';
const OTHER = 'fedcba9876543210fedcba9876543210';
const AWAITED = /resource reconcile --apply/;

/** A house that has moved to another machine with one lease that runs, one whose time is over, and one orphan. */
async function openMoved(t: TestContext) {
  const machine: { id: string | undefined } = { id: MACHINE };
  const house = await openMemoryHouse(t, { machine });
  const { id: walletId, token } = await house.openWallet(LONG);
  const { id: overdue } = (await house.rent(token)).body;
  house.clock.advance(300);
  const { id: running } = (await house.rent(token)).body;
  const orphan = { tag: `${tagPrefix(house.app.installationId)}res-orphan`, state: 'running' } as const;
  house.memory.machines.set('orphan', { ref: 'orphan', ...orphan, deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 });
  // The machines are watched from outside: what ends by its own deadline is no order of Purser's.
  for (const it of house.memory.machines.values()) it.deadline += 86_400;
  machine.id = OTHER;
  await house.reopen();
  house.clock.advance(300);
  const readyz = async () => (await house.ask('GET', '/readyz')).body;
  return { house, machine, walletId, token, overdue, running, readyz };
}

test('on another machine the sweep, the deadlines, stop and close destroy nothing before the operator has looked', async (t) => {
  const { house, walletId, token, overdue, running, readyz } = await openMoved(t);
  const ready = await readyz();
  assert.deepEqual([ready.ready, AWAITED.test(ready.report_only)], [true, true]);
  assert.equal((await house.app.reaper.runOnce()).orphans, 0);
  const listed = async () => (await house.run('resource.list', {})).resources.map((it) => [it.id, it.status]);
  assert.deepEqual(await listed(), [
    [overdue, 'stopping'],
    [running, 'running'],
  ]);
  const [held] = (await house.run('resource.list', {})).resources;
  assert.match(held?.last_error ?? '', AWAITED);
  assert.ok(house.log.some((it) => it.includes('lease.held_back') && it.includes(overdue)));
  assert.ok(house.log.some((it) => it.includes('lease.orphan_seen') && it.includes('"ref":"orphan"')));
  assert.match(await house.app.events.registry.metrics(), /purser_report_only 1/);

  const extended = await house.extend(token, running, 60);
  assert.deepEqual([extended.status, extended.body.error.code], [503, 'read_only']);
  assert.match(extended.body.error.message, AWAITED);
  const stopped = await house.stop(token, running);
  assert.deepEqual([stopped.status, stopped.body.status], [200, 'stopping']);
  const started = performance.now();
  const closed = await house.closeWallet(walletId);
  assert.deepEqual([closed.status, closed.body.error.code], [409, 'cleanup_pending']);
  assert.ok(performance.now() - started < 900, 'what waits for the operator is not waited for');
  const record = (await house.ask('GET', `/v1/wallets/${walletId}`, { token: house.accountKey })).body;
  assert.deepEqual([record.status, record.cleanup.pending], ['closing', true]);
  assert.match(record.cleanup.last_error, AWAITED);
  house.clock.advance(3600);
  await house.app.reaper.runOnce();
  assert.deepEqual((await house.machines()).sort(), ['m1', 'm2', 'orphan']);
  assert.ok(!house.memory.calls.includes('destroy'));
  assert.deepEqual(house.problems(), []);
});

test('reconcile shows what would be done, and --apply does it', async (t) => {
  const { house, walletId, overdue, running, readyz } = await openMoved(t);
  const shown = await house.run('resource.reconcile', {});
  assert.equal(shown.report_only?.reason, 'this is another machine than at the last start');
  assert.deepEqual(
    shown.leases.map((it) => [it.id, it.machine, it.would_end]),
    [
      [overdue, 'running', 'lease_expired'],
      [running, 'running', null],
    ],
  );
  assert.deepEqual(
    shown.orphans.map((it) => [it.ref, it.destroyed]),
    [['orphan', false]],
  );
  house.memory.machines.delete('m2');
  const [, lost] = (await house.run('resource.reconcile', {})).leases;
  assert.deepEqual([lost?.machine, lost?.would_end], ['absent', 'provider_ended']);
  assert.ok(!house.memory.calls.includes('destroy'));

  const applied = await house.run('resource.reconcile', { apply: true });
  assert.deepEqual(
    applied.leases.map((it) => it.status),
    ['stopped', 'stopped'],
  );
  assert.deepEqual(
    applied.orphans.map((it) => [it.ref, it.destroyed]),
    [['orphan', true]],
  );
  assert.deepEqual(await house.machines(), []);
  assert.deepEqual(await readyz(), { ready: true });
  await house.reopen();
  assert.deepEqual(await readyz(), { ready: true }, 'this machine is known now');
  assert.equal((await house.run('resource.reconcile', {})).report_only, null);
  assert.equal((await house.closeWallet(walletId)).body.used_usd, '0.12');
  assert.deepEqual(house.problems(), []);
});

test('leases made in that state are ours beyond doubt: they end as ever', async (t) => {
  const { house, token } = await openMoved(t);
  const wallet = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const other = (await house.lease(wallet.token)).body;
  assert.equal((await house.stop(token, id)).body.status, 'stopped');
  house.clock.advance(600);
  await house.app.reaper.runOnce();
  assert.equal((await house.status(wallet.token, other.id)).end_reason, 'lease_expired');
  assert.equal((await house.closeWallet(wallet.id)).status, 200);
  assert.deepEqual((await house.machines()).sort(), ['m1', 'm2', 'orphan']);
});

test('a create in doubt is not looked for, not captured and not released while it is in question', async (t) => {
  const machine: { id: string | undefined } = { id: MACHINE };
  const house = await openMemoryHouse(t, { machine });
  const { token } = await house.openWallet(LONG);
  house.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  await house.lease(token, 'k');
  machine.id = OTHER;
  await house.reopen();
  house.memory.after = {};
  const twin = [...house.memory.machines.values()][0];
  assert.ok(twin);
  house.memory.machines.set('twin', { ...twin, ref: 'twin' });
  for (let i = 0; i < 3; i++) {
    assert.equal((await house.lease(token, 'k')).body.error.code, 'operation_uncertain');
    house.clock.advance(60);
    await house.app.reaper.runOnce();
  }
  assert.deepEqual((await house.machines()).sort(), ['m1', 'twin']);
  assert.equal((await house.budget(token)).held_usd, PRICE);
  const { leases } = await house.run('resource.reconcile', {});
  assert.deepEqual([leases[0]?.machine, leases[0]?.would_end], ['running', 'create_failed']);
  await house.run('resource.reconcile', { apply: true });
  for (let i = 0; i < 2; i++) {
    house.clock.advance(10);
    await house.app.reaper.runOnce();
  }
  assert.deepEqual(await house.machines(), [], 'its time to become ready is over');
  assert.equal((await house.budget(token)).held_usd, '0.00');
});

test('an accepted loss puts what lives into question; a machine without an id, or one that is the same, does not', async (t) => {
  const machine: { id: string | undefined } = { id: undefined };
  const house = await openMemoryHouse(t, { machine });
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const ready = async () => (await house.ask('GET', '/readyz')).body;
  machine.id = MACHINE;
  await house.reopen();
  assert.deepEqual(await ready(), { ready: true }, 'an id that is known for the first time is no change');
  machine.id = undefined;
  await house.reopen();
  assert.deepEqual(await ready(), { ready: true }, 'nor is a file that is missing');

  await house.reopen(() => rmSync(join(house.directory, 'ledger.head')), { acceptLoss: true });
  assert.match((await ready()).report_only, /the loss of entries was accepted; 1 live lease/);
  assert.equal((await house.stop(token, id)).body.status, 'stopping');
  await house.reopen();
  assert.match((await ready()).report_only, AWAITED, 'a start does not end it');
  assert.deepEqual(await house.machines(), ['m1']);

  const { config, secrets } = readConfig({ data: house.directory }, {});
  const check = async () => (await examine(config, secrets)).find((it) => it.name === 'leases');
  const bad = await check();
  assert.deepEqual([bad?.ok, AWAITED.test(bad?.detail ?? '')], [false, true]);
  await house.run('resource.reconcile', { apply: true });
  assert.deepEqual(await house.machines(), []);
  assert.equal((await check())?.ok, true);
});

test('a lease in question can be let go by the operator, and its wallet closes', async (t) => {
  const { house, walletId, overdue, running } = await openMoved(t);
  for (const id of [overdue, running]) await house.run('resource.abandon', { id, reason: 'it is production’s' });
  assert.equal((await house.closeWallet(walletId)).status, 200);
  assert.deepEqual((await house.machines()).sort(), ['m1', 'm2', 'orphan']);
  assert.deepEqual(house.problems(), []);
});

test('a backend that cannot be asked is named, and the rest is shown', async (t) => {
  const { house, overdue } = await openMoved(t);
  house.memory.before.listOwned = house.memory.before.inspect = () => {
    throw new Error('the engine is down');
  };
  const shown = await house.run('resource.reconcile', {});
  assert.deepEqual(
    shown.faults.map((it) => [it.provider, it.error]),
    [
      ['provider_one', 'the engine is down'],
      ['provider_three', 'the engine is down'],
    ],
  );
  assert.deepEqual([shown.leases[0]?.id, shown.leases[0]?.machine], [overdue, 'cannot be asked: the engine is down']);
});
