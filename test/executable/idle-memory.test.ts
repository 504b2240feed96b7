import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { installation } from '../helper/executable.ts';

/** The private memory of a process, in MB. */
const megabytes = (pid: number) =>
  (Number(/^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024) / 1e6;

test('an idle server gives back what its start took', async (t) => {
  const { pid, logged } = await installation(t, { settings: { log_level: 'debug' } }).serve();
  const started = megabytes(pid);
  await logged('memory.collected');
  const idle = megabytes(pid);
  t.diagnostic(`${started.toFixed(1)} MB when it served, ${idle.toFixed(1)} MB when idle`);
  assert.ok(idle < started * 0.9, `${idle.toFixed(1)} MB of ${started.toFixed(1)}`);
});
