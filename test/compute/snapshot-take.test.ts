import assert from 'node:assert/strict';
import test from 'node:test';
import { createTake, notTaken } from '../../src/compute/kit/snapshots.ts';

class Answer extends Error {}
const REF = 'machine';
const ORDER = { ref: REF, tag: 'tag', isRunning: true, bytesMax: 1 };

/** A take on an engine that fails at these of its calls with an error, and the calls in order. */
function takeThatFailsAt(failures: Partial<Record<'stop' | 'copy' | 'continue', Error>>) {
  const calls: string[] = [];
  const call = (what: string): 0 => {
    calls.push(what);
    const failure = failures[what as 'copy'];
    if (failure) throw failure;
    return 0;
  };
  const { take } = createTake({
    signals: { signal: async (_, what) => call(what), look: async () => 0 },
    whyNot: async () => undefined,
    async keep(_, whileStopped) {
      await whileStopped(async () => call('copy'));
      return { kind: 'taken', bytes: 1 };
    },
    remove: async () => void call('remove'),
    isAnswer: (error) => error instanceof Answer,
    textOf: String,
  });
  return { calls, take: () => take(ORDER) };
}

test('what a take copies is removed where it cannot tell that the processes go on', async () => {
  const { calls, take } = takeThatFailsAt({ continue: new Error('killed by the tenant') });
  await assert.rejects(take(), /killed by the tenant/);
  assert.deepEqual(calls, ['stop', 'copy', 'continue', 'remove']);
});

test('a take that is refused removes what it may have made, and lets the processes go on', async () => {
  const { calls, take } = takeThatFailsAt({ copy: new Answer('no') });
  assert.deepEqual(await take(), notTaken('The provider refused the snapshot', 'Error: no'));
  assert.deepEqual(calls, ['stop', 'copy', 'remove', 'continue']);
});

test('a take whose outcome is unknown removes nothing, and lets the processes go on', async () => {
  const { calls, take } = takeThatFailsAt({ copy: new Error('cut off') });
  await assert.rejects(take(), /cut off/);
  assert.deepEqual(calls, ['stop', 'copy', 'continue']);
});

test('of a take that is refused while the processes stand still nothing is left, and its outcome is unknown', async () => {
  const { calls, take } = takeThatFailsAt({ stop: new Answer('no'), continue: new Answer('no') });
  await assert.rejects(take(), Answer);
  assert.deepEqual(calls, ['stop', 'remove', 'continue']);
});
