import { after, type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { LXD_IMAGE, type Lxd, openLxd } from '../compute/engines/lxd.ts';
import { type LeaseServer, openWith } from './leases.ts';

let shared: Lxd | undefined;
after(() => shared?.stop());
/** One LXD for a whole file. */
export async function sharedLxd(t: TestContext): Promise<Lxd | undefined> {
  shared ??= await openLxd(t);
  return shared;
}

/** A purser whose leases are containers of a real LXD. Undefined, and the test skipped, without one. */
export async function openLxdServer(t: TestContext): Promise<LeaseServer | undefined> {
  const lxd = await sharedLxd(t);
  if (!lxd) return undefined;
  const { api, socket } = lxd;
  const compute = {
    provider_one: {
      backend: 'lxd',
      socket,
      image: LXD_IMAGE,
      prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
      limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
      capacity: { cpus: 64, memory_gib: 64 },
    },
    provider_three: {
      backend: 'lxd',
      socket,
      image: LXD_IMAGE,
      offers: [{ id: 'small', cpus: 0.5, memory_gib: 0.25, max_disk_gb: 5, price_hourly_usd: '0.36' }],
    },
  };
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', 'nowhere:1', { settings: { compute } });
  return Object.assign(purser, {
    machines: async () =>
      (await api.ask<{ config: Record<string, string> }[]>('GET', '/1.0/instances?recursion=1'))
        .map((it) => it.config['user.purser.tag'] ?? '')
        .filter((tag) => tag.startsWith(tagPrefix(purser.app.installationId))),
  });
}
