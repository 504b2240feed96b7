import assert from 'node:assert/strict';
import test from 'node:test';
import { createRecent } from '../../src/compute/kit/recent.ts';

test('an engine is asked once for all who ask within seconds, and again when something changed', async () => {
  let count = 0;
  const it = createRecent(async () => ++count);
  assert.deepEqual(await Promise.all([it.get(), it.get(), it.get()]), [1, 1, 1]);
  assert.equal(await it.get(), 1);
  it.forget();
  assert.equal(await it.get(), 2);
});

test('an engine that fails has said nothing, and is not asked again at once', async () => {
  let count = 0;
  const it = createRecent(() => {
    count++;
    return Promise.reject(new Error('down'));
  });
  assert.deepEqual([await it.get(), await it.get(), count], [undefined, undefined, 1]);
});

test('an engine that hangs holds nobody up, is asked no second time, and its answer counts when it comes', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const answer = Promise.withResolvers<string>();
  let count = 0;
  const it = createRecent(() => {
    count++;
    return answer.promise;
  });
  for (let i = 0; i < 3; i++) {
    const got = it.get();
    await Promise.resolve();
    t.mock.timers.tick(2000);
    assert.equal(await got, undefined);
  }
  answer.resolve('free');
  assert.deepEqual([await it.get(), count], ['free', 1]);
});

test('where an engine is slow, its last answer counts for some seconds, but not after a change', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let milliseconds = 0;
  t.mock.method(performance, 'now', () => milliseconds);
  const never = new Promise<string>(() => {});
  const answers = [Promise.resolve('free'), never, never];
  const it = createRecent(() => answers.shift() as Promise<string>);
  const late = async () => {
    const got = it.get();
    await Promise.resolve();
    t.mock.timers.tick(2000);
    return got;
  };
  assert.equal(await it.get(), 'free');
  milliseconds = 14_000;
  assert.equal(await late(), 'free');
  milliseconds = 15_000;
  assert.equal(await late(), undefined);
  milliseconds = 14_000;
  it.forget();
  assert.equal(await late(), undefined);
});

test('who has more time waits longer for a slow engine', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const answer = Promise.withResolvers<string>();
  const it = createRecent(() => answer.promise);
  const got = it.get(20_000);
  t.mock.timers.tick(19_000);
  answer.resolve('free');
  assert.equal(await got, 'free');
});
