import assert from 'node:assert/strict';
import test from 'node:test';
import { anonymousMegabytes } from '../../bench/process.ts';
import { installation } from '../helper/executable.ts';

test('an idle server gives back what its start took', async (t) => {
  const { pid, logged } = await installation(t, { settings: { log_level: 'debug' } }).serve();
  const started = anonymousMegabytes(pid);
  await logged('memory.collected');
  const idle = anonymousMegabytes(pid);
  t.diagnostic(`${started.toFixed(1)} MB when it served, ${idle.toFixed(1)} MB when idle`);
  assert.ok(idle < started * 0.9, `${idle.toFixed(1)} MB of ${started.toFixed(1)}`);
});
