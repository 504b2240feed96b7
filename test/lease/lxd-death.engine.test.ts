import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { keeperOf } from '../../src/compute/engines/lxd/keeper.ts';
import { LXD_IMAGE, type Lxd, lxdSubject, openLxd } from '../compute/engines/lxd.ts';
import { type LxdMachines, MACHINE_IMAGE, openLxdMachines } from '../compute/engines/lxd-machines.ts';
import { length } from '../helper/random.ts';
import { until } from '../helper/waiting.ts';
import { dieAt, LONG, openWith } from './leases.ts';
import { dieEverywhere, type Story } from './mortal.ts';
import { ENGINE_SOCKET, openMortalOn } from './mortal-engine.ts';
import { lease, STORIES, stop } from './stories.ts';

let shared: Lxd | undefined;
let machines: LxdMachines | undefined;
after(async () => {
  machines?.stop();
  await shared?.stop();
});

/** A purser whose leases are containers of a real LXD. Undefined, and the test skipped, without one. */
async function openLxdServer(t: TestContext) {
  shared ??= await openLxd(t);
  if (!shared) return undefined;
  const { api, socket } = shared;
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

test('lxd: a lease is rented, used, extended and stopped', async (t) => {
  const purser = await openLxdServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const made = await purser.rent(token);
  assert.equal(made.status, 200, made.text);
  const { id } = made.body;
  await until('it runs', async () => {
    await purser.app.reaper.runOnce();
    return (await purser.status(token, id)).status === 'running';
  });
  const ask = (path: string, body: object) => purser.ask('POST', `/v1/compute/${path}`, { token, key: id, body });
  const file = Buffer.from('hello');
  assert.equal((await ask('upload', { id, path: 'there', content_base64: file.toString('base64') })).status, 200);
  const said = await ask('exec', { id, command: 'cat there; id -u; nosuchprogram', timeout: 20 });
  assert.deepEqual([said.body.exit_code, said.body.stdout], [127, 'hello1000\n'], said.text);
  const extended = await purser.extend(token, id, 600);
  assert.equal(extended.status, 200, extended.text);
  assert.equal((await purser.stop(token, id)).status, 200);
  await until('it is gone', async () => {
    await purser.app.reaper.runOnce();
    return (await purser.machines()).length === 0;
  });
  assert.deepEqual(purser.problems(), []);
});

/** Awaits of a life at which the process may die: the wrapped call never returns. */
const DEATHS = [
  ['before', 'create'],
  ['after', 'create'],
  ['after', 'inspect'],
  ['before', 'destroy'],
  ['after', 'destroy'],
] as const;
for (const [when, name] of DEATHS)
  test(`lxd: dying ${when} ${name} leaves no machine that no row knows, and the books balance`, async (t) => {
    const purser = await openLxdServer(t);
    if (!purser) return;
    const { id, token } = await purser.openWallet(LONG);
    await dieAt(purser, token, when, name);
    const again = await purser.lease(token, 'k');
    assert.ok([200, 503].includes(again.status), again.text);
    for (let i = 0; i < 3; i++) {
      purser.clock.advance(purser.backend.absence.apartSeconds);
      await purser.app.reaper.runOnce();
    }
    const { resources } = (await purser.ask('GET', `/v1/wallets/${id}/resources`, { token: purser.accountKey })).body;
    const live = resources.filter((it: { ended_at: number | null }) => it.ended_at === null);
    assert.equal((await purser.machines()).length, live.length, JSON.stringify(resources));
    await until('the wallet is closed', async () => {
      purser.clock.advance(10);
      return (await purser.closeWallet(id)).status === 200;
    });
    assert.deepEqual(await purser.machines(), []);
    assert.deepEqual(purser.problems(), []);
  });

/** Deaths of each story. The soak has one at each request. */
const DEATHS_MAX = length(3, 1000);

const MACHINE = { type: 'virtual-machine', image: MACHINE_IMAGE };

/** A purser that can die at each request to LXD that changes something. Its leases are virtual machines, each with its keeper. */
async function openMortal(t: TestContext) {
  shared ??= await openLxd(t);
  if (!shared) return undefined;
  machines ??= await openLxdMachines(t, shared);
  if (!machines) return undefined;
  const { api, directory } = shared;
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
    if (purser) t.diagnostic(`${await dieEverywhere(purser, story, { deathsMax: DEATHS_MAX })} deaths`);
  });
