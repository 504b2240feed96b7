import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { contained, followFaults, reportFault } from '../../src/base/fault.ts';

test('what a listener or a timer throws or rejects is told to whoever follows faults, and then what it was for is ended', async () => {
  const heard: string[] = [];
  using _ = followFaults((where, error) => void heard.push(`${where}: ${(error as Error).message}`));
  using __ = followFaults(() => {
    throw new Error('a follower of its own');
  });
  const over = (name: string) => void heard.push(`${name} is over`);
  contained(
    'timer',
    (_: string) => {
      throw new Error('thrown');
    },
    over,
  )('one');
  contained('request', async (_: string) => Promise.reject(new Error('rejected')), over)('two');
  contained('request', async (_: string) => {}, over)('three');
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(heard, ['timer: thrown', 'one is over', 'request: rejected', 'two is over']);
  reportFault('process', new Error('last'));
  assert.equal(heard.at(-1), 'process: last');
});

test('an exception and a rejection that nothing has caught do not end a process with the last net, and without it they do', () => {
  const run = (isContained: boolean) => {
    const source = `
      import { containProcess, followFaults } from '../../src/base/fault.ts';
      followFaults((where, error) => console.log(where, error.message));
      ${isContained ? 'containProcess();' : ''}
      setImmediate(() => { throw new Error('thrown'); });
      setImmediate(() => void Promise.reject(new Error('rejected')));
      setImmediate(() => setImmediate(() => setImmediate(() => console.log('still here'))));`;
    const options = { cwd: `${import.meta.dirname}`, encoding: 'utf8' } as const;
    return spawnSync(process.execPath, ['--input-type=module-typescript', '--eval', source], options);
  };
  const { status, stdout } = run(true);
  assert.deepEqual([status, stdout], [0, 'process thrown\nprocess rejected\nstill here\n']);
  assert.notEqual(run(false).status, 0);
});
