import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { after, type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';

let engine: Engine | undefined;
after(() => engine?.stop());

type CapacityServer = TestServer & {
  token: string;
  lease(provider: string, spec: object): ReturnType<TestServer['ask']>;
  /** Offers by their id, or the provider's name where they have none. */
  available(): Promise<Record<string, boolean>>;
  machines(): Promise<number>;
};

async function openCapacityServer(
  t: TestContext,
  compute: Record<string, object>,
): Promise<CapacityServer | undefined> {
  engine ??= await openDocker(t, { shared: true });
  if (!engine) return undefined;
  const { socket, docker } = engine;
  const own = (it: object) => ({ backend: 'container', socket, image: IMAGE, ...it });
  const slots = Object.entries(compute).map(([slot, it]) => [
    slot,
    'backends' in it ? { backends: (it.backends as object[]).map(own) } : own(it),
  ]);
  const purser = await openTestServer(t, { settings: { compute: Object.fromEntries(slots) } });
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  return Object.assign(purser, {
    token,
    lease: (provider: string, spec: object) =>
      purser.ask('POST', '/v1/compute/create', { token, key: randomUUID(), body: { provider, spec } }),
    async available() {
      const { offers } = (await purser.ask('GET', '/v1/compute/offers', { token })).body;
      return Object.fromEntries(
        offers.map((it: { offer_id: string | null; provider: string; available: boolean }) => [
          it.offer_id ?? it.provider,
          it.available,
        ]),
      );
    },
    machines: async () =>
      (await docker.listContainers({ all: true })).filter(({ Names }) =>
        Names[0]?.startsWith(`/${tagPrefix(purser.app.installationId)}`),
      ).length,
  });
}

const SHAPE = { cpus: 0.1, memory_gib: 0.05, max_disk_gb: 5, price_hourly_usd: '0.36' };
const OFFERS = {
  offers: [
    { id: 'two', count: 2, ...SHAPE },
    { id: 'one', ...SHAPE },
  ],
};
const three = (offer: string) => ({ offer_id: offer, disk_gb: 5, max_seconds: 600 });

test('an offer is leased as often as there are of it: of a race for the last, one wins and one pays', async (t) => {
  const purser = await openCapacityServer(t, { provider_three: OFFERS });
  if (!purser) return;
  const first = await purser.lease('provider_three', three('two'));
  assert.equal(first.status, 200, first.text);
  assert.deepEqual(await purser.available(), { two: true, one: true });
  const racers = await Promise.all(Array.from({ length: 5 }, () => purser.lease('provider_three', three('two'))));
  const won = racers.filter(({ status }) => status === 200);
  assert.equal(won.length, 1, racers.map(({ text }) => text).join('\n'));
  for (const { status, body } of racers.filter((it) => !won.includes(it)))
    assert.deepEqual(
      [status, body.error.code, body.error.message],
      [503, 'capacity_unavailable', 'There is no room: all 2 of two are leased. Nothing was charged.'],
    );
  assert.equal(await purser.machines(), 2);
  const budget = await purser.budget(purser.token);
  assert.deepEqual([budget.used_usd, budget.held_usd], ['0.12', '0.00']);
  assert.deepEqual(await purser.available(), { two: false, one: true });

  await purser.ask('POST', '/v1/compute/stop', { token: purser.token, body: { id: won[0]?.body.id } });
  assert.deepEqual(await purser.available(), { two: true, one: true });
  assert.equal((await purser.lease('provider_three', three('one'))).status, 200);
  assert.deepEqual(await purser.available(), { two: true, one: false });
  assert.deepEqual(purser.problems(), []);
});

test('what another installation leases on the same engine is not ours to count', async (t) => {
  const one = await openCapacityServer(t, { provider_three: OFFERS });
  const other = await openCapacityServer(t, { provider_three: OFFERS });
  if (!one || !other) return;
  assert.equal((await one.lease('provider_three', three('one'))).status, 200);
  assert.deepEqual(
    [await one.available(), await other.available()].map((it) => it.one),
    [false, true],
  );
  assert.equal((await other.lease('provider_three', three('one'))).status, 200);
});

test('capacity is the whole slot’s: leases fit beside each other, and the one that does not is refused', async (t) => {
  const purser = await openCapacityServer(t, {
    provider_one: {
      prices: { cpu_hourly_usd: '0.36', memory_gib_hourly_usd: '0' },
      limits: { cpus: 0.3, memory_gib: 0.5, max_seconds: 3600 },
      capacity: { cpus: 0.3, memory_gib: 0.5 },
    },
    // What another slot leases on the same engine is not of this capacity.
    provider_three: OFFERS,
  });
  if (!purser) return;
  assert.equal((await purser.lease('provider_three', three('one'))).status, 200);
  const one = (cpus: number) => ({ cpus, memory_gib: 0.05, max_seconds: 600 });
  assert.equal((await purser.lease('provider_one', one(0.1))).status, 200);
  const racers = await Promise.all(Array.from({ length: 3 }, () => purser.lease('provider_one', one(0.2))));
  assert.deepEqual(racers.map(({ status }) => status).sort(), [200, 503, 503], racers.map(({ text }) => text).join());
  const refused = await purser.lease('provider_one', one(0.01));
  assert.deepEqual([refused.status, refused.body.error.code], [503, 'capacity_unavailable']);
  assert.match(refused.body.error.message, /0\.3 of 0\.3 cpus are leased/);
  assert.equal(await purser.machines(), 3);
  assert.equal((await purser.budget(purser.token)).held_usd, '0.00');
  assert.equal((await purser.available()).provider_one, false);
  await purser.reopen();
  await purser.app.reaper.stop();
  assert.equal((await purser.lease('provider_one', one(0.01))).body.error.code, 'capacity_unavailable', 'still full');
});

test('two backends of a slot on one engine sell its room once', async (t) => {
  const size = {
    prices: { cpu_hourly_usd: '0.36', memory_gib_hourly_usd: '0' },
    limits: { cpus: 0.2, memory_gib: 0.1, max_seconds: 3600 },
    capacity: { cpus: 0.2, memory_gib: 0.1 },
  };
  const backends = [size, { ...size, name: 'other', pids: 128 }];
  const purser = await openCapacityServer(t, { provider_one: { backends } });
  if (!purser) return;
  const spec = { cpus: 0.2, memory_gib: 0.1, max_seconds: 600 };
  const racers = await Promise.all(Array.from({ length: 4 }, () => purser.lease('provider_one', spec)));
  assert.deepEqual(
    racers.map(({ status }) => status).sort(),
    [200, 503, 503, 503],
    racers.map(({ text }) => text).join('\n'),
  );
  assert.equal(await purser.machines(), 1);
});

test('what does not fit on the disk, or has no image, is not available, and is not sold', async (t) => {
  const purser = await openCapacityServer(t, {
    provider_three: {
      offers: [
        { id: 'fits', ...SHAPE },
        { id: 'huge', ...SHAPE, max_disk_gb: 1_000_000 },
        { id: 'bare', ...SHAPE, image: 'localhost/no-such-image:1' },
      ],
    },
  });
  if (!purser) return;
  assert.deepEqual(await purser.available(), { fits: true, huge: false, bare: false });
  const huge = await purser.lease('provider_three', { ...three('huge'), disk_gb: 900_000 });
  assert.deepEqual([huge.status, huge.body.error.code], [503, 'capacity_unavailable']);
  assert.match(huge.body.error.message, /less than 900000 GB of disk are free\. Nothing was charged\./);
  assert.equal((await purser.budget(purser.token)).held_usd, '0.00');
  assert.equal((await purser.lease('provider_three', three('huge'))).status, 200, 'a part of it fits');
  const checks = await purser.app.slots.list[0]?.backend.doctor.check();
  assert.match(
    checks?.find((it) => it.name === 'disk')?.detail ?? '',
    /A lease may write 1000000 GB, and \d+ are free/,
  );
});
