import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { type Finding, type LeaseState, stateOf } from '../../src/lease/observe.ts';
import { ACTIONS } from '../../src/lease/step.ts';
import { findOperation } from '../../src/ledger/operation.ts';
import { findResource, type Resource } from '../../src/ledger/resource.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openMemoryServer } from './leases.ts';

const lost = () => {
  throw new Error('the connection was reset');
};

/** A lease in each state, with its machine still there. */
async function openIn(t: TestContext, state: LeaseState) {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  if (state === 'searching') purser.memory.after.create = lost;
  if (state === 'starting') purser.memory.ready = false;
  // Nothing becomes ready in these two; the others are ready when they are answered, however busy the machine is.
  const isWaiting = state === 'searching' || state === 'starting';
  if (isWaiting) purser.app.answerSeconds = 0.05;
  await purser.lease(token);
  purser.app.answerSeconds = 0.05;
  if (state === 'ending') {
    purser.memory.before.destroy = lost;
    const [row] = purser.app.ledger.client.prepare('select id from resource').pluck().all() as string[];
    await purser.stop(token, row as string);
    delete purser.memory.before.destroy;
  }
  const id = purser.app.ledger.client.prepare('select id from resource').pluck().get() as string;
  if (state === 'paused') await purser.ask('POST', '/v1/compute/pause', { token, body: { id } });
  const row = () => findResource(purser.app.ledger.read, id) as Resource;
  await until(`it is ${state}`, () => stateOf(row()) === state);
  return { purser, row };
}

/** What becomes of the row: its status, when it is due again, whether another step follows at once, and of the money. */
type After = {
  status: Resource['status'];
  /** Seconds from now, or `end` when the lease is over. */
  due: number | 'end';
  again?: true;
  endWanted?: Resource['endWanted'];
  money: 'held' | 'charged' | 'released';
};
const TABLE: Record<LeaseState, Record<Finding, After>> = {
  searching: {
    unreachable: { status: 'unknown', due: 2, money: 'held' },
    elsewhere: { status: 'unknown', due: 60, money: 'held' },
    missing: { status: 'unknown', due: 10, money: 'held' },
    absent: { status: 'failed', due: 'end', endWanted: 'create_failed', money: 'released' },
    starting: { status: 'provisioning', due: 0, again: true, money: 'held' },
    running: { status: 'provisioning', due: 0, again: true, money: 'held' },
    ended: { status: 'provisioning', due: 0, again: true, money: 'held' },
  },
  starting: {
    unreachable: { status: 'provisioning', due: 2, money: 'held' },
    elsewhere: { status: 'provisioning', due: 60, money: 'held' },
    missing: { status: 'provisioning', due: 2, money: 'held' },
    absent: { status: 'stopping', due: 0, again: true, endWanted: 'create_failed', money: 'held' },
    starting: { status: 'provisioning', due: 2, money: 'held' },
    running: { status: 'running', due: 60, money: 'charged' },
    ended: { status: 'stopping', due: 0, again: true, endWanted: 'create_failed', money: 'held' },
  },
  running: {
    unreachable: { status: 'running', due: 2, money: 'charged' },
    elsewhere: { status: 'running', due: 60, money: 'charged' },
    missing: { status: 'running', due: 2, money: 'charged' },
    absent: { status: 'stopping', due: 0, again: true, endWanted: 'provider_ended', money: 'charged' },
    starting: { status: 'running', due: 60, money: 'charged' },
    running: { status: 'running', due: 60, money: 'charged' },
    ended: { status: 'stopping', due: 0, again: true, endWanted: 'provider_ended', money: 'charged' },
  },
  paused: {
    unreachable: { status: 'paused', due: 2, money: 'charged' },
    elsewhere: { status: 'paused', due: 60, money: 'charged' },
    missing: { status: 'paused', due: 2, money: 'charged' },
    absent: { status: 'stopping', due: 0, again: true, endWanted: 'provider_ended', money: 'charged' },
    starting: { status: 'paused', due: 60, money: 'charged' },
    running: { status: 'paused', due: 60, money: 'charged' },
    ended: { status: 'stopping', due: 0, again: true, endWanted: 'provider_ended', money: 'charged' },
  },
  ending: {
    // The stop has failed a moment ago, and the lease is not due yet: this attempt does not count.
    unreachable: { status: 'stopping', due: 2, endWanted: 'requested', money: 'charged' },
    elsewhere: { status: 'stopping', due: 60, endWanted: 'requested', money: 'charged' },
    missing: { status: 'stopping', due: 2, endWanted: 'requested', money: 'charged' },
    absent: { status: 'stopped', due: 'end', endWanted: 'requested', money: 'charged' },
    starting: { status: 'stopping', due: 2, endWanted: 'requested', money: 'charged' },
    running: { status: 'stopping', due: 2, endWanted: 'requested', money: 'charged' },
    ended: { status: 'stopping', due: 2, endWanted: 'requested', money: 'charged' },
  },
};

const MACHINES = { starting: 'provisioning', running: 'running', ended: 'ended' } as const;

for (const [state, findings] of Object.entries(TABLE) as [LeaseState, Record<Finding, After>][])
  for (const [finding, expected] of Object.entries(findings) as [Finding, After][])
    test(`${state}, and its machine is ${finding}`, async (t) => {
      const { purser, row } = await openIn(t, state);
      const { app } = purser;
      const before = row();
      const machine = MACHINES[finding as keyof typeof MACHINES];
      const [known] = purser.memory.machines.values();
      const transition = await ACTIONS[state][finding]({
        app,
        backend: purser.backend,
        row: before,
        finding,
        machines: machine && known ? [{ ref: known.ref, deadline: known.deadline, state: machine }] : [],
        ...(machine ? {} : { error: new Error('the engine is down, or another one') }),
      });
      const written = await transition.write(app.ledger);
      transition.announce?.(written);
      const operation = findOperation(app.ledger.read, before.operationId);
      assert.deepEqual(
        {
          status: written.status,
          due: written.endedAt === null ? written.dueAt - app.clock.now() : 'end',
          ...(transition.again?.(written) ? { again: true } : {}),
          ...(written.endWanted === null ? {} : { endWanted: written.endWanted }),
          money: operation?.outcome ?? 'held',
        },
        expected,
      );
      assert.deepEqual(purser.problems(), []);
    });

test('the table has no empty cell', () => {
  for (const [state, findings] of Object.entries(TABLE))
    assert.deepEqual(Object.keys(ACTIONS[state as LeaseState]).sort(), Object.keys(findings).sort());
  assert.deepEqual(Object.keys(ACTIONS).sort(), Object.keys(TABLE).sort());
});
