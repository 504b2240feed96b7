import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { Refusal } from '../../src/base/refusal.ts';
import type { LxdApi } from '../../src/compute/engines/lxd/api.ts';
import { describeInstance, nameOf } from '../../src/compute/engines/lxd/describe.ts';
import type { LxdHost } from '../../src/compute/engines/lxd/host.ts';
import { createInstances } from '../../src/compute/engines/lxd/instances.ts';
import { createKeepers, keeperOf } from '../../src/compute/engines/lxd/keeper.ts';
import { openLxdBackend } from '../../src/compute/engines/lxd/lxd.ts';
import { allContents, type LxdSettings, notes, slots } from '../../src/compute/engines/lxd/settings.ts';

const offer = { cpus: 1, memory_gib: 1, max_disk_gb: 5, price_hourly_usd: '0.1' };
const OFFERS = {
  offers: [
    { id: 'shared', ...offer, cpus: 0.5 },
    { id: 'own', ...offer, type: 'virtual-machine', image: 'debian-vm' },
  ],
};
const parse = (more: object): LxdSettings =>
  v.parse(slots.provider_three, { backend: 'lxd', image: 'debian', ...OFFERS, ...more });
const PRICES = { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.01' };
const parseSized = (more: object): LxdSettings =>
  v.parse(slots.provider_one, {
    ...{ backend: 'lxd', image: 'debian', type: 'virtual-machine', prices: PRICES },
    limits: { cpus: 2, memory_gib: 4 },
    ...more,
  });
const open = (settings: LxdSettings) => openLxdBackend(settings, { prefix: 'purser-inst-x-', now: () => 0 });

test('a type is set for all offers, or for one; what no virtual machine has is a fault', () => {
  assert.deepEqual(allContents(parse({})), [
    { image: 'debian', type: 'container' },
    { image: 'debian-vm', type: 'virtual-machine' },
  ]);
  assert.ok(notes(parse({})).some((it) => it.includes('share the kernel')));
  assert.ok(!notes(parseSized({})).some((it) => it.includes('share the kernel')));
  assert.throws(() => parse({ type: 'virtual-machine' }), /shared: a virtual machine has whole cpus/);
  assert.throws(() => parse({ egress: ['pypi.org'] }), /own: a virtual machine has no egress/);
  assert.throws(() => parseSized({ egress: 'public' }), /^ValiError: a virtual machine has no egress/);
  assert.throws(() => parseSized({ limits: { cpus: 0.5, memory_gib: 4 } }), /whole cpus/);
  assert.throws(() => parseSized({ snapshot_gib_day_usd: '0.002' }), /virtual machines have no snapshots/);
  parse({ snapshot_gib_day_usd: '0.002' });
  assert.throws(() => parse({ type: 'vm' }), /"container" \| "virtual-machine"/);
  const [shared, own] = OFFERS.offers;
  parse({ egress: ['pypi.org'], offers: [shared, { ...own, egress: 'none' }] });
});

test('an offer of virtual machines names its type, and a part of a processor is refused', async (t) => {
  const [backend, sized] = [open(parse({})), open(parseSized({}))];
  t.after(() => Promise.all([backend.close(), sized.close()]));
  const offers = await backend.offers(0);
  assert.deepEqual(
    offers.map((it) => [it.offerId, it.runtime, it.description.split(' with')[0]]),
    [
      ['shared', undefined, 'container'],
      ['own', 'virtual-machine', 'virtual machine'],
    ],
  );
  const spec = { gpu: null, gpus: 0, cpus: 1.5, memory_gib: 1, max_seconds: 600 };
  await assert.rejects(sized.quote(spec), (error) => error instanceof Refusal && error.code === 'invalid_request');
  assert.equal((await sized.quote({ ...spec, cpus: 2 })).maxSeconds, 86_400);
});

test('a virtual machine has the settings that LXD takes for one, and lends its power on loopback alone', () => {
  const claim = { tag: 'purser-inst-x-res-y', cpus: 1, memoryGib: 1, offer: 'own', devices: [], diskGb: 5 };
  const order = { claim, deadline: 5, created: 1, isIncus: false, secrets: undefined, from: undefined };
  const { type, source, config, devices } = describeInstance(parse({}), order) as {
    [part: string]: unknown;
    config: Record<string, string>;
  };
  assert.deepEqual([type, source], ['virtual-machine', { type: 'image', alias: 'debian-vm' }]);
  assert.deepEqual(devices, { root: { type: 'disk', path: '/', pool: 'default', size: '5GiB' } });
  assert.deepEqual(
    Object.keys(config)
      .filter((key) => !key.startsWith('user.'))
      .sort(),
    [
      ...['boot.autostart', 'cluster.evacuate', 'limits.cpu', 'limits.memory', 'raw.qemu'],
      ...['security.devlxd', 'security.secureboot'],
    ],
  );
  assert.match(config['raw.qemu'] ?? '', /^-chardev socket,id=purser-power,host=127\.[\d.]+,port=63541,server=on,/);
});

const REF = nameOf('purser-inst-x-res-y');
/** Returns the keepers of a server that shows an instance in these states, one after the other, and then in the last. */
function keepersOf(type: string, states: number[], restartMilliseconds: number) {
  const codes = () => (states.length > 1 ? states.shift() : states[0]);
  const ask = async () => ({ name: REF, type, status_code: codes(), config: {} });
  const lxd = { ask } as unknown as LxdApi;
  const instances = createInstances(lxd, restartMilliseconds);
  return { instances, keepers: createKeepers(lxd, parse({}), { instances, host: {} as LxdHost }) };
}

test('the keeper of a virtual machine that is off takes no deadline: it would be sold for nothing', async () => {
  const off = keepersOf('virtual-machine', [102], 0);
  await assert.rejects(off.keepers.holderOf(REF), /is not running/);
  assert.equal(await keepersOf('virtual-machine', [103], 0).keepers.holderOf(REF), keeperOf(REF));
  assert.equal(await keepersOf('container', [103], 0).keepers.holderOf(REF), REF);
});

test('a virtual machine whose guest restarts is not off, and one that stays off is', async () => {
  const [off, on] = [102, 103];
  const restarting = keepersOf('virtual-machine', [off, off, on], Number.POSITIVE_INFINITY);
  assert.equal((await restarting.instances.settled(REF))?.status_code, on);
  assert.equal((await keepersOf('virtual-machine', [off], 0).instances.settled(REF))?.status_code, off);
  // Nothing starts a container again.
  const container = keepersOf('container', [off, on], Number.POSITIVE_INFINITY);
  assert.equal((await container.instances.settled(REF))?.status_code, off);
});
