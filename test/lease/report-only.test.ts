import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { tagPrefix } from '../../src/compute/backend.ts';
import { readConfig } from '../../src/config/config.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { LONG, openMemoryServer, PRICE } from './leases.ts';

const MACHINE = '0123456789abcdef0123456789abcdef';
const OTHER = 'fedcba9876543210fedcba9876543210';
const AWAITED = /resource reconcile --apply/;

/** A purser that has moved to another machine with one lease that runs, one whose time is over, and one orphan. */
async function openMoved(t: TestContext) {
  const machine: { id: string | undefined } = { id: MACHINE };
  const purser = await openMemoryServer(t, { machine });
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { id: overdue } = (await purser.rent(token)).body;
  purser.clock.advance(300);
  const { id: running } = (await purser.rent(token)).body;
  const orphan = { tag: `${tagPrefix(purser.app.installationId)}res-orphan`, state: 'running' } as const;
  purser.memory.machines.set('orphan', { ref: 'orphan', ...orphan, deadline: Number.MAX_SAFE_INTEGER, createdAt: 0 });
  // The machines are watched from outside: what ends by its own deadline is no order of Purser's.
  for (const it of purser.memory.machines.values()) it.deadline += 86_400;
  machine.id = OTHER;
  await purser.reopen();
  purser.clock.advance(300);
  const readyz = async () => (await purser.ask('GET', '/readyz')).body;
  return { purser, machine, walletId, token, overdue, running, readyz };
}

test('on another machine the sweep, the deadlines, stop and close destroy nothing before the operator has looked', async (t) => {
  const { purser, walletId, token, overdue, running, readyz } = await openMoved(t);
  const ready = await readyz();
  assert.deepEqual([ready.ready, AWAITED.test(ready.report_only)], [true, true]);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 0);
  const listed = async () => (await purser.run('resource.list', {})).resources.map((it) => [it.id, it.status]);
  assert.deepEqual(await listed(), [
    [running, 'running'],
    [overdue, 'stopping'],
  ]);
  const [, held] = (await purser.run('resource.list', {})).resources;
  assert.match(held?.last_error ?? '', AWAITED);
  assert.ok(purser.log.some((it) => it.includes('lease.held_back') && it.includes(overdue)));
  assert.ok(purser.log.some((it) => it.includes('lease.orphan_seen') && it.includes('"ref":"orphan"')));
  assert.match(await purser.app.events.registry.metrics(), /purser_report_only 1/);

  const extended = await purser.extend(token, running, 60);
  assert.deepEqual([extended.status, extended.body.error.code], [503, 'read_only']);
  assert.match(extended.body.error.message, AWAITED);
  const stopped = await purser.stop(token, running);
  assert.deepEqual([stopped.status, stopped.body.status], [200, 'stopping']);
  const tries = t.mock.method(purser.app.ledger, 'write');
  const closed = await purser.closeWallet(walletId);
  assert.deepEqual([closed.status, closed.body.error.code], [409, 'cleanup_pending']);
  const count = tries.mock.calls.filter(({ arguments: [write] }) => write.name === 'wallet.close').length;
  assert.ok(count >= 1 && count <= 2, `what waits for the operator is not waited for: ${count} tries`);
  tries.mock.restore();
  const record = (await purser.ask('GET', `/v1/wallets/${walletId}`, { token: purser.accountKey })).body;
  assert.deepEqual([record.status, record.cleanup.pending], ['closing', true]);
  assert.match(record.cleanup.last_error, AWAITED);
  purser.clock.advance(3600);
  await purser.app.reaper.runOnce();
  assert.deepEqual((await purser.machines()).sort(), ['m1', 'm2', 'orphan']);
  assert.ok(!purser.memory.calls.includes('destroy'));
  assert.deepEqual(purser.problems(), []);
});

test('reconcile shows what would be done, and --apply does it', async (t) => {
  const { purser, walletId, overdue, running, readyz } = await openMoved(t);
  const shown = await purser.run('resource.reconcile', {});
  assert.equal(
    shown.report_only?.reason,
    'this is another machine than at the last start, and the books do not know the engine of 2 live leases',
  );
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
  purser.memory.machines.delete('m2');
  const [, lost] = (await purser.run('resource.reconcile', {})).leases;
  assert.deepEqual([lost?.machine, lost?.would_end], ['absent', 'provider_ended']);
  assert.ok(!purser.memory.calls.includes('destroy'));

  const applied = await purser.run('resource.reconcile', { apply: true });
  assert.deepEqual(
    applied.leases.map((it) => it.status),
    ['stopped', 'stopped'],
  );
  assert.deepEqual(
    applied.orphans.map((it) => [it.ref, it.destroyed]),
    [['orphan', true]],
  );
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(await readyz(), { ready: true });
  await purser.reopen();
  assert.deepEqual(await readyz(), { ready: true }, 'this machine is known now');
  assert.equal((await purser.run('resource.reconcile', {})).report_only, null);
  assert.equal((await purser.closeWallet(walletId)).body.used_usd, '0.12');
  assert.deepEqual(purser.problems(), []);
});

test('leases made in that state are ours beyond doubt: they end as ever', async (t) => {
  const { purser, token } = await openMoved(t);
  const wallet = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const other = (await purser.lease(wallet.token)).body;
  assert.equal((await purser.stop(token, id)).body.status, 'stopped');
  purser.clock.advance(600);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(wallet.token, other.id)).end_reason, 'lease_expired');
  assert.equal((await purser.closeWallet(wallet.id)).status, 200);
  assert.deepEqual((await purser.machines()).sort(), ['m1', 'm2', 'orphan']);
});

test('a create in doubt is not looked for, not captured and not released while it is in question', async (t) => {
  const machine: { id: string | undefined } = { id: MACHINE };
  const purser = await openMemoryServer(t, { machine });
  const { token } = await purser.openWallet(LONG);
  purser.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  await purser.lease(token, 'k');
  machine.id = OTHER;
  await purser.reopen();
  purser.memory.after = {};
  const twin = [...purser.memory.machines.values()][0];
  assert.ok(twin);
  purser.memory.machines.set('twin', { ...twin, ref: 'twin' });
  for (let i = 0; i < 3; i++) {
    assert.equal((await purser.lease(token, 'k')).body.error.code, 'operation_uncertain');
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
  }
  assert.deepEqual((await purser.machines()).sort(), ['m1', 'twin']);
  assert.equal((await purser.budget(token)).held_usd, PRICE);
  const { leases } = await purser.run('resource.reconcile', {});
  assert.deepEqual([leases[0]?.machine, leases[0]?.would_end], ['running', 'create_failed']);
  await purser.run('resource.reconcile', { apply: true });
  for (let i = 0; i < 2; i++) {
    purser.clock.advance(10);
    await purser.app.reaper.runOnce();
  }
  assert.deepEqual(await purser.machines(), [], 'its time to become ready is over');
  assert.equal((await purser.budget(token)).held_usd, '0.00');
});

test('an accepted loss puts what lives into question; a machine without an id, or one that is the same, does not', async (t) => {
  const machine: { id: string | undefined } = { id: undefined };
  const purser = await openMemoryServer(t, { machine });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const ready = async () => (await purser.ask('GET', '/readyz')).body;
  machine.id = MACHINE;
  await purser.reopen();
  assert.deepEqual(await ready(), { ready: true }, 'an id that is known for the first time is no change');
  machine.id = undefined;
  await purser.reopen();
  assert.deepEqual(await ready(), { ready: true }, 'nor is a file that is missing');

  await purser.reopen(() => rmSync(join(purser.directory, 'ledger.head')), { acceptLoss: true });
  assert.match((await ready()).report_only, /the loss of entries was accepted; 1 live lease/);
  assert.equal((await purser.stop(token, id)).body.status, 'stopping');
  await purser.reopen();
  assert.match((await ready()).report_only, AWAITED, 'a start does not end it');
  assert.deepEqual(await purser.machines(), ['m1']);

  const config = readConfig({ data: purser.directory }, {});
  const check = async () => (await examine(config)).find((it) => it.name === 'leases');
  const bad = await check();
  assert.deepEqual([bad?.ok, AWAITED.test(bad?.detail ?? '')], [false, true]);
  await purser.run('resource.reconcile', { apply: true });
  assert.deepEqual(await purser.machines(), []);
  assert.equal((await check())?.ok, true);
});

test('an extension in doubt on a lease in question is decided by its deadline, once somebody may look', async (t) => {
  const machine: { id: string | undefined } = { id: MACHINE };
  const purser = await openMemoryServer(t, { machine });
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.rent(token)).body;
  purser.memory.after.extend = () => {
    throw new Error('the line died');
  };
  assert.equal((await purser.extend(token, id, 300)).body.error.code, 'operation_uncertain');
  delete purser.memory.after.extend;
  machine.id = OTHER;
  await purser.reopen();
  purser.clock.advance(610);
  await purser.app.reaper.runOnce();
  assert.notEqual((await purser.budget(token)).held_usd, '0.00', 'nobody has looked');
  const listed = (await purser.run('resource.list', {})).resources.find((it) => it.id === id);
  assert.match(listed?.last_error ?? '', /^lease_expired: /);
  await purser.run('resource.reconcile', { apply: true });
  await purser.app.reaper.runOnce();
  const { status, expires_at: at, charged_usd: charged } = await purser.status(token, id);
  assert.deepEqual([status, at, charged], ['running', end + 300, '0.09']);
  assert.deepEqual(purser.problems(), []);
});

test('a lease in question can be let go by the operator, and its wallet closes', async (t) => {
  const { purser, walletId, overdue, running } = await openMoved(t);
  for (const id of [overdue, running]) await purser.run('resource.abandon', { id, reason: 'it is production’s' });
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual((await purser.machines()).sort(), ['m1', 'm2', 'orphan']);
  assert.deepEqual(purser.problems(), []);
});

test('a lease that could not be let go is as it was: nobody says that it was abandoned', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const { write } = purser.app.ledger;
  const mocked = t.mock.method(purser.app.ledger, 'write', async (it: { name: string }, ...data: never[]) => {
    if (it.name === 'lease.end') throw new Refusal('read_only', 'the disk is full');
    return write(it as never, ...(data as [never]));
  });
  await assert.rejects(purser.run('resource.abandon', { id, reason: 'its host is gone' }), /the disk is full/);
  mocked.mock.restore();
  const found = (await purser.run('resource.list', { all: true })).resources.find((it) => it.id === id);
  assert.deepEqual([found?.status, found?.abandoned_reason ?? null], ['running', null]);
  assert.deepEqual(purser.problems(), []);
});

test('a backend that cannot be asked is named, and the rest is shown', async (t) => {
  const { purser, overdue } = await openMoved(t);
  purser.memory.before.listOwned = purser.memory.before.inspect = () => {
    throw new Error('the engine is down');
  };
  const shown = await purser.run('resource.reconcile', {});
  assert.deepEqual(
    shown.faults.map((it) => [it.provider, it.error]),
    [
      ['provider_one', 'the engine is down'],
      ['provider_three', 'the engine is down'],
    ],
  );
  assert.deepEqual([shown.leases[0]?.id, shown.leases[0]?.machine], [overdue, 'cannot be asked: the engine is down']);
});
