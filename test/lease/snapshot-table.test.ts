import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { SNAPSHOT_ACTIONS, type SnapshotFinding, type SnapshotState } from '../../src/lease/snapshot-step.ts';
import { findOperation } from '../../src/ledger/operation.ts';
import { findSnapshot, type Snapshot } from '../../src/ledger/snapshot.ts';
import { DAY, GIB, openLeased } from './snapshot-shared.ts';

/** Brings a snapshot into a state; one that is being taken since so long that a lost call is over. */
async function openIn(t: TestContext, state: SnapshotState) {
  const { purser, token, id } = await openLeased(t);
  const lose = () => {
    throw new Error('the connection was reset');
  };
  if (state === 'taking') purser.memory.before['snapshots.take'] = lose;
  await purser.snapshot(token, id);
  const snapshot = purser.app.ledger.client.prepare('select id from snapshot').pluck().get() as string;
  if (state === 'deleting') {
    purser.memory.before['snapshots.remove'] = lose;
    await purser.forget(token, snapshot);
  }
  purser.memory.before = {};
  purser.clock.advance(state === 'ready' ? DAY : 60);
  const row = () => findSnapshot(purser.app.ledger.read, snapshot) as Snapshot;
  assert.equal(row().status, state);
  return { purser, row };
}

type After = { status: Snapshot['status']; due: number | 'end'; money: string; days: number; reason?: string };

const TABLE: Record<SnapshotState, Record<SnapshotFinding, After>> = {
  taking: {
    unreachable: { status: 'taking', due: 2, money: 'held', days: 0 },
    absent: { status: 'failed', due: 'end', money: 'released', days: 0, reason: 'provider_unavailable' },
    there: { status: 'ready', due: DAY, money: 'charged', days: 1 },
  },
  ready: {
    unreachable: { status: 'ready', due: 2, money: 'charged', days: 1 },
    absent: { status: 'deleted', due: 'end', money: 'charged', days: 1, reason: 'lost' },
    there: { status: 'ready', due: DAY, money: 'charged', days: 2 },
  },
  deleting: {
    // Its removal has failed once.
    unreachable: { status: 'deleting', due: 4, money: 'charged', days: 1 },
    absent: { status: 'deleted', due: 'end', money: 'charged', days: 1, reason: 'requested' },
    there: { status: 'deleting', due: 2, money: 'charged', days: 1 },
  },
};

for (const [state, findings] of Object.entries(TABLE) as [SnapshotState, Record<SnapshotFinding, After>][])
  for (const [finding, expected] of Object.entries(findings) as [SnapshotFinding, After][])
    test(`a snapshot that is ${state}, and ${finding}`, async (t) => {
      const { purser, row } = await openIn(t, state);
      const { app } = purser;
      const error = finding === 'unreachable' ? new Error('the engine is down') : undefined;
      const bytes = finding === 'there' ? GIB / 4 : 0;
      const written = await SNAPSHOT_ACTIONS[state][finding]({ app, row: row(), bytes, error });
      assert.deepEqual(written, row());
      assert.deepEqual(
        {
          status: written.status,
          due: written.endedAt === null ? written.dueAt - app.clock.now() : 'end',
          money: findOperation(app.ledger.read, written.operationId)?.outcome ?? 'held',
          days: written.days,
          ...(written.endReason === null ? {} : { reason: written.endReason }),
        },
        expected,
      );
      assert.deepEqual(purser.problems(), []);
    });

test('a snapshot that turns out larger than was held for is removed, and costs nothing', async (t) => {
  const { purser, row } = await openIn(t, 'taking');
  const { tag } = row();
  purser.memory.snapshots.set(tag, { bytes: GIB + 1, createdAt: 0 });
  await purser.app.reaper.runOnce();
  assert.deepEqual(
    [row().status, row().endReason, purser.memory.snapshots.size],
    ['failed', 'lease_limit_exceeded', 0],
  );
  assert.equal(findOperation(purser.app.ledger.read, row().operationId)?.outcome, 'released');
});

test('where its removal fails its money stays held, and it is tried again later', async (t) => {
  const { purser, row } = await openIn(t, 'taking');
  purser.memory.snapshots.set(row().tag, { bytes: GIB + 1, createdAt: 0 });
  purser.memory.before['snapshots.remove'] = () => {
    throw new Error('the engine is busy');
  };
  const { failed } = await purser.app.reaper.runOnce();
  assert.deepEqual([failed, row().status, row().attempts], [0, 'taking', 1]);
  assert.ok(row().dueAt > purser.app.clock.now());
  purser.memory.before = {};
  purser.clock.advance(10);
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().status, purser.memory.snapshots.size], ['failed', 0]);
});
