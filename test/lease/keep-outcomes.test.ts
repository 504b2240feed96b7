import assert from 'node:assert/strict';
import test from 'node:test';
import { deadlineOf, openKept, STEP, toReading, WINDOW } from './keep-shared.ts';
import { hold } from './leases.ts';

for (const [name, when, expected] of [
  ['was bought is paid, and the next ones follow', 'after', { bought: 2 * STEP, state: 'active', used: '0.072' }],
  ['was not bought costs nothing and ends the keep', 'before', { bought: 0, state: 'ended', used: '0.06' }],
] as const)
  test(`a step of unknown outcome stops the others until it is decided: one that ${name}`, async (t) => {
    const purser = await openKept(t);
    await purser.keep();
    await toReading(purser);
    purser.memory[when].extend = () => {
      throw new Error('the line died');
    };
    purser.memory.before.inspect = () => {
      throw new Error('the line is dead');
    };
    await purser.pass(WINDOW, 1);
    const doubt = (await purser.now()).keep;
    assert.deepEqual([doubt.state, doubt.bought_seconds], ['uncertain', 0]);
    assert.deepEqual(await purser.paid(), ['0.06', '0.006']);
    const extended = purser.calls('extend');
    await purser.passes(3, 10, 1);
    assert.equal(purser.calls('extend'), extended, 'nothing else is tried');
    delete purser.memory[when].extend;
    delete purser.memory.before.inspect;
    const { apartSeconds } = purser.backend.absence;
    await purser.pass(apartSeconds, 1);
    await purser.passes(4, 10, 1);
    await purser.passes(3, 10, 1);
    const { keep } = await purser.now();
    assert.deepEqual([keep.bought_seconds, keep.state], [expected.bought, expected.state]);
    assert.deepEqual(await purser.paid(), [expected.used, '0.00']);
    if (expected.state === 'ended') assert.equal(keep.reason, 'resource_not_active');
    assert.deepEqual(purser.problems(), []);
  });

test('a provider that refuses a step ends the keep, and nothing is charged', async (t) => {
  const purser = await openKept(t);
  await purser.keep();
  await toReading(purser);
  const { backend } = purser.app.slots.list[1] as { backend: { extend: unknown } };
  backend.extend = async () => ({ kind: 'refused', reason: 'no more' });
  await purser.pass(WINDOW, 1);
  const { keep, status } = await purser.now();
  assert.deepEqual([status, keep.state, keep.reason], ['running', 'ended', 'resource_not_active']);
  assert.deepEqual(await purser.paid(), ['0.06', '0.00']);
});

/** Every await of a step at which the process may die. The wrapped call never returns. */
for (const [when, call] of [
  ['before', 'exec'],
  ['after', 'exec'],
  ['before', 'extend'],
  ['after', 'extend'],
] as const)
  test(`dying ${when} ${call} of a step pays it once at most, and buys none that no row knows`, async (t) => {
    const purser = await openKept(t);
    await purser.keep({ max_seconds: 2 * STEP }, 'k');
    await toReading(purser);
    const dead = hold();
    const never = Promise.withResolvers<never>();
    purser.memory[when][call] = () => {
      void dead.wait();
      return never.promise;
    };
    purser.clock.advance(WINDOW);
    purser.memory.cpuSeconds = WINDOW;
    void purser.app.reaper.runOnce().catch(() => {});
    await dead.arrived;
    delete purser.memory[when][call];
    await purser.crash(() => never.reject(new Error('it is dead')));
    const again = await purser.keep({ max_seconds: 2 * STEP }, 'k');
    assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true']);
    for (let i = 0; i < 12; i++) {
      await purser.pass(5, 1);
      const now = await purser.now();
      const [used, held] = await purser.paid();
      const paid = Number(used) + Number(held);
      assert.ok(
        (deadlineOf(purser) ?? purser.end) - purser.end <= Math.round((paid - 0.06) * 10_000),
        'paid or held first',
      );
      assert.equal(now.expires_at - purser.end, now.keep.bought_seconds);
    }
    await purser.passes(20, 10, 1);
    const { keep, purchased_seconds: purchased, end_reason: reason } = await purser.now();
    const released = when === 'before' && call === 'extend';
    assert.deepEqual(
      [keep.bought_seconds, keep.reason, purchased, reason],
      released
        ? [0, 'resource_not_active', 600, 'lease_expired']
        : [2 * STEP, 'max_seconds', 600 + 2 * STEP, 'lease_expired'],
    );
    assert.deepEqual(await purser.paid(), [released ? '0.06' : '0.072', '0.00']);
    assert.equal(purser.memory.machines.size, 0);
    assert.deepEqual(purser.problems(), []);
  });

test('a keep survives a restart, and measures anew', async (t) => {
  const purser = await openKept(t);
  await purser.keep({}, 'k');
  await toReading(purser);
  await purser.pass(WINDOW, 1);
  await purser.reopen();
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(STEP, 1); // A first reading again: nothing to compare with.
  assert.equal((await purser.now()).keep.bought_seconds, STEP);
  await purser.pass(10, 1);
  assert.equal((await purser.now()).keep.bought_seconds, 2 * STEP);
});

test('an outcome of the operator is the outcome of the step', async (t) => {
  for (const decision of ['charge', 'release'] as const) {
    const purser = await openKept(t);
    await purser.keep();
    await toReading(purser);
    purser.memory[decision === 'charge' ? 'after' : 'before'].extend = () => {
      throw new Error('the line died');
    };
    purser.memory.readable = false;
    await purser.pass(WINDOW, 1);
    const { operations } = await purser.run('operation.list', { uncertain: true });
    const id = operations[0]?.id as string;
    await purser.run('operation.resolve', { id, decision, reason: 'the console says so' });
    purser.memory.after = {};
    purser.memory.before = {};
    await purser.pass(1, 1);
    const { keep } = await purser.now();
    assert.deepEqual(
      [keep.state, keep.bought_seconds],
      decision === 'charge' ? ['active', STEP] : ['ended', 0],
      decision,
    );
    assert.deepEqual(purser.problems(), []);
  }
});
