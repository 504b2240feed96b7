import test, { after, type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { keeperOf } from '../../src/compute/engines/lxd/keeper.ts';
import { lxdSubject } from '../compute/engines/lxd.ts';
import { type LxdMachines, MACHINE_IMAGE, openLxdMachines } from '../compute/engines/lxd-machines.ts';
import { dieOnEngine } from './death-shared.ts';
import { openWith } from './leases.ts';
import { openLxdServer, sharedLxd } from './lxd-leases.ts';
import { dieEverywhere, type Story } from './mortal.ts';
import { ENGINE_SOCKET, openMortalOn } from './mortal-engine.ts';
import { lease, STORIES, stop } from './stories.ts';

let machines: LxdMachines | undefined;
after(() => machines?.stop());

dieOnEngine('lxd', {
  open: openLxdServer,
  deaths: [
    ['before', 'create'],
    ['after', 'create'],
    ['after', 'inspect'],
    ['before', 'destroy'],
    ['after', 'destroy'],
  ],
});

const MACHINE = { type: 'virtual-machine', image: MACHINE_IMAGE };

/** A purser that can die at each request to LXD that changes something. Its leases are virtual machines, each with its keeper. */
async function openMortal(t: TestContext) {
  const lxd = await sharedLxd(t);
  machines ??= lxd && (await openLxdMachines(t, lxd));
  if (!lxd || !machines) return undefined;
  const { api, directory } = lxd;
  const { socket } = machines;
  const provider = {
    ...{ backend: 'lxd', socket: ENGINE_SOCKET, ...MACHINE },
    prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
    capacity: { cpus: 64, memory_gib: 64 },
  };
  const settings = { compute: { provider_one: provider }, drain_seconds: 0 };
  async function open(env: Record<string, string>) {
    const purser = await openWith(t, 'unix:///nowhere/docker.sock', 'nowhere:1', { settings, env });
    const { lease: leaseShared } = purser;
    // A virtual machine has whole processors.
    purser.lease = (token, key, spec) => leaseShared(token, key, { ...spec, cpus: 1 });
    return purser;
  }
  type Instance = { name: string; status: string; config: Record<string, string> };
  const instances = () => api.ask<Instance[]>('GET', '/1.0/instances?recursion=1');
  return openMortalOn(t, { directory, socket }, open, (purser) => ({
    async tags() {
      const all = (await instances()).map(
        ({ config }) => config['user.purser.tag'] ?? config['user.purser.keeps'] ?? '',
      );
      return [...new Set(all)].filter((tag) => tag.startsWith(tagPrefix(purser.app.installationId)));
    },
    async faultOf({ ref, status, expiresAt }) {
      const all = await instances();
      const statusOf = (name: string) => all.find((it) => it.name === name)?.status;
      const found = [statusOf(ref as string), statusOf(keeperOf(ref as string))];
      if (found.join() !== `${status === 'paused' ? 'Frozen' : 'Running'},Running`)
        return `${ref} is ${status}: ${found}`;
      const { backend } = lxdSubject(socket, MACHINE); // It has not heard of any deadline.
      const deadline = (await backend.inspect(ref as string))?.deadline;
      await backend.close();
      return deadline === expiresAt ? undefined : `${ref} ends at ${expiresAt}, and its keeper at ${deadline}`;
    },
  }));
}

const TOLD: Record<string, Story> = {
  'a lease is made': { act: lease },
  'a lease is stopped': { before: lease, act: stop },
  'a lease is paused': STORIES['a lease is paused'],
  'a lease is resumed': STORIES['a lease is resumed'],
};
for (const [name, story] of Object.entries(TOLD))
  test(`lxd machine: ${name}, and the server dies at any request of that`, async (t) => {
    const purser = await openMortal(t);
    if (purser) t.diagnostic(`${await dieEverywhere(purser, story)} deaths`);
  });
