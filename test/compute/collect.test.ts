import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { collect, collectBoth } from '../../src/compute/machine/collect.ts';

const unwanted = () => new AbortController();

test('what is said in pieces of any size is kept up to its limit, and the rest is read', async () => {
  for (const [sizes, bytesMax] of [
    [[1, 2, 3, 70_000, 1], 80_000],
    [Array(9000).fill(1), 9000],
    [Array(9000).fill(1), 8999],
    [[200_000], 100_000],
    [[], 10],
  ] as const) {
    const said = Buffer.concat(sizes.map((size, i) => Buffer.alloc(size, i)));
    const stream = new PassThrough({ highWaterMark: 1024 * 1024 });
    for (const [i, size] of sizes.entries()) stream.write(Buffer.alloc(size, i));
    stream.end();
    const { bytes, truncated } = await collect(stream, bytesMax);
    assert(bytes.equals(said.subarray(0, bytesMax)));
    assert.equal(truncated, said.length > bytesMax);
  }
});

test('a stream for which there is no room is cut there, and the other one goes on', async () => {
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  const take = (piece: Buffer) => !piece.includes('no room');
  const said = collectBoth(stdout, stderr, { streamBytesMax: 100, budget: { take, unwanted: unwanted().signal } });
  for (const it of ['one ', 'no room', 'two']) {
    stdout.write(it);
    await new Promise(setImmediate);
  }
  stdout.end();
  stderr.end('whole');
  const { stdoutTruncated, stderrTruncated, ...texts } = await said;
  assert.deepEqual([String(texts.stdout), stdoutTruncated], ['one ', true]);
  assert.deepEqual([String(texts.stderr), stderrTruncated], ['whole', false]);
});

test('output that nobody waits for any more is let go while the command goes on', async () => {
  const stream = new PassThrough();
  const gone = unwanted();
  const take = () => !gone.signal.aborted;
  const said = collect(stream, 100, { take, unwanted: gone.signal });
  stream.write('before');
  await new Promise(setImmediate);
  gone.abort();
  stream.end('after');
  assert.deepEqual(await said, { bytes: Buffer.alloc(0), truncated: true });
});
