import assert from 'node:assert/strict';
import { PassThrough, Writable } from 'node:stream';
import test from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Backend } from '../../src/compute/backend.ts';
import { type Content, storeFile, storeTree } from '../../src/compute/machine/streamed.ts';
import { collectGarbage } from '../helper/garbage.ts';
import { END, member } from '../http/trees-shared.ts';

// An upload passes through as it comes: its memory is that of one piece, however many there are.

const PIECE_BYTES = 64 * 1024;
const PIECE_COUNT = 512;
const HELD_BYTES_MAX = 4 * 1024 * 1024;
const take = () => true;
const confirm = () => {};

/** A machine that says `words` after the first word of a text, drops all of its input, and says `last` at its end. */
function dropping(words: string, last: string): Backend {
  const [stdout, stderr] = [new PassThrough(), new PassThrough().end()];
  const ended = Promise.withResolvers<{ code: number }>();
  let isFirst = true;
  const stdin = new Writable({
    highWaterMark: 1, // Each write waits until it is taken.
    write(piece: Buffer, _, done) {
      if (isFirst) stdout.write(`${piece.toString('latin1').split(' ', 1)[0]} ${words}`);
      isFirst = false;
      setImmediate(done);
    },
    final(done) {
      stdout.end(last);
      ended.resolve({ code: 0 });
      done();
    },
  });
  const session = async () => ({ stdin, stdout, stderr, ended: ended.promise, resize() {}, kill() {} });
  return { guest: { session } } as unknown as Backend;
}

/** Pieces of a content, and how many bytes were held at its end. */
function piecesOf(before: Buffer, after: Buffer) {
  const first = process.memoryUsage().arrayBuffers;
  let count = 0;
  const seen = { bytes: Number.NaN };
  const content: Content = {
    async next() {
      count += 1;
      if (count === 1 && before.length) return before;
      if (count <= PIECE_COUNT + 1) return Buffer.alloc(PIECE_BYTES, count);
      if (count === PIECE_COUNT + 2 && after.length) return after;
      await turn();
      for (let i = 0; i < 2; i++) collectGarbage(); // The memory of a buffer is given back by the next collection at the latest.
      seen.bytes = process.memoryUsage().arrayBuffers - first;
      return undefined;
    },
  };
  return { content, seen };
}

const NONE = Buffer.alloc(0);

test('a file that is uploaded is held no longer than until it is passed on', async () => {
  const { content, seen } = piecesOf(NONE, NONE);
  const stored = await storeFile(dropping('ok\n', ''), 'ref', { path: 'file', content, confirm });
  assert.equal(stored.bytes, (PIECE_COUNT + 1) * PIECE_BYTES);
  assert(seen.bytes < HELD_BYTES_MAX, `${seen.bytes} bytes held`);
});

test('a tree that is uploaded is held no longer than until it is passed on', async () => {
  const size = PIECE_COUNT * PIECE_BYTES;
  const { content, seen } = piecesOf(member({ name: 'large', size }), END);
  const order = { path: 'tree', content, confirm, take };
  const { entries } = await storeTree(dropping('ok 0 0 /work/tree\n//\n', 'whole\n'), 'ref', order);
  assert.equal(entries, 1);
  assert(seen.bytes < HELD_BYTES_MAX, `${seen.bytes} bytes held`);
});
