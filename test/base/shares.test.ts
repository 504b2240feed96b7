import assert from 'node:assert/strict';
import test from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { createKept, createShares } from '../../src/base/shares.ts';
import { createInFlight } from '../../src/spend/in-flight.ts';

/** Takes one after the other, and returns how many succeeded. */
function fill(tryTake: () => boolean, max = 100_000): number {
  let count = 0;
  while (count < max && tryTake()) count++;
  return count;
}

test('one owner has no more than his share, and whoever comes later has one as well', () => {
  const shares = createShares({ each: 20, all: 100 });
  const of = (owner: string) => fill(() => shares.tryTake(owner, 1));
  for (let i = 0; i < 5; i++) assert.equal(of(`greedy ${i}`), 20);
  assert.equal(of('late'), 16, 'an even share of six');
  shares.release('late', 16);
  assert.equal(of('other'), 16);
  for (let i = 0; i < 90; i++) assert(of(`more ${i}`) >= 1, `${i}`);
  shares.release('greedy 0', 1000);
  assert(shares.tryTake('greedy 0', 1), 'no more is given back than was taken');
});

test('what one owner keeps pushes out his own, and then that of whoever has most', () => {
  const dropped: string[] = [];
  const kept = createKept<string>({ each: 5, all: 12 }, (it) => dropped.push(it));
  kept.keep('victim', 'victim 0');
  for (let i = 0; i < 100; i++) kept.keep('one', `one ${i}`);
  assert.deepEqual([kept.count(), dropped.length, dropped[0]], [6, 95, 'one 0']);
  for (let i = 0; i < 100; i++) kept.keep('two', `two ${i}`);
  for (let i = 0; i < 100; i++) kept.keep('three', `three ${i}`);
  assert.equal(kept.count(), 12);
  assert(!dropped.includes('victim 0'));
  kept.keep('one', 'one 99');
  kept.drop('one', 'one 99');
  kept.drop('one', 'one 99');
  kept.drop('nobody', 'one 98');
  assert.equal(kept.count(), 11);
});

test('wallets of one tree share what may be in flight, and the others are served', async () => {
  const treeOf = (walletId: string) => walletId.split('.')[0] as string;
  const inFlight = createInFlight(64, treeOf);
  const end = Promise.withResolvers<void>();
  let key = 0;
  const drive = (walletId: string) => {
    const asked = { walletId, route: '/', idempotencyKey: String(key++), fingerprint: Buffer.alloc(1) };
    return inFlight.drive(asked, () => end.promise);
  };
  const running: Promise<void>[] = [];
  const isRefused = (error: unknown) => error instanceof Refusal && error.code === 'rate_limited';
  for (let i = 0; i < 16; i++) running.push(drive(`tree.${i}`));
  await assert.rejects(drive('tree.16'), isRefused);
  for (const other of ['b', 'c', 'd', 'e', 'f']) for (let i = 0; i < 5; i++) running.push(drive(`${other}.${i}`));
  assert.equal(inFlight.count(), 41);
  end.resolve();
  await Promise.all(running);
  running.push(drive('tree.17'));
  await Promise.all(running);
});
