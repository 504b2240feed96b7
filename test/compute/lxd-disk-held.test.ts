import assert from 'node:assert/strict';
import test from 'node:test';
import { bytesHeld } from '../../src/compute/engines/lxd/disk-held.ts';
import { createRandom, length, SEED } from '../helper/random.ts';

const MEBIBYTE = 1024 ** 2;
const MARGIN = 64 * MEBIBYTE;

/** Asks for the size of what holds so many bytes. */
async function sizeOf(held: number, counted: number, bytesMax: number) {
  const tried: number[] = [];
  const bytes = await bytesHeld(counted, bytesMax, async (size) => {
    tried.push(size);
    return held <= size;
  });
  return { bytes, tried };
}

test('what holds not much more than its files is as large as these, and tried once', async () => {
  for (const held of [0, 5 * MEBIBYTE, 5 * MEBIBYTE + MARGIN])
    assert.deepEqual(await sizeOf(held, 5 * MEBIBYTE, 1024 * MEBIBYTE), {
      bytes: 5 * MEBIBYTE,
      tried: [5 * MEBIBYTE + MARGIN],
    });
  // Also where the files have nearly all that there may be.
  assert.equal((await sizeOf(1024 * MEBIBYTE, 1000 * MEBIBYTE, 1024 * MEBIBYTE)).bytes, 1000 * MEBIBYTE);
});

test('what holds more than there may be has no size', async () => {
  for (const counted of [0, 1000 * MEBIBYTE])
    assert.equal((await sizeOf(2000 * MEBIBYTE, counted, 1024 * MEBIBYTE)).bytes, Number.POSITIVE_INFINITY);
});

const COUNT = length(200, 20_000);
test(`a size is at most an eighth too high, and less than the margin too low (PURSER_TEST_SEED=${SEED})`, async () => {
  const random = createRandom(SEED);
  for (let nth = 0; nth < COUNT; nth++) {
    const bytesMax = 2 ** random.whole(20, 43);
    const counted = random.whole(0, bytesMax);
    const held = random.whole(0, bytesMax);
    const { bytes, tried } = await sizeOf(held, counted, bytesMax);
    const at = `${held} are held, ${counted} counted, at most ${bytesMax}: ${bytes}, tried ${tried}`;
    assert.ok(bytes >= held - MARGIN && bytes <= bytesMax, at);
    assert.ok(bytes === counted || bytes <= (held * 9) / 8, at);
    assert.ok(tried.length <= 11, at);
  }
});
