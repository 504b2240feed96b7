import assert from 'node:assert/strict';
import { syncBuiltinESMExports } from 'node:module';
import { Duplex } from 'node:stream';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { beginEgress } from '../../src/compute/engines/container/program.ts';
import { collectGarbage } from '../helper/garbage.ts';

const LOOK_COUNT = 5000;
/** Of anything that were kept for each look there is more than this. */
const LOOK_BYTES_MAX = 100;

test('a program that runs for weeks is looked at each second, and nothing is kept of that', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  syncBuiltinESMExports(); // Also those that were imported by their names.
  t.after(() => {
    t.mock.timers.reset();
    syncBuiltinESMExports();
  });
  let looks = 0;
  let isRunning = true;
  const stream = new Duplex({ read() {}, write: (_bytes, _, done) => done() });
  const exec = {
    start: async () => stream,
    async inspect() {
      looks += 1;
      return { Running: isRunning, ExitCode: isRunning ? null : 0 };
    },
  };
  const engine = {
    docker: { getContainer: () => ({ exec: async () => exec }) },
    ask: (_: string, call: () => unknown) => call(),
  };
  await beginEgress(engine as never, 'ref', '/watchdog');
  async function heapAfter(count: number): Promise<number> {
    for (const end = looks + count; looks < end; await turn()) t.mock.timers.tick(1000);
    collectGarbage();
    return process.memoryUsage().heapUsed;
  }
  const before = await heapAfter(1000);
  const each = ((await heapAfter(LOOK_COUNT)) - before) / LOOK_COUNT;
  isRunning = false;
  stream.push(null);
  await heapAfter(1);
  assert(each < LOOK_BYTES_MAX, `${each} bytes of each look`);
});
