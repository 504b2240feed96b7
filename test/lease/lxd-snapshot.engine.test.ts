import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import type { LxdInstance } from '../../src/compute/engines/lxd/describe.ts';
import { runProgram } from '../../src/compute/engines/lxd/program.ts';
import { WATCHDOG_PATH } from '../../src/compute/kit/watchdog.ts';
import { LXD_IMAGE } from '../compute/engines/lxd.ts';
import { COPYING_POOL, openCopyingLxd } from '../compute/engines/lxd-copying.ts';
import { openWith } from './leases.ts';
import { conformLeaseSnapshots } from './snapshot-engine-shared.ts';
import { MONTH, snapshotting } from './snapshot-shared.ts';

const USER = 1000;

/** A purser whose leases are containers of a real LXD that keeps snapshots. Undefined, and the test skipped, without one. */
async function open(t: TestContext) {
  const lxd = await openCopyingLxd(t);
  if (!lxd) return undefined;
  const { api, socket } = lxd;
  const shared = { backend: 'lxd', socket, image: LXD_IMAGE, pool: COPYING_POOL, snapshot_gib_day_usd: '0.10' };
  const compute = {
    provider_one: {
      ...shared,
      prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
      limits: { cpus: 2, memory_gib: 1, disk_gb: 1, max_seconds: 3600 },
      capacity: { cpus: 64, memory_gib: 64 },
    },
    provider_three: {
      ...shared,
      offers: [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 2, price_hourly_usd: '0.36' }],
    },
  };
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', 'nowhere:1', { settings: { compute } });
  /** Returns the names of instances that have a tag of this house under a key. */
  const tagged = async (key: string) =>
    (await api.ask<LxdInstance[]>('GET', '/1.0/instances?recursion=1'))
      .filter(({ config }) => config?.[key]?.startsWith(tagPrefix(purser.app.installationId)))
      .map(({ name }) => name);
  return Object.assign(purser, {
    machines: () => tagged('user.purser.tag'),
    kept: () => tagged('user.purser.snapshot'),
    async halt(ref: string) {
      assert.equal((await runProgram(api, ref, USER, [WATCHDOG_PATH, 'stop'], 10_000)).exitCode, 0);
    },
    async undo(tag: string) {
      const all = await api.ask<LxdInstance[]>('GET', '/1.0/instances?recursion=1');
      const { name } = all.find(({ config }) => config?.['user.purser.snapshot'] === tag) ?? {};
      await api.ask('PATCH', `/1.0/instances/${name}`, { config: { 'user.purser.snapshot_bytes': '' } });
    },
  });
}

conformLeaseSnapshots('lxd', open);

test('lxd: a disk that is too small for a snapshot with its image costs nothing, and on a larger one disk_gb holds', async (t) => {
  const opened = await open(t);
  if (!opened) return;
  const purser = snapshotting(opened);
  const { id: wallet, token } = await purser.openWallet(MONTH);
  const rent = (key: string, disk_gb: number, query = '') =>
    purser.ask('POST', `/v1/compute/create${query}`, {
      ...{ token, key },
      body: { provider: 'provider_three', spec: { offer_id: 'small', disk_gb, max_seconds: 600 } },
    });
  const exec = async (id: string, command: string) => {
    const { body } = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command, timeout: 60 } });
    return `${body.stdout}${body.stderr}`;
  };
  const first = (await rent('first', 2)).body;
  assert.equal(await exec(first.id, 'fallocate -l 1023M /tmp/a && echo kept'), 'kept\n');
  const { body } = await purser.snapshot(token, first.id);
  assert.equal(body.size_gib, 1);
  assert.equal(await exec(first.id, 'fallocate -l 300M /tmp/b && echo kept'), 'kept\n');
  const larger = (await purser.snapshot(token, first.id)).body;
  await purser.stop(token, first.id);
  const before = await purser.budget(token);

  const tooLarge = await rent('too-large', 1, `?snapshot=${larger.snapshot_id}`);
  assert.deepEqual([tooLarge.status, tooLarge.body.error?.code], [400, 'invalid_request'], tooLarge.text);
  const withImage = await rent('with-image', 1, `?snapshot=${body.snapshot_id}`);
  assert.equal(withImage.body.error?.code, 'lease_limit_exceeded', withImage.text);
  assert.match(withImage.body.error?.message, /larger than its disk. Nothing was charged/);
  assert.deepEqual([await purser.budget(token), await purser.machines()], [before, []]);

  const made = await rent('made', 2, `?snapshot=${body.snapshot_id}`);
  assert.equal(made.body.status, 'running', made.text);
  assert.equal(await exec(made.body.id, 'fallocate -l 800M /tmp/more && rm /tmp/more && echo fits'), 'fits\n');
  assert.match(await exec(made.body.id, 'fallocate -l 1100M /tmp/more'), /quota exceeded/i);
  assert.equal((await purser.closeWallet(wallet)).body.status, 'closed');
  assert.deepEqual([await purser.kept(), await purser.machines()], [[], []]);
  assert.deepEqual(purser.problems(), []);
});
