import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { collectWhenIdle } from '../../src/base/idle-memory.ts';

const CHECK_MILLISECONDS = 30_000;

/** A thread with simulated work. `passes` runs one check after another, each after its share of work. */
function thread(t: TestContext) {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const collect = t.mock.fn<(options: NodeJS.GCOptions) => void>();
  let active = 0;
  let idle = 0;
  const utilization = (now = { active, idle, utilization: 0 }, before?: { active: number; idle: number }) => {
    const [worked, rested] = [now.active - (before?.active ?? 0), now.idle - (before?.idle ?? 0)];
    return { active: worked, idle: rested, utilization: worked / (worked + rested) };
  };
  const passes = (...shares: number[]) => {
    for (const share of shares) {
      active += share * CHECK_MILLISECONDS;
      idle += (1 - share) * CHECK_MILLISECONDS;
      t.mock.timers.tick(CHECK_MILLISECONDS);
    }
    return collect.mock.callCount();
  };
  const collected = t.mock.fn();
  const works = (milliseconds: number) => {
    active += milliseconds;
  };
  return {
    works,
    options: { utilization, collect: collect as unknown as NodeJS.GCFunction },
    collect,
    collected,
    passes,
  };
}

test('a thread collects once after its start, when it is idle', (t) => {
  const { options, collect, collected, passes } = thread(t);
  using _collecting = collectWhenIdle(collected, options);
  assert.equal(passes(0.3), 0, 'it still works');
  assert.equal(passes(0.001), 1);
  assert.deepEqual(collect.mock.calls[0]?.arguments, [{ type: 'major', execution: 'sync', flavor: 'last-resort' }]);
  assert.equal(collected.mock.callCount(), 1);
  assert.equal(passes(0.001, 0.019, 0.001), 1, 'timers and probes do not make it busy');
});

test('after each burst a thread collects again, and not within it', (t) => {
  const { options, collected, passes } = thread(t);
  using _collecting = collectWhenIdle(collected, options);
  passes(0);
  assert.equal(passes(0.8, 0.03, 0.9), 1);
  assert.equal(passes(0), 2);
  assert.equal(passes(0.5, 0), 3);
});

test('a long collection is no work that another one follows', (t) => {
  const { options, collect, collected, passes, works } = thread(t);
  collect.mock.mockImplementation(() => works(700));
  using _collecting = collectWhenIdle(collected, options);
  assert.equal(passes(0.3, 0.001), 1);
  assert.equal(passes(0.001, 0.001, 0.001), 1);
});

test('a thread that was disposed of collects no more', (t) => {
  const { options, collected, passes } = thread(t);
  collectWhenIdle(collected, options)[Symbol.dispose]();
  assert.equal(passes(0.5, 0), 0);
});

test('where V8 lets nobody collect, nothing is looked at', (t) => {
  const { collected, passes } = thread(t);
  using _collecting = collectWhenIdle(collected, { utilization: () => assert.fail('a reading'), collect: undefined });
  assert.equal(passes(0.5, 0), 0);
});
