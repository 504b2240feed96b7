import assert from 'node:assert/strict';
import test from 'node:test';
import type { Snapshots } from '../../src/compute/backend.ts';
import type { LxdInstance } from '../../src/compute/engines/lxd/describe.ts';
import { length } from '../helper/random.ts';
import { MOMENTS, openEngineProxy } from './engines/proxy.ts';
import { hide, MEBIBYTE, openWith, subjectOf, untilIdle } from './lxd-snapshot-shared.ts';
import { nameOf, openOn } from './snapshot-shared.ts';

/**
 * Yields the requests at which a take is cut off: some, spread over the whole of it, and others for each moment; in the soak all of
 * them. How often LXD is asked for a size differs a little, so the last is one that no take comes to.
 */
function* cutsOf(count: number, shift: number): Generator<number> {
  const chosen = Math.min(count, length(8, 1000));
  for (let i = 0; i < chosen; i++) yield 1 + Math.floor(((i + shift / 2) * count) / chosen);
  for (let nth = count + 1; ; nth++) yield nth;
}

for (const [shift, moment] of MOMENTS.slice(0, 2).entries())
  test(`lxd: a take that is cut off at any request, ${moment}, leaves nothing that cannot be found and removed`, async (t) => {
    const opened = await openOn(t, openWith);
    if (!opened) return;
    const { machine, take, snapshots, lxd } = opened;
    const one = await machine();
    assert.equal(await one.sh(hide(70)), '1'); // So that a size is found by trying.
    const bytesMax = 90 * MEBIBYTE;
    const { bytes: all } = await take(one.ref, true, bytesMax);
    assert.ok(all > 64 * MEBIBYTE && all < bytesMax, `${all} bytes`);
    const pid = await one.sh('sleep 500 >/dev/null 2>&1 & echo $!');
    const instances = () => lxd.api.ask<LxdInstance[]>('GET', '/1.0/instances?recursion=1');
    const before = (await instances()).map((it) => it.name);
    const proxy = await openEngineProxy(t, lxd);
    /** Takes a snapshot by another process each time, which has counted no image yet. */
    const takeAnew = (tag: string) => {
      const { backend } = subjectOf(proxy);
      t.after(() => backend.close());
      const order = { ref: one.ref, tag, isRunning: true, bytesMax };
      return (backend.guest.snapshots as Snapshots).take(order).catch(() => ({ kind: 'unknown' }) as const);
    };
    proxy.watch();
    const uncut = nameOf('snap');
    assert.equal((await takeAnew(uncut)).kind, 'taken');
    await snapshots.remove(uncut);

    const outcomes = new Set<string>();
    let isWhole = false;
    for (const nth of cutsOf(proxy.asked.length, shift)) {
      let isCut = false;
      proxy.watch({ nth, moment, strike: () => (isCut = true) });
      const tag = nameOf('snap');
      const outcome = await takeAnew(tag);
      isWhole = !isCut;
      outcomes.add(outcome.kind);
      const at = `cut at ${proxy.asked[nth - 1]}: ${JSON.stringify(outcome)}`;
      assert.ok(isCut || outcome.kind === 'taken', at);
      await untilIdle(lxd);
      // As the next start does.
      await snapshots.letRun(one.ref);
      assert.equal(await one.sh(`cut -d' ' -f3 /proc/${pid}/stat`), 'S', at);
      const bytes = await snapshots.find(tag);
      if (outcome.kind === 'refused') assert.deepEqual(await snapshots.list(tag), [], at);
      assert.ok(bytes === all || (bytes === undefined && !isWhole), `it takes ${bytes} of ${all} bytes, ${at}`);
      const made = (await instances()).filter((it) => !before.includes(it.name));
      // Each of them is found by itself: a removal may die as well, behind any of them.
      for (const { name, config } of made) assert.equal(config?.['user.purser.snapshot'], tag, `${name}, ${at}`);
      assert.equal((await snapshots.list(tag)).length, made.length, at);
      await snapshots.remove(tag);
      assert.deepEqual([await snapshots.list(tag), await snapshots.find(tag)], [[], undefined], at);
      assert.deepEqual((await instances()).map((it) => it.name).sort(), before.sort(), at);
      if (isWhole) break;
    }
    t.diagnostic(`${proxy.asked.length} requests: ${[...outcomes].join(', ')}`);
    assert.deepEqual([...outcomes].sort(), ['refused', 'taken', 'unknown']);
  });
