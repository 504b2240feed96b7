import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import test from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { createTranscript, readTranscript } from '../../src/router/transcript.ts';
import { collectGarbage } from '../helper/garbage.ts';

const MIB = 1024 * 1024;

test('a transcript holds no more memory than its packed bytes take, and comes back whole', async () => {
  const transcript = createTranscript();
  const piece = Buffer.alloc(64 * 1024, 'the same again, ');
  const count = 1600;
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < count; i++) transcript.push(piece);
  // Twice: what zlib has closed is garbage only a turn later.
  for (let turn = 0; turn < 2; turn++) {
    await setImmediate();
    collectGarbage();
  }
  const held = process.memoryUsage().arrayBuffers - before;
  const packed = transcript.finish();
  assert(packed && packed.length < MIB, `${packed?.length} bytes packed`);
  assert(held < 4 * MIB, `${held} bytes held`);
  const [came, expected] = [createHash('sha256'), createHash('sha256')];
  for await (const part of readTranscript(packed)) came.update(part);
  for (let i = 0; i < count; i++) expected.update(piece);
  assert.equal(came.digest('hex'), expected.digest('hex'));
});
