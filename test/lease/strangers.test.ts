import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import type { Owned } from '../../src/compute/backend.ts';
import { LONG, openMemoryServer } from './leases.ts';

/** The reaper sweeps once in so many seconds. */
const SWEEP_SECONDS = 61;

/** A purser with one lease, and jobs of its user that are none of its own: as old as these seconds. */
async function openWithStrangers(t: TestContext, ages: number[], mayEnd: boolean) {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  await purser.rent(token);
  const made = Math.floor(purser.clock.wall() / 1000);
  const others = ages.map((age, at): Owned => ({ ref: `${at}`, tag: 'wrap', state: 'running', createdAt: made - age }));
  const ended: string[] = [];
  const end = async (ref: string) => {
    ended.push(ref);
    others.splice(
      others.findIndex((it) => it.ref === ref),
      1,
    );
  };
  Object.assign(purser.backend, { strangers: { list: async () => [...others], ...(mayEnd ? { end } : {}) } });
  const orphans = async (apply: boolean) =>
    (await purser.run('resource.reconcile', { apply })).orphans.map(({ ref, tag, destroyed }) => [ref, tag, destroyed]);
  return { purser, ended, orphans };
}

test('what runs as our user and no row knows is shown by reconcile, and not ended', async (t) => {
  const { purser, orphans } = await openWithStrangers(t, [10, 1000], false);
  const shown = [
    ['0', 'wrap', false],
    ['1', 'wrap', false],
  ];
  assert.deepEqual(await orphans(false), shown);
  assert.deepEqual(await orphans(true), shown, 'the one within the grace, too');
  purser.clock.advance(SWEEP_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 0);
  assert.deepEqual(await orphans(false), shown);
  assert.equal((await purser.machines()).length, 1);
});

test('with a user that is exclusive it is ended after the grace, ten in a pass, and the leases live on', async (t) => {
  const { purser, ended, orphans } = await openWithStrangers(t, [10, ...Array(12).fill(1000)], true);
  assert.equal((await orphans(false)).filter(([, , destroyed]) => destroyed).length, 0);
  purser.clock.advance(SWEEP_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 10);
  assert.equal(ended.includes('0'), false, 'it is too young');
  const rest = await orphans(true);
  assert.deepEqual(
    rest.map(([, , destroyed]) => destroyed),
    [false, true, true],
  );
  purser.clock.advance(400);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 1);
  assert.deepEqual([ended.length, ended.at(-1)], [13, '0']);
  assert.equal((await purser.machines()).length, 1);
});
