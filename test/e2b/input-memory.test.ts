import assert from 'node:assert/strict';
import { PassThrough, Writable } from 'node:stream';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Ref } from '../../src/compute/backend.ts';
import { createProcesses } from '../../src/http/e2b/processes.ts';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';
import { collectGarbage } from '../helper/garbage.ts';

const WRITE_COUNT = 20_000;
/** Of anything that were kept for each write there is more than this. */
const WRITE_BYTES_MAX = 100;

/** A machine whose program reads each write a turn later. */
async function session() {
  const [stdout, stderr] = [new PassThrough(), new PassThrough().end()];
  let isFirst = true;
  const stdin = new Writable({
    highWaterMark: 1,
    write(piece: Buffer, _, done) {
      if (isFirst) stdout.write(`${piece.toString('latin1').split(' ', 1)[0]} pid 7\n`);
      isFirst = false;
      setImmediate(done);
    },
  });
  const { promise: ended, resolve } = Promise.withResolvers<{ code: number }>();
  return { stdin, stdout, stderr, ended, resize() {}, kill: () => resolve({ code: 137 }) };
}

async function heapBytes(): Promise<number> {
  await turn();
  collectGarbage();
  return process.memoryUsage().heapUsed;
}

test('input that was read leaves nothing behind while its program goes on', async () => {
  const processes = createProcesses({
    activity: { begin: () => () => {} },
    memory: createMemoryQuota(),
    tenantOf: () => ({ treeId: 'a' }),
    stallMilliseconds: 60_000,
  } as never);
  const { process: program } = await processes.start(
    {
      resource: { id: 'r', walletId: 'w' } as never,
      backend: { guest: { session, exec: async () => ({}) } } as never,
      ref: 'machine' as Ref,
    },
    {
      argv: ['cat'],
      ...{ env: {}, cwd: undefined, hasInput: true, seconds: 60 },
      ...{ terminal: undefined, tag: undefined, limit: undefined },
    },
    () => undefined,
  );
  const write = async (count: number) => {
    for (let at = 0; at < count; at++) await program.write(Buffer.of(at));
    return heapBytes();
  };
  const before = await write(1000);
  const each = ((await write(WRITE_COUNT)) - before) / WRITE_COUNT;
  program.kill();
  await program.ended;
  assert(each < WRITE_BYTES_MAX, `${each} bytes of each write`);
});
