import assert from 'node:assert/strict';
import test from 'node:test';
import { tagOf } from '../../src/compute/backend.ts';
import { advanceSnapshot } from '../../src/lease/snapshot-step.ts';
import { findSnapshot, noteSnapshot, type Snapshot } from '../../src/ledger/snapshot.ts';
import { waitFor } from '../helper/waiting.ts';
import { AHEAD, inWrongFuture } from '../helper/wrong-future.ts';
import { hold, type LeaseServer, LONG, openMemoryServer } from './leases.ts';
import { DAY, GIB, MONTH, openLeased, openSnapshot, snapshotting } from './snapshot-shared.ts';

const CENT = 10_000_000;
/** A quarter of a GiB for a day. */
const DAY_NANOS = 25_000_000;

test('a snapshot costs its size for a day, and a lease is made from it', async (t) => {
  const { purser, token, id, snapshot, paid } = await openSnapshot(t);
  const [listed] = await purser.snapshots(token);
  const now = Math.floor(purser.clock.wall() / 1000);
  assert.deepEqual(listed, {
    snapshot_id: snapshot,
    id,
    wallet_id: listed.wallet_id,
    provider: 'provider_one',
    status: 'ready',
    size_gib: 0.25,
    day_usd: '0.025',
    created_at: now,
    paid_until: now + DAY,
    ended_at: null,
    end_reason: null,
  });
  assert.equal(paid(), DAY_NANOS);
  await purser.stop(token, id);
  const { status, body } = await purser.leaseFrom(token, snapshot);
  assert.deepEqual([status, body.status, body.snapshot_id], [200, 'running', snapshot]);
  const [machine] = purser.memory.machines.values();
  assert.equal(machine?.from, tagOf(purser.app.installationId, snapshot));
  const spend = await purser.ask('GET', '/v1/run/spend?by=kind', { token });
  assert.deepEqual(
    spend.body.rows.map((it: any) => [it.key, it.charged_usd]).toSorted(),
    [
      ['compute_create', '0.007083334'],
      ['snapshot', '0.025'],
    ],
    spend.text,
  );
  assert.deepEqual(purser.problems(), []);
});

test('a repeated request takes no second snapshot, and one with another body is refused', async (t) => {
  const { purser, token, id } = await openLeased(t);
  const first = await purser.snapshot(token, id, 'k');
  const again = await purser.snapshot(token, id, 'k');
  assert.deepEqual([again.status, again.body], [200, first.body]);
  assert.equal(purser.memory.snapshots.size, 1);
  const { id: other } = (await purser.lease(token)).body;
  assert.equal((await purser.snapshot(token, other, 'k')).body.error.code, 'idempotency_conflict');

  const second = (await purser.snapshot(token, id)).body.snapshot_id;
  const made = await purser.leaseFrom(token, first.body.snapshot_id, 'c');
  const replayed = await purser.leaseFrom(token, first.body.snapshot_id, 'c');
  assert.equal(replayed.body.id, made.body.id);
  assert.equal((await purser.leaseFrom(token, second, 'c')).body.error.code, 'idempotency_conflict');
});

test('a snapshot that cannot be taken costs nothing and says why', async (t) => {
  const { purser, token, id, wallet } = await openLeased(t);
  const refused = async (status: number, code: string, words: RegExp, of = id) => {
    const answer = await purser.snapshot(token, of);
    assert.deepEqual([answer.status, answer.body.error?.code], [status, code], answer.text);
    assert.match(answer.body.error.message, words);
    assert.doesNotMatch(answer.text, /secret-place/);
    assert.deepEqual([(await purser.budget(token)).held_usd, purser.memory.snapshots.size], ['0.00', 0]);
  };
  purser.memory.snapshotRefused = 'There is no room for it on the disk of the engine';
  await refused(503, 'provider_unavailable', /no room.*Nothing was charged/);
  delete purser.memory.snapshotRefused;
  purser.memory.snapshotBytes = GIB + 1;
  await refused(409, 'lease_limit_exceeded', /more than the 1 GiB of its disk/);
  purser.memory.snapshotBytes = 0;
  purser.memory.before.identity = () => {
    throw new Error('connect ENOENT /srv/secret-place/docker.sock');
  };
  await refused(503, 'provider_unavailable', /cannot be reached/);
  delete purser.memory.before.identity;
  await refused(404, 'not_found', /no such resource/, 'res_00000000000000000000000000');
  const { snapshots } = purser.backend.guest;
  purser.backend.guest.snapshots = 'a pod has no disk of its own';
  await refused(400, 'invalid_request', /a pod has no disk of its own/);
  purser.backend.guest.snapshots = { ...(snapshots as object), price: undefined } as never;
  await refused(400, 'invalid_request', /none are sold here/);
  purser.backend.guest.snapshots = snapshots as NonNullable<typeof snapshots>;
  await purser.stop(token, id);
  await refused(409, 'resource_not_active', /stopped/);
  const { id: last } = (await purser.lease(token)).body;
  await purser.ask('POST', `/v1/wallets/${wallet}/freeze`, { token: purser.accountKey, body: {} });
  await refused(403, 'wallet_frozen', /./, last);
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that lacks the most that it may cost takes no snapshot', async (t) => {
  const purser = snapshotting(await openMemoryServer(t));
  const { token, id: wallet } = await purser.openWallet({ ...MONTH, budget_cents: 100 });
  const { id } = (await purser.lease(token)).body;
  const body10 = { add_cents: -90 };
  await purser.ask('POST', `/v1/wallets/${wallet}/budget`, { token: purser.accountKey, key: 'lower', body: body10 });
  const { status, body } = await purser.snapshot(token, id);
  assert.deepEqual([status, body.error.code], [402, 'insufficient_funds']);
  assert.deepEqual(
    purser.memory.calls.filter((it) => it.startsWith('snapshots.')),
    [],
  );
});

test('a wallet has at most sixteen snapshots', async (t) => {
  const { purser, token, id } = await openLeased(t);
  purser.memory.snapshotBytes = 0;
  for (let i = 0; i < 16; i++) assert.equal((await purser.snapshot(token, id)).status, 200);
  const { body } = await purser.snapshot(token, id);
  assert.deepEqual([body.error.code, /16 snapshots/.test(body.error.message)], ['lease_limit_exceeded', true]);
  const [one] = await purser.snapshots(token);
  await purser.forget(token, one.snapshot_id);
  assert.equal((await purser.snapshot(token, id)).status, 200);
});

test('a paused lease has its snapshot taken as it is', async (t) => {
  const { purser, token, id } = await openLeased(t);
  const asked: boolean[] = [];
  purser.memory.before['snapshots.take'] = ({ isRunning }: { isRunning: boolean }) => asked.push(isRunning);
  await purser.snapshot(token, id);
  await purser.ask('POST', '/v1/compute/pause', { token, body: { id } });
  assert.equal((await purser.snapshot(token, id)).status, 200);
  assert.deepEqual(asked, [true, false]);
});

test('no lease is made from a snapshot of another wallet or slot, or from one that goes', async (t) => {
  const { purser, token, id, snapshot } = await openSnapshot(t);
  const other = await purser.openWallet(MONTH);
  assert.equal((await purser.leaseFrom(other.token, snapshot)).status, 404);
  assert.equal((await purser.forget(other.token, snapshot)).status, 404);
  const body = { provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 5, max_seconds: 600 } };
  const three = await purser.ask('POST', `/v1/compute/create?snapshot=${snapshot}`, { token, key: 'three', body });
  assert.deepEqual([three.status, /is of provider_one/.test(three.text)], [400, true]);

  purser.memory.before['snapshots.remove'] = () => {
    throw new Error('the engine is down');
  };
  assert.equal((await purser.forget(token, snapshot)).body.status, 'deleting');
  const { status, body: refused } = await purser.leaseFrom(token, snapshot);
  assert.deepEqual([status, refused.error.code], [409, 'resource_not_active']);
  assert.equal(purser.memory.machines.size, 1);
  void id;
});

test('a snapshot goes when the last lease that was made from it is over', async (t) => {
  const { purser, token, snapshot } = await openSnapshot(t);
  const { id } = (await purser.leaseFrom(token, snapshot)).body;
  assert.equal((await purser.forget(token, snapshot)).body.status, 'deleting');
  purser.clock.advance(DAY / 2);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).end_reason, 'lease_expired');
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  const [gone] = await purser.snapshots(token);
  assert.deepEqual([gone.status, gone.end_reason, purser.memory.snapshots.size], ['deleted', 'requested', 0]);
  assert.equal((await purser.forget(token, snapshot)).body.status, 'deleted', 'again');
});

test('a snapshot that is deleted while a create is under way stays until that has ended', async (t) => {
  const { purser, token, snapshot } = await openSnapshot(t);
  const making = hold();
  purser.memory.before.create = making.wait;
  const creating = purser.leaseFrom(token, snapshot);
  await waitFor('the machine is being made', making.arrived);
  assert.equal((await purser.forget(token, snapshot)).body.status, 'deleting');
  assert.equal(purser.memory.snapshots.size, 1);
  making.go();
  assert.equal((await creating).body.status, 'running');
});

test('a create from a snapshot that its engine has lost is refused, and the snapshot ends at its next step', async (t) => {
  const { purser, token, snapshot } = await openSnapshot(t);
  purser.memory.snapshots.clear();
  const { status } = await purser.leaseFrom(token, snapshot);
  assert.equal(status, 503);
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  const [lost] = await purser.snapshots(token);
  assert.deepEqual([lost.status, lost.end_reason], ['deleted', 'lost']);
});

test('each day is paid when it begins, once, and days that nobody saw begin are free', async (t) => {
  const { purser, paid, row } = await openSnapshot(t);
  const began = row().paidUntil as number;
  purser.clock.advance(DAY - 1);
  await purser.app.reaper.runOnce();
  assert.equal(paid(), DAY_NANOS);
  purser.clock.advance(1);
  for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().paidUntil], [2 * DAY_NANOS, began + DAY]);
  purser.clock.advance(3 * DAY + 100);
  await purser.reopen();
  for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().paidUntil, row().days], [3 * DAY_NANOS, began + 4 * DAY, 3]);
  assert.deepEqual(purser.problems(), []);
});

test('a snapshot that is gone costs no further day', async (t) => {
  const { purser, paid, row } = await openSnapshot(t);
  purser.memory.snapshots.clear();
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().endReason], [DAY_NANOS, 'lost']);
});

test('while its engine does not answer a snapshot costs nothing, and stays', async (t) => {
  const { purser, paid, row } = await openSnapshot(t);
  purser.memory.before['snapshots.find'] = () => {
    throw new Error('the engine is down');
  };
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().status, row().attempts], [DAY_NANOS, 'ready', 1]);
  purser.memory.before = {};
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().attempts], [2 * DAY_NANOS, 0]);
});

test('the money of a take that left nothing whole is given back after what it may have left is removed', async (t) => {
  const { purser, token, id } = await openLeased(t);
  const { before, calls } = purser.memory;
  const fails = () => {
    throw new Error('the engine is down');
  };
  before['snapshots.take'] = fails;
  assert.equal((await purser.snapshot(token, id)).body.error.code, 'operation_uncertain');
  const heldUsd = async () => Number((await purser.budget(token)).held_usd);
  const held = await heldUsd();
  before['snapshots.remove'] = fails;
  for (let i = 0; i < 3; i++) {
    purser.clock.advance(61);
    await purser.app.reaper.runOnce();
    assert.deepEqual([(await purser.snapshots(token))[0].status, await heldUsd()], ['taking', held]);
  }
  before['snapshots.remove'] = () => {};
  calls.length = 0;
  purser.clock.advance(61);
  for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
  assert.ok(calls.includes('snapshots.remove'));
  assert.ok((await heldUsd()) < held);
  assert.deepEqual(purser.problems(), []);
});

test('another engine proves nothing about a snapshot', async (t) => {
  const { purser, paid, row, token, snapshot } = await openSnapshot(t);
  purser.memory.identity = 'another';
  purser.memory.snapshots = new Map();
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  assert.equal(row().status, 'ready');
  assert.equal((await purser.forget(token, snapshot)).body.status, 'deleting');
  assert.equal(paid(), DAY_NANOS);
  assert.ok(!purser.memory.calls.includes('snapshots.remove'));
});

test('a snapshot that another engine shows is there, as where the engine was renamed: it is paid, and goes', async (t) => {
  const { purser, paid, row, token, snapshot } = await openSnapshot(t);
  for (const [at, identity] of ['renamed', 'once more', undefined].entries()) {
    if (identity === undefined) delete purser.memory.identity;
    else purser.memory.identity = identity;
    purser.clock.advance(DAY);
    for (let i = 0; i < 2; i++) await purser.app.reaper.runOnce();
    assert.deepEqual([row().engine, row().lastError, paid()], [identity ?? null, null, (at + 2) * DAY_NANOS]);
  }
  purser.memory.identity = 'at last';
  await purser.forget(token, snapshot);
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().status, purser.memory.snapshots.size], ['deleted', 0]);
  assert.deepEqual(purser.problems(), []);
});

/** What keeps a day from being paid, and the reason that its snapshot then ends for. */
const UNPAID: Record<
  string,
  (purser: Awaited<ReturnType<typeof openSnapshot>>['purser'], wallet: string) => Promise<unknown>
> = {
  insufficient_funds: async (purser, wallet) =>
    assert.equal(
      (
        await purser.ask('POST', `/v1/wallets/${wallet}/budget`, {
          token: purser.accountKey,
          key: 'lower',
          body: { add_cents: -495 },
        })
      ).status,
      200,
    ),
  wallet_closed: async (purser) => purser.clock.advance(31 * DAY),
};
for (const [reason, meet] of Object.entries(UNPAID))
  test(`a snapshot whose day is refused for ${reason} is removed`, async (t) => {
    const { purser, token, wallet, paid, row } = await openSnapshot(t);
    await meet(purser, wallet);
    purser.clock.advance(DAY);
    for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
    assert.deepEqual([row().status, row().endReason, purser.memory.snapshots.size], ['deleted', reason, 0]);
    assert.equal(paid(), DAY_NANOS);
    if (reason !== 'wallet_closed') assert.equal((await purser.snapshots(token))[0].end_reason, reason);
    assert.deepEqual(purser.problems(), []);
  });

/** What stops a wallet for a while, and what ends that. */
const FREEZES: Record<string, Record<'begin' | 'end', (purser: LeaseServer, wallet: string) => Promise<unknown>>> = {
  wallet_frozen: {
    begin: (purser, wallet) =>
      purser.ask('POST', `/v1/wallets/${wallet}/freeze`, { token: purser.accountKey, body: {} }),
    end: (purser, wallet) =>
      purser.ask('POST', `/v1/wallets/${wallet}/unfreeze`, { token: purser.accountKey, body: {} }),
  },
  account_suspended: {
    begin: (purser) => purser.run('account.suspend', { id: purser.accountId }),
    end: (purser) => purser.run('account.resume', { id: purser.accountId }),
  },
  installation: {
    begin: (purser) => purser.run('freeze', {}),
    end: (purser) => purser.run('unfreeze', {}),
  },
};
for (const [what, { begin, end }] of Object.entries(FREEZES)) {
  test(`a snapshot waits while its day is refused (${what}), and days that passed are free`, async (t) => {
    const { purser, wallet, paid, row } = await openSnapshot(t);
    const began = row().paidUntil as number;
    await begin(purser, wallet);
    for (const seconds of [DAY, 3 * DAY, 3 * DAY + DAY - 1]) {
      purser.clock.advance(seconds);
      for (let i = 0; i < 2; i++) await purser.app.reaper.runOnce();
      assert.deepEqual([row().status, paid(), row().days], ['ready', DAY_NANOS, 1]);
    }
    await end(purser, wallet);
    await purser.app.ledger.write(noteSnapshot, { id: row().id, change: { dueAt: 0 } });
    for (let i = 0; i < 2; i++) await purser.app.reaper.runOnce();
    assert.deepEqual([row().status, paid(), row().paidUntil], ['ready', 2 * DAY_NANOS, began + 7 * DAY]);
    assert.deepEqual(purser.problems(), []);
  });

  test(`seven days after its paid time a snapshot goes (${what}), but not while the installation is frozen`, async (t) => {
    const { purser, wallet, paid, row } = await openSnapshot(t);
    await begin(purser, wallet);
    await FREEZES.installation?.begin(purser, wallet);
    for (let day = 0; day < 12; day++) {
      purser.clock.advance(DAY);
      await purser.app.reaper.runOnce();
      assert.equal(row().status, 'ready');
    }
    await FREEZES.installation?.end(purser, wallet);
    purser.clock.advance(61);
    for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
    if (what === 'installation') assert.deepEqual([row().status, paid()], ['ready', 2 * DAY_NANOS]);
    else assert.deepEqual([row().endReason, purser.memory.snapshots.size, paid()], [what, 0, DAY_NANOS]);
    assert.deepEqual(purser.problems(), []);
  });
}

test('a lease whose disk is smaller than its snapshot is refused: that may outlast what is paid for it', async (t) => {
  const { purser, token, snapshot } = await openSnapshot(t);
  const { snapshots } = purser.backend.guest;
  purser.backend.guest.snapshots = { ...(snapshots as object), gibMax: () => 0.24 } as never;
  const { status, text } = await purser.leaseFrom(token, snapshot);
  assert.deepEqual([status, /takes 0\.25 GiB/.test(text)], [400, true], text);
  purser.backend.guest.snapshots = { ...(snapshots as object), gibMax: () => 0.25 } as never;
  assert.equal((await purser.leaseFrom(token, snapshot)).status, 200);
});

test('while no step may touch a snapshot that is due the reaper is not woken for it', async (t) => {
  const { purser, row } = await openSnapshot(t);
  await purser.reopen(() => purser.clock.leap(DAY));
  assert.ok(purser.app.clock.expiryBlocked());
  const woken: number[] = [];
  const step = await advanceSnapshot({ ...purser.app, wakeAt: (at) => woken.push(at) }, row().id);
  assert.deepEqual([step.status, woken], ['ready', []]);
});

test('while the clock is in doubt no day is paid, and no snapshot is removed for that', async (t) => {
  const { purser, paid, row } = await openSnapshot(t);
  await purser.reopen(() => purser.clock.leap(DAY));
  assert.ok(purser.app.clock.doubt());
  await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().status], [DAY_NANOS, 'ready']);
});

test('a wallet is closed once its snapshots are gone, also where the engine was down', async (t) => {
  const { purser, token, wallet, row } = await openSnapshot(t, { settings: { close_wait_seconds: 1 } });
  purser.memory.before['snapshots.remove'] = () => {
    throw new Error('connect ENOENT /srv/secret-place/docker.sock');
  };
  const pending = await purser.closeWallet(wallet);
  assert.deepEqual([pending.status, pending.body.error.code], [409, 'cleanup_pending']);
  const trouble = await purser.ask('GET', `/v1/wallets/${wallet}`, { token: purser.accountKey });
  assert.doesNotMatch(trouble.text, /secret-place/);
  assert.match(trouble.text, new RegExp(`${row().id} on container: the backend failed`));
  purser.memory.before = {};
  purser.clock.advance(300);
  for (let i = 0; i < 2; i++) await purser.app.reaper.runOnce();
  assert.deepEqual([row().endReason, purser.memory.snapshots.size], ['wallet_closed', 0]);
  const { status } = (await purser.ask('GET', `/v1/wallets/${wallet}`, { token: purser.accountKey })).body;
  assert.equal(status, 'closed');
  assert.deepEqual(purser.problems(), []);
  void token;
});

test('a sweep removes the snapshots of this installation that no live row knows', async (t) => {
  const { purser, row } = await openSnapshot(t);
  const { snapshots } = purser.memory;
  const old = Math.floor(purser.clock.wall() / 1000) - 1000;
  const ours = tagOf(purser.app.installationId, 'snap_00000000000000000000000000');
  const foreign = 'purser-inst-other-snap-00000000000000000000000000';
  for (const tag of [ours, foreign]) snapshots.set(tag, { bytes: 1, createdAt: old });
  snapshots.set(`${ours}1`, { bytes: 1, createdAt: old + 1000 });
  purser.clock.advance(61);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 1);
  assert.deepEqual([...snapshots.keys()].toSorted(), [row().tag, foreign, `${ours}1`].toSorted());
});

test('the operator gives up a snapshot whose engine is gone for good, and its wallet is closed', async (t) => {
  for (const isTaken of [true, false]) {
    const { purser, token, id, wallet } = await openLeased(t, { settings: { close_wait_seconds: 1 } });
    if (!isTaken)
      purser.memory.after['snapshots.take'] = () => {
        throw new Error('the connection was reset');
      };
    await purser.snapshot(token, id);
    const snapshot = (await purser.snapshots(token))[0].snapshot_id;
    await purser.stop(token, id);
    purser.memory.identity = 'another';
    const { snapshots } = purser.memory;
    purser.memory.snapshots = new Map();
    assert.equal((await purser.closeWallet(wallet)).body.error.code, 'cleanup_pending');
    const order = { id: snapshot, reason: 'that box burned down' };
    assert.equal((await purser.run('resource.abandon', order)).end_reason, 'abandoned');
    await assert.rejects(purser.run('resource.abandon', order), /has ended/);
    await purser.app.reaper.runOnce();
    const it = (await purser.ask('GET', `/v1/wallets/${wallet}`, { token: purser.accountKey })).body;
    assert.deepEqual([it.status, it.held_usd ?? '0.00'], ['closed', '0.00']);
    // It turns up after all.
    purser.memory.snapshots = snapshots;
    purser.clock.advance(1000);
    await purser.app.reaper.runOnce();
    assert.equal(purser.memory.snapshots.size, 0);
    assert.deepEqual(purser.problems(), []);
  }
});

test('a sweep that cannot list the snapshots still ends the machines that no row knows', async (t) => {
  const { purser } = await openSnapshot(t);
  const { machines } = purser.memory;
  const tag = tagOf(purser.app.installationId, 'res_00000000000000000000000000');
  const createdAt = Math.floor(purser.clock.wall() / 1000) - 1000;
  machines.set('lost', { ref: 'lost', tag, state: 'running', createdAt, deadline: Number.MAX_SAFE_INTEGER });
  purser.memory.before['snapshots.list'] = () => {
    throw new Error('the engine is busy');
  };
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  assert.deepEqual([machines.has('lost'), purser.memory.snapshots.size], [false, 1]);
});

test('a restored copy of the books takes no snapshot, pays no day and removes none', async (t) => {
  const machine: { id: string | undefined } = { id: '0123456789abcdef0123456789abcdef' };
  const { purser, token, id, wallet, snapshot, paid, row } = await openSnapshot(t, { machine });
  machine.id = 'fedcba9876543210fedcba9876543210';
  await purser.reopen();
  assert.equal((await purser.snapshot(token, id)).body.error.code, 'read_only');
  assert.equal((await purser.forget(token, snapshot)).body.error.code, 'read_only');
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().status, purser.memory.snapshots.size], [DAY_NANOS, 'ready', 1]);
  assert.equal((await purser.closeWallet(wallet)).body.error.code, 'cleanup_pending');
  const { text } = await purser.ask('GET', `/v1/wallets/${wallet}`, { token: purser.accountKey });
  assert.match(text, /only reports until the operator/);
  assert.equal(purser.memory.snapshots.size, 1);
  await purser.run('resource.reconcile', { apply: true });
  purser.clock.advance(120);
  for (let i = 0; i < 3; i++) await purser.app.reaper.runOnce();
  assert.deepEqual([paid(), row().endReason, purser.memory.snapshots.size], [DAY_NANOS, 'wallet_closed', 0]);
});

type Moment = 'before' | 'after';
for (const when of ['before', 'after'] as const satisfies Moment[])
  for (const how of ['the answer is lost', 'the process dies'] as const)
    test(`${how} ${when} the engine has taken a snapshot: it is charged if it is there`, async (t) => {
      const { purser, token, id } = await openLeased(t);
      const asked = 'snapshots.take';
      if (how === 'the answer is lost') {
        purser.memory[when][asked] = () => {
          throw new Error('the connection was reset');
        };
        const { status, body } = await purser.snapshot(token, id, 'k');
        assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
      } else {
        const died = Promise.withResolvers<void>();
        const never = Promise.withResolvers<never>();
        purser.memory[when][asked] = () => {
          died.resolve();
          return never.promise;
        };
        void purser.snapshot(token, id, 'k').catch(() => {}); // Nobody hears what the dead process still says.
        await waitFor('it dies', died.promise);
        await purser.crash(() => never.reject(new Error('it is dead')));
      }
      purser.memory[when] = {};
      for (const seconds of [1, 62]) {
        purser.clock.advance(seconds);
        await purser.app.reaper.runOnce();
      }
      const [it] = await purser.snapshots(token);
      const { used_usd, held_usd } = await purser.budget(token);
      const there = when === 'after';
      assert.deepEqual(
        [it.status, used_usd, held_usd],
        there ? ['ready', '0.028541667', '0.00'] : ['failed', '0.003541667', '0.00'],
      );
      assert.ok(purser.memory.calls.includes('snapshots.letRun'), 'what stood still goes on');
      const again = await purser.snapshot(token, id, 'k');
      assert.equal(again.status, 200, again.text);
      assert.equal(purser.memory.snapshots.size, 1);
      assert.equal(again.body.snapshot_id === it.snapshot_id, there);
      assert.deepEqual(purser.problems(), []);
    });

test('a wallet that is closed while a snapshot is being taken keeps none', async (t) => {
  const { purser, token, id, wallet } = await openLeased(t, { settings: { close_wait_seconds: 0 } });
  const taking = hold();
  purser.memory.before['snapshots.take'] = taking.wait;
  const asked = purser.snapshot(token, id);
  await waitFor('it is being taken', taking.arrived);
  assert.equal((await purser.closeWallet(wallet)).body.error.code, 'cleanup_pending');
  taking.go();
  assert.equal((await asked).status, 200);
  for (let i = 0; i < 4; i++) {
    purser.clock.advance(10);
    await purser.app.reaper.runOnce();
  }
  assert.equal(purser.memory.snapshots.size, 0);
  const closed = (await purser.ask('GET', `/v1/wallets/${wallet}`, { token: purser.accountKey })).body;
  assert.equal(closed.status, 'closed');
  assert.deepEqual(purser.problems(), []);
});

test('the operator decides a snapshot whose engine does not answer', async (t) => {
  for (const decision of ['charge', 'release'] as const) {
    const { purser, token, id } = await openLeased(t);
    purser.memory.after['snapshots.take'] = () => {
      throw new Error('the connection was reset');
    };
    await purser.snapshot(token, id);
    purser.memory.after = {};
    const operation = purser.app.ledger.client
      .prepare("select id from operation where kind = 'snapshot'")
      .pluck()
      .get() as string;
    await purser.run('operation.resolve', { id: operation, decision, reason: 'by hand' } as never);
    for (let i = 0; i < 3; i++) {
      purser.clock.advance(1);
      await purser.app.reaper.runOnce();
    }
    const [it] = await purser.snapshots(token);
    assert.equal(it.status, decision === 'charge' ? 'ready' : 'deleted');
    assert.equal(purser.memory.snapshots.size, decision === 'charge' ? 1 : 0);
    assert.deepEqual(
      purser.log.filter((line) => line.includes('"event":"operation.late"')),
      [],
      'no answer came late',
    );
    assert.deepEqual(purser.problems(), []);
  }
});

test('a take that the operator has charged is answered once its snapshot is known to be there', async (t) => {
  const { purser, token, id } = await openLeased(t);
  const fail = () => {
    throw new Error('the connection was reset');
  };
  purser.memory.after['snapshots.take'] = fail;
  purser.memory.before['snapshots.find'] = fail;
  assert.equal((await purser.snapshot(token, id, 'k')).status, 503);
  const [operation] = (await purser.run('operation.list', { uncertain: true })).operations;
  await purser.run('operation.resolve', { id: operation?.id as string, decision: 'charge', reason: 'by hand' });
  const unknown = await purser.snapshot(token, id, 'k');
  assert.deepEqual([unknown.status, unknown.body.error?.code], [503, 'operation_uncertain'], unknown.text);
  purser.memory.before = {};
  const known = await purser.snapshot(token, id, 'k');
  assert.deepEqual([known.status, known.body.size_gib], [200, 0.25], known.text);
});

void [CENT, LONG];

test('a snapshot of a wrong future is paid for its days once the clock is right', async (t) => {
  const { purser, token, id } = await openLeased(t);
  await purser.stop(token, id);
  const snapshot = await inWrongFuture(purser, async () => {
    const lease = (await purser.lease(token)).body;
    return (await purser.snapshot(token, lease.id)).body.snapshot_id as string;
  });
  const row = () => findSnapshot(purser.app.ledger.read, snapshot) as Snapshot;
  for (let day = 1; day <= 8; day++) {
    assert.equal(row().days, day);
    purser.clock.advance(DAY);
    await purser.app.reaper.runOnce();
  }
  assert.equal(row().status, 'ready');
  assert.deepEqual(purser.problems(), []);
});

test('a snapshot that is to go, or whose take is in doubt, does not wait for the end of a wrong future', async (t) => {
  const { purser, token, snapshot, row } = await openSnapshot(t);
  const { memory } = purser;
  await inWrongFuture(purser, async () => {
    const lease = (await purser.lease(token)).body;
    const down = () => {
      throw new Error('it is down');
    };
    Object.assign(memory.before, { 'snapshots.take': down, 'snapshots.find': down, 'snapshots.remove': down });
    assert.equal((await purser.snapshot(token, lease.id)).body.error.code, 'operation_uncertain');
    await purser.forget(token, snapshot);
    await purser.app.reaper.runOnce();
  });
  memory.before = {};
  for (const seconds of [1, 62]) {
    purser.clock.advance(seconds);
    await purser.app.reaper.runOnce();
  }
  assert.deepEqual([row().status, memory.snapshots.size], ['deleted', 0]);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('a day that begins at the very time at which one began in a wrong future is paid', async (t) => {
  const { purser, snapshot, row, paid } = await openSnapshot(t);
  const begun = (row().paidUntil as number) + AHEAD - DAY;
  await inWrongFuture(purser, () => purser.app.reaper.runOnce());
  assert.deepEqual([row().days, paid()], [2, 2 * DAY_NANOS], 'it was paid there');
  await purser.app.ledger.write(noteSnapshot, { id: snapshot, change: { paidUntil: begun, dueAt: begun } as never });
  purser.clock.advance(begun - purser.app.clock.now());
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().days, row().lastError, paid()], [3, null, 3 * DAY_NANOS]);
});

for (const how of ['while the clock is in doubt', 'when the operator gives it up'] as const)
  test(`what a take that broke off has stopped goes on ${how}`, async (t) => {
    const { purser, token, id } = await openLeased(t);
    const { memory } = purser;
    memory.before['snapshots.take'] = () => {
      throw new Error('the connection was reset');
    };
    assert.equal((await purser.snapshot(token, id)).body.error.code, 'operation_uncertain');
    memory.before = {};
    const hasAsked = () => memory.calls.includes('snapshots.letRun');
    assert.equal(hasAsked(), false);
    if (how === 'while the clock is in doubt') {
      await purser.reopen(() => purser.clock.leap(DAY));
      assert.ok(purser.app.clock.doubt());
      await purser.app.reaper.runOnce();
      assert.equal((await purser.snapshots(token))[0].status, 'taking');
    } else {
      memory.after['snapshots.letRun'] = () => {
        throw new Error('the engine is gone');
      };
      const [{ snapshot_id: taking }] = await purser.snapshots(token);
      await purser.run('resource.abandon', { id: taking, reason: 'that box burned down' });
      assert.equal((await purser.snapshots(token))[0].end_reason, 'abandoned');
    }
    assert.ok(hasAsked());
  });
