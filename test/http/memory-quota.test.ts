import assert from 'node:assert/strict';
import test from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { type Allowance, createMemoryQuota } from '../../src/http/memory-quota.ts';

const MIB = 1024 * 1024;

/** Takes a MiB after the other, and answers how many there was room for. */
function fill(room: Allowance, max = 1000): number {
  for (let taken = 0; taken < max; taken++)
    try {
      room.take(MIB);
    } catch (error) {
      assert(error instanceof Refusal && error.code === 'rate_limited' && error.retryAfterSeconds === 2);
      return taken;
    }
  return max;
}

test('a caller has a bound, over all of its requests, and what is done leaves room', () => {
  const held = createMemoryQuota();
  const [one, two] = [held.open('a'), held.open('a')];
  assert.equal(fill(one, 40), 40);
  assert.equal(fill(two), 24);
  assert.equal(fill(held.open('b')), 64, 'another caller has its own');
  one.close();
  one.close();
  assert.equal(fill(two), 40);
});

test('what is refused takes no room', () => {
  const held = createMemoryQuota();
  const room = held.open('a');
  assert.throws(() => room.take(65 * MIB));
  assert.equal(fill(room), 64);
});

test('an answer is never refused, and the next body is', () => {
  const held = createMemoryQuota();
  const room = held.open('a');
  room.add(200 * MIB);
  assert.equal(fill(held.open('a')), 0);
  room.close();
  assert.equal(fill(held.open('a')), 64);
});

test('few who fill it all do not shut out the others, and the whole stays bounded', () => {
  const held = createMemoryQuota();
  for (const name of ['a', 'b', 'c', 'd']) assert.equal(fill(held.open(name)), 64, name);
  assert.equal(fill(held.open('e')), 51, 'a fifth of 256');
  let all = 256 + 51;
  for (let i = 0; i < 100; i++) {
    const taken = fill(held.open(`more ${i}`));
    assert(taken >= 2, `caller ${i}: ${taken}`);
    all += taken;
    if (i > 20) assert.equal(taken, Math.floor(256 / (6 + i)));
  }
  assert(all < 256 * 5, `${all} MiB`);
});

test('thousands of small ones are never refused for the sake of a few large ones', () => {
  const held = createMemoryQuota();
  for (const name of ['a', 'b', 'c', 'd']) fill(held.open(name));
  for (let i = 0; i < 4000; i++) held.open(`small ${i}`).take(50_000);
});

test('what is tried and refused, and what is let go of in parts, is counted exactly', () => {
  const held = createMemoryQuota();
  const room = held.open('a');
  assert(room.tryTake(60 * MIB));
  assert(!room.tryTake(5 * MIB));
  room.release(10 * MIB);
  assert.equal(fill(held.open('a')), 14);
  room.release(100 * MIB);
  room.close();
  assert.equal(fill(held.open('a')), 50, 'no more is let go of than was taken');
});
