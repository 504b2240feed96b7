import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { changeResource, findResource, type Resource } from '../../src/ledger/resource.ts';
import { openMemoryServer } from './leases.ts';
import { pauses, prolong } from './pause-shared.ts';

/** A paused lease follows its wallet that is prolonged while its engine is out of reach, or while the step of a pause is in doubt. */

const lost = () => {
  throw new Error('the connection was reset');
};

/** A lease of 600 s, 500 s of which are left, in a wallet that lasts `seconds`. */
async function open(t: TestContext, seconds: number) {
  const purser = pauses(await openMemoryServer(t));
  const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: seconds });
  const { id } = (await purser.lease(wallet.token)).body;
  purser.clock.advance(100);
  const now = () => purser.app.clock.now();
  const row = () => findResource(purser.app.ledger.read, id) as Resource;
  /** Lets time pass until then, with the background work of each `step` seconds. */
  async function passTo(at: number, step = 10) {
    while (now() < at) {
      purser.clock.advance(Math.min(step, at - now()));
      await purser.app.reaper.runOnce();
    }
  }
  const oldEnd = purser.wallet(wallet.id).expiresAt as number;
  return {
    ...{ purser, memory: purser.memory, now, row, passTo, oldEnd },
    ask: async (call: 'pause' | 'resume') => (await purser[call](wallet.token, id)).body,
    prolong: () => prolong(purser, { wallet_id: wallet.id, expires_at: oldEnd }),
    machine: () => purser.memory.machines.get('m1'),
  };
}

for (const call of ['pause', 'resume'] as const)
  test(`a ${call} in doubt that is finished shortly before the old end of its wallet follows the wallet that was prolonged`, async (t) => {
    const { purser, memory, now, row, passTo, oldEnd, ask, prolong, machine } = await open(t, 1800);
    if (call === 'pause') memory.after['pause.begin'] = lost;
    else {
      await ask('pause');
      memory.before['pause.end'] = lost;
    }
    assert.equal((await ask(call)).error.code, 'operation_uncertain');
    memory.after = {};
    memory.before = { inspect: lost }; // Its engine is out of reach, but for the last minute.
    const end = await prolong();
    await passTo(oldEnd - 59, 60);
    memory.before = {};
    const isOver = () => ['paused', 'running'].includes(row().status);
    while (!isOver()) await passTo(now() + 10);
    assert.ok(now() < oldEnd);
    const expected = call === 'pause' ? end : now() + 500;
    assert.deepEqual([row().expiresAt, machine()?.deadline], [expected, expected], 'in the same run');
    await passTo(oldEnd + 1, 60);
    assert.deepEqual([row().status, row().endReason], [call === 'pause' ? 'paused' : 'running', null]);
    if (call === 'pause') assert.equal((await ask('resume')).expires_at, now() + 500);
    await passTo(now() + 500, 60);
    assert.equal(row().endReason, 'lease_expired');
    assert.deepEqual(purser.problems(), []);
  });

test('a paused lease whose engine was long out of reach, and answers again before the old end of its wallet, follows it', async (t) => {
  const { purser, memory, row, passTo, oldEnd, ask, prolong, machine } = await open(t, 3600);
  await ask('pause');
  memory.before = { inspect: lost };
  await passTo(oldEnd - 260, 60);
  const end = await prolong();
  await passTo(oldEnd - 259);
  memory.before = {};
  await passTo(oldEnd - 50);
  assert.deepEqual([row().expiresAt, machine()?.deadline], [end, end]);
  await passTo(oldEnd + 10);
  assert.deepEqual([row().status, row().secondsLeft], ['paused', 500]);
  assert.deepEqual(purser.problems(), []);
});

test('a paused lease whose machine has the end of its prolonged wallet already does not end at the old one', async (t) => {
  const { purser, memory, now, row, passTo, oldEnd, ask, prolong, machine } = await open(t, 1800);
  await ask('pause');
  memory.after.extend = lost;
  const end = await prolong();
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().expiresAt, machine()?.deadline], [oldEnd, end]);
  memory.after = {};
  memory.before = { inspect: lost };
  await passTo(oldEnd + 30, 60);
  assert.equal(row().endWanted, null);
  memory.before = {};
  assert.equal((await ask('pause')).expires_at, end, 'nor is it over for who asks');
  assert.equal((await ask('resume')).expires_at, now() + 500);
  assert.deepEqual(purser.problems(), []);
});

test('a resumed machine shows that it was, also where its wallet ends first, and has its paid time once', async (t) => {
  const { purser, memory, now, row, passTo, oldEnd, ask, prolong, machine } = await open(t, 1800);
  await ask('pause');
  await passTo(oldEnd - 400);
  memory.after['pause.end'] = lost;
  assert.equal((await ask('resume')).error.code, 'operation_uncertain');
  memory.after = {};
  await prolong();
  await passTo(now() + 20);
  assert.deepEqual([row().status, row().expiresAt, machine()?.deadline], ['running', oldEnd - 1, oldEnd - 1]);
  assert.deepEqual(purser.problems(), []);
});

test('a resumption beyond the old end of its wallet, whose answer is lost once more, gives no time twice', async (t) => {
  const { purser, memory, now, row, passTo, oldEnd, ask, prolong, machine } = await open(t, 1800);
  await ask('pause');
  memory.before = { 'pause.end': lost, inspect: lost };
  assert.equal((await ask('resume')).error.code, 'operation_uncertain');
  await prolong();
  await passTo(oldEnd - 59, 60);
  memory.before = {};
  let resumedAt = 0;
  memory.after['pause.end'] = () => {
    resumedAt ||= now();
    lost();
  };
  while (!resumedAt) await passTo(now() + 10);
  await passTo(now() + 100);
  assert.equal(row().status, 'resuming');
  memory.after = {};
  while (row().status === 'resuming') await passTo(now() + 10);
  assert.deepEqual([row().expiresAt, machine()?.deadline], [resumedAt + 500, resumedAt + 500]);
  assert.deepEqual(purser.problems(), []);
});

test('a pause that is over with its wallet ends, however often its engine was asked in vain', async (t) => {
  const { purser, memory, row, passTo, oldEnd, ask } = await open(t, 1800);
  await ask('pause');
  memory.before = { inspect: lost };
  await passTo(oldEnd - 60, 30);
  const count = () => memory.calls.filter((it) => it === 'inspect').length;
  const before = count();
  await passTo(oldEnd - 1, 1);
  const asked = count() - before;
  assert.ok(asked >= 5 && asked <= 7, `${asked} times in its last minute`);
  memory.before = {};
  await passTo(oldEnd + 20, 1);
  assert.notEqual(row().endReason, null);
  assert.equal(memory.machines.size, 0);
  assert.deepEqual(purser.problems(), []);
});

test('a paused lease in quarantine is over at the end in its row: its machine is not asked to follow', async (t) => {
  const { purser, row, passTo, oldEnd, ask, prolong, machine } = await open(t, 1800);
  await ask('pause');
  await purser.app.ledger.write(changeResource, { id: row().id, values: { quarantinedAt: 1 } });
  await prolong();
  await passTo(oldEnd, 600);
  await purser.app.reaper.runOnce();
  assert.deepEqual([row().endWanted, row().endedAt, machine()?.deadline], ['lease_expired', null, oldEnd]);
});
