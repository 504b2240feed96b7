import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { ACTIONS, type Finding, type LeaseState, stateOf } from '../../src/lease/step.ts';
import { findOperation } from '../../src/ledger/operation.ts';
import { findResource, type Resource } from '../../src/ledger/resource.ts';
import { LONG, openMemoryHouse } from './leases.ts';

const lost = () => {
  throw new Error('the connection was reset');
};

/** A lease in each state, with its machine still there. */
async function openIn(t: TestContext, state: LeaseState) {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  house.app.answerSeconds = 0.05;
  if (state === 'searching') house.memory.after.create = lost;
  if (state === 'starting') house.memory.ready = false;
  await house.lease(token);
  if (state === 'ending') {
    house.memory.before.destroy = lost;
    const [row] = house.app.ledger.client.prepare('select id from resource').pluck().all() as string[];
    await house.stop(token, row as string);
    delete house.memory.before.destroy;
  }
  const id = house.app.ledger.client.prepare('select id from resource').pluck().get() as string;
  const row = () => findResource(house.app.ledger.read, id) as Resource;
  assert.equal(stateOf(row()), state);
  return { house, row };
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
    missing: { status: 'unknown', due: 10, money: 'held' },
    absent: { status: 'failed', due: 'end', endWanted: 'create_failed', money: 'released' },
    starting: { status: 'provisioning', due: 0, again: true, money: 'held' },
    running: { status: 'provisioning', due: 0, again: true, money: 'held' },
    ended: { status: 'provisioning', due: 0, again: true, money: 'held' },
  },
  starting: {
    unreachable: { status: 'provisioning', due: 2, money: 'held' },
    missing: { status: 'provisioning', due: 2, money: 'held' },
    absent: { status: 'stopping', due: 0, again: true, endWanted: 'create_failed', money: 'held' },
    starting: { status: 'provisioning', due: 2, money: 'held' },
    running: { status: 'running', due: 60, money: 'charged' },
    ended: { status: 'stopping', due: 0, again: true, endWanted: 'create_failed', money: 'held' },
  },
  running: {
    unreachable: { status: 'running', due: 2, money: 'charged' },
    missing: { status: 'running', due: 2, money: 'charged' },
    absent: { status: 'stopping', due: 0, again: true, endWanted: 'provider_ended', money: 'charged' },
    starting: { status: 'running', due: 60, money: 'charged' },
    running: { status: 'running', due: 60, money: 'charged' },
    ended: { status: 'stopping', due: 0, again: true, endWanted: 'provider_ended', money: 'charged' },
  },
  ending: {
    // The stop has failed once already: the second failure waits twice as long.
    unreachable: { status: 'stopping', due: 4, endWanted: 'requested', money: 'charged' },
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
      const { house, row } = await openIn(t, state);
      const { app } = house;
      const before = row();
      const machine = MACHINES[finding as keyof typeof MACHINES];
      const [known] = house.memory.machines.values();
      const transition = await ACTIONS[state][finding]({
        app,
        backend: house.backend,
        row: before,
        finding,
        machines: machine && known ? [{ ref: known.ref, deadline: known.deadline, state: machine }] : [],
        ...(finding === 'unreachable' ? { error: new Error('the engine is down') } : {}),
      });
      const written = await app.ledger.write(transition.write);
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
      assert.deepEqual(house.problems(), []);
    });

test('the table has no empty cell', () => {
  for (const [state, findings] of Object.entries(TABLE))
    assert.deepEqual(Object.keys(ACTIONS[state as LeaseState]).sort(), Object.keys(findings).sort());
  assert.deepEqual(Object.keys(ACTIONS).sort(), Object.keys(TABLE).sort());
});
