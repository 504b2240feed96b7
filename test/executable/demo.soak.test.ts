import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { leftOf } from '../demo/left.ts';
import { until } from '../helper/waiting.ts';
import { place, startServing } from './demo-shared.ts';

for (const [what, signal, moment] of [
  ['Ctrl-C', 'SIGINT', 'Purser is serving'],
  ['Ctrl-C', 'SIGINT', 'It runs a command'],
  ['Ctrl-C', 'SIGINT', 'Plain ssh'],
  ['its terminal’s end', 'SIGHUP', 'It runs a command'],
] as const)
  test(`${what} after ${JSON.stringify(moment)} leaves neither a process nor a file, and is no success`, async (t) => {
    const { directory, start } = place(t);
    const demo = start('--once');
    await demo.printed(moment);
    demo.child.kill(signal);
    const ended = await demo.ended;
    assert.deepEqual([ended.signal, demo.output.stderr], [null, '']);
    // Where it had come to its end before it heard of it, every figure was looked at.
    assert.equal(ended.code, /^Every figure is what/m.test(demo.output.stdout) ? 0 : 1, demo.output.stdout);
    assert.deepEqual(leftOf(directory), []);
  });

test('the leases of a demo that was killed end with it', async (t) => {
  const { directory, demo, rent } = await startServing(t);
  await rent('provider_two', { chip: 'demo-chip' });
  await rent('provider_three', { offer_id: 'small', disk_gb: 1 });
  demo.child.kill('SIGKILL');
  await demo.ended;
  const [data = ''] = readdirSync(directory);
  await until('no process of it is left', async () => leftOf(directory).length === 1);
  assert.deepEqual(readdirSync(join(directory, data, 'leases')), []);
});
