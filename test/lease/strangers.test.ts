import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import type { Owned } from '../../src/compute/backend.ts';
import { LONG, openMemoryHouse } from './leases.ts';

/** The reaper sweeps once in so many seconds. */
const SWEEP_SECONDS = 61;

/** A house with one lease, and jobs of its user that are none of its own: as old as these seconds. */
async function openWithStrangers(t: TestContext, ages: number[], mayEnd: boolean) {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  await house.rent(token);
  const made = Math.floor(house.clock.wall() / 1000);
  const others = ages.map((age, at): Owned => ({ ref: `${at}`, tag: 'wrap', state: 'running', createdAt: made - age }));
  const ended: string[] = [];
  const end = async (ref: string) => {
    ended.push(ref);
    others.splice(
      others.findIndex((it) => it.ref === ref),
      1,
    );
  };
  Object.assign(house.backend, { strangers: { list: async () => [...others], ...(mayEnd ? { end } : {}) } });
  const orphans = async (apply: boolean) =>
    (await house.run('resource.reconcile', { apply })).orphans.map(({ ref, tag, destroyed }) => [ref, tag, destroyed]);
  return { house, ended, orphans };
}

test('what runs as our user and no row knows is shown by reconcile, and not ended', async (t) => {
  const { house, orphans } = await openWithStrangers(t, [10, 1000], false);
  const shown = [
    ['0', 'wrap', false],
    ['1', 'wrap', false],
  ];
  assert.deepEqual(await orphans(false), shown);
  assert.deepEqual(await orphans(true), shown.slice(1), 'older than the grace');
  house.clock.advance(SWEEP_SECONDS);
  assert.equal((await house.app.reaper.runOnce()).orphans, 0);
  assert.deepEqual(await orphans(false), shown);
  assert.equal((await house.machines()).length, 1);
});

test('with a user that is exclusive it is ended after the grace, ten in a pass, and the leases live on', async (t) => {
  const { house, ended, orphans } = await openWithStrangers(t, [10, ...Array(12).fill(1000)], true);
  assert.equal((await orphans(false)).filter(([, , destroyed]) => destroyed).length, 0);
  house.clock.advance(SWEEP_SECONDS);
  assert.equal((await house.app.reaper.runOnce()).orphans, 10);
  assert.equal(ended.includes('0'), false, 'it is too young');
  const rest = await orphans(true);
  assert.deepEqual(
    rest.map(([, , destroyed]) => destroyed),
    [true, true],
  );
  house.clock.advance(400);
  assert.equal((await house.app.reaper.runOnce()).orphans, 1);
  assert.deepEqual([ended.length, ended.at(-1)], [13, '0']);
  assert.equal((await house.machines()).length, 1);
});
