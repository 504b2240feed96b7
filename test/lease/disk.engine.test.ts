import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { slots } from '../../src/compute/engines/container/settings.ts';
import { IMAGE } from '../compute/engines/docker.ts';
import { until } from '../helper/waiting.ts';
import { openLeaseServer, sharedDocker } from './docker-leases.ts';
import { LONG } from './leases.ts';

test('a lease of provider_one that wrote more than it may is ended, says so, and stays paid', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const provider_one = {
    backend: 'container',
    socket: engine.socket,
    image: IMAGE,
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, disk_gb: 1 },
  };
  const purser = await openLeaseServer(t, { settings: { compute: { provider_one } } });
  if (!purser) return;
  // The same backend, but it measures at every poll.
  const eager = openContainerBackend(v.parse(slots.provider_one, provider_one), {
    prefix: '',
    measureMilliseconds: 0,
    now: () => Math.floor(Date.now() / 1000),
  });
  Object.assign(purser.backend, { inspect: eager.inspect });
  const { token } = await purser.openWallet(LONG);
  const { id, charged_usd: price } = (await purser.lease(token, undefined, { max_seconds: 3600 })).body;
  const write = async (megabytes: number) => {
    const command = `fallocate -l ${megabytes}M /tmp/file`;
    const { body } = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
    assert.equal(body.exit_code, 0, JSON.stringify(body));
  };
  const poll = async () => {
    purser.clock.advance(61);
    await purser.app.reaper.runOnce();
    return purser.status(token, id);
  };
  await write(900);
  for (let times = 3; times > 0; times--) assert.equal((await poll()).status, 'running');
  await write(1100);
  const ended = await until('it has ended', async () => {
    const found = await poll();
    return found.status === 'stopped' && found;
  });
  assert.deepEqual([ended.status, ended.end_reason, ended.charged_usd], ['stopped', 'disk_exceeded', price]);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});

test('a lease of provider_one may write 20 GiB where nothing else is set', () => {
  const prices = { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' };
  const settings = { backend: 'container', image: IMAGE, prices, limits: { cpus: 2, memory_gib: 1 } };
  assert.equal(v.parse(slots.provider_one, settings).limits.disk_gb, 20);
});
