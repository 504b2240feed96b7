import assert from 'node:assert/strict';
import { PassThrough, Writable } from 'node:stream';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { collectGarbage } from '../helper/garbage.ts';
import { startProcess } from './processes-shared.ts';

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
  const program = await startProcess({ session, exec: async () => ({}) as never }, ['cat']);
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
