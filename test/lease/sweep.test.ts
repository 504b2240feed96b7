import assert from 'node:assert/strict';
import test from 'node:test';
import { tagOf } from '../../src/compute/backend.ts';
import { LONG, openMemoryServer } from './leases.ts';

/** The reaper sweeps once in so many seconds. */
const SWEEP_SECONDS = 61;
const KILL_COUNT_MAX = 10;

test('a sweep ends each machine of ours that no live row knows, and spares all others', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { machines } = purser.memory;
  const rent = async () => (await purser.lease(token)).body.id as string;
  const refOf = (id: string) =>
    [...machines.values()].find((it) => it.tag === tagOf(purser.app.installationId, id))?.ref;
  const live = await rent();
  const over = await rent();
  const kept = refOf(live) as string;
  const back = { ...(machines.get(refOf(over) as string) as NonNullable<ReturnType<typeof machines.get>>) };
  assert.equal((await purser.stop(token, over)).body.status, 'stopped');
  const made = (age: number) => Math.floor(purser.clock.wall() / 1000) - age;
  const put = (ref: string, tag: string, age: number) =>
    machines.set(ref, { ...back, ref, tag, createdAt: made(age), deadline: Number.MAX_SAFE_INTEGER });
  const ours = (id: string) => tagOf(purser.app.installationId, id);

  put(back.ref, back.tag, 1000); // The very machine of a lease that has ended, as an engine brings it back.
  put('twin', ours(live), 1000); // A second one for a lease that has its own.
  put('unknown', ours('res_00000000000000000000'), 1000);
  put('young', ours('res_00000000000000000001'), 10);
  put('foreign', 'purser-somebodyelse-res_1', 1000);
  purser.clock.advance(SWEEP_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 3);
  assert.deepEqual([...machines.keys()].sort(), [kept, 'foreign', 'young'].sort());
  assert.equal((await purser.status(token, live)).status, 'running');

  for (let i = 0; i < KILL_COUNT_MAX + 2; i++) put(`many-${i}`, ours(`res_000000000000000001${i}`), 1000);
  purser.clock.advance(SWEEP_SECONDS);
  assert.equal(
    (await purser.app.reaper.runOnce()).orphans,
    KILL_COUNT_MAX,
    'a mistake of ours must not empty a cluster',
  );
});
