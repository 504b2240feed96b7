import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { type Backend, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { openTestServer } from '../helper/server.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { type Engine, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';
import { openRegistry, type Registry } from './engines/registry.ts';

const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
const freshTag = () => tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
const SPEC = { offer_id: 'small', disk_gb: 1, max_seconds: 600 };

const ENGINES: [name: string, open: (t: TestContext, registry: string) => Promise<Engine | undefined>][] = [
  ['Docker', (t) => openDocker(t, { shared: true })],
  ['Podman', (t, registry) => openPodman(t, { registry })],
];

/** An engine that has to pull, and the registry in the test's hand. */
async function openPull(t: TestContext, open: (typeof ENGINES)[0][1]) {
  const registry = await openRegistry();
  t.after(() => registry.close());
  const engine = await open(t, registry.host);
  if (!engine) return undefined;
  t.after(() => engine.stop());
  return { registry, engine };
}

function openBackend(engine: Engine, registry: Registry) {
  const offer = { cpus: 0.1, memory_gib: 0.05, max_disk_gb: 5, price_hourly_usd: 1n };
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image: registry.image,
      pull: 'missing',
      network: 'none',
      pids: 64,
      provision_seconds: 600,
      limits: { max_seconds: 3600 },
      offers: [{ id: 'small', count: 2, ...offer }],
    },
    { prefix: tagPrefix(INSTALLATION), now: () => Math.floor(Date.now() / 1000) },
  );
  const order = async () => {
    const deadline = Math.floor(Date.now() / 1000) + 660;
    return backend.create({ tag: freshTag(), quote: await backend.quote(SPEC), deadline });
  };
  const rent = async () => {
    const created = await order();
    assert.equal(created.kind, 'created', JSON.stringify(created));
    return (created as { ref: string }).ref;
  };
  return { backend, order, rent };
}

const reaches = (backend: Backend, ref: string, state: string) =>
  until(`${ref} is ${state}`, async () => {
    const machine = await backend.inspect(ref);
    return machine?.state === state && machine;
  });

for (const [name, open] of ENGINES) {
  test(`${name}: an image is pulled once while its leases wait; what is destroyed meanwhile is never made`, async (t) => {
    const opened = await openPull(t, open);
    if (!opened) return;
    const { registry, engine } = opened;
    const { backend, order, rent } = openBackend(engine, registry);
    const [kept, dropped] = [await rent(), await rent()];
    await until('the layer is asked for', async () => registry.layerCount() > 0);
    assert.deepEqual(await backend.inspect(kept), {
      ref: kept,
      state: 'provisioning',
      note: `the image ${registry.image} is being pulled`,
      waitsFor: 'its image is being pulled',
    });
    const full = await order();
    assert.deepEqual(full.kind === 'refused' && full.code, 'capacity_unavailable', 'what waits has its room');
    await backend.destroy(dropped);
    assert.equal(await backend.inspect(dropped), undefined);
    registry.release();
    await reaches(backend, kept, 'running');
    assert.equal(registry.pullCount(), 1);
    const next = await rent();
    await reaches(backend, next, 'running');
    const left = (await backend.listOwned(tagPrefix(INSTALLATION))).map(({ ref }) => ref);
    assert.deepEqual(left.sort(), [kept, next].sort());
    for (const ref of [kept, next]) await backend.destroy(ref);
  });

  test(`${name}: an image that cannot be pulled ends the lease with the reason, and its room is free`, async (t) => {
    const opened = await openPull(t, open);
    if (!opened) return;
    const { registry, engine } = opened;
    registry.isThere = false;
    const { backend, rent } = openBackend(engine, registry);
    const refs = [await rent(), await rent()];
    for (const ref of refs) {
      const { note } = await reaches(backend, ref, 'ended');
      assert.match(note ?? '', /The image .* cannot be pulled\. Nothing was charged\. \(.+\)/);
    }
    assert.equal((await backend.offers(UNHURRIED_MILLISECONDS))[0]?.available, true);
    for (const ref of refs) {
      await backend.destroy(ref);
      assert.equal(await backend.inspect(ref), undefined);
    }
    registry.isThere = true;
    registry.release();
    await reaches(backend, await rent(), 'running');
  });
}

async function openPullServer(t: TestContext) {
  const opened = await openPull(t, (t) => openDocker(t, { shared: true }));
  if (!opened) return undefined;
  const { registry, engine } = opened;
  const provider_one = {
    backend: 'container',
    socket: engine.socket,
    image: registry.image,
    pull: 'missing',
    prices: { cpu_hourly_usd: '0.36', memory_gib_hourly_usd: '0' },
    limits: { cpus: 1, memory_gib: 1, max_seconds: 3600 },
    provision_seconds: 300,
  };
  const purser = await openTestServer(t, { settings: { compute: { provider_one } } });
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const spec = { cpus: 0.1, memory_gib: 0.05, max_seconds: 600 };
  const lease = () =>
    purser.ask('POST', '/v1/compute/create', { token, key: 'k', body: { provider: 'provider_one', spec } });
  return { purser, registry, engine, token, lease };
}

test('a lease that waits for its image is held, runs when it has come, and is charged then', async (t) => {
  const opened = await openPullServer(t);
  if (!opened) return;
  const { purser, registry, token, lease } = opened;
  const asked = lease();
  await until('the layer is asked for', async () => registry.layerCount() === 1);
  const [hold] = (await purser.budget(token)).holds;
  assert.deepEqual([hold.state, hold.amount_usd], ['reserved', '0.006']);
  registry.release();
  const { body } = await asked;
  assert.deepEqual([body.status, body.charged_usd], ['running', '0.006'], JSON.stringify(body));
  assert.deepEqual(purser.problems(), []);
});

test('a process that dies during a pull leaves no machine and no charge', async (t) => {
  const opened = await openPullServer(t);
  if (!opened) return;
  const { purser, registry, engine, token, lease } = opened;
  void lease().catch(() => {});
  await until('the layer is asked for', async () => registry.layerCount() === 1);
  await purser.crash(() => {});
  purser.clock.advance(5);
  await purser.app.reaper.runOnce();
  const { resources } = (await purser.ask('GET', '/v1/compute/list', { token })).body;
  assert.deepEqual([resources[0].status, resources[0].end_reason], ['failed', 'create_failed']);
  const budget = await purser.budget(token);
  assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);
  assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
  assert.deepEqual(purser.problems(), []);
});

test('a pull that fails is a refusal, and the operator has its reason', async (t) => {
  const opened = await openPullServer(t);
  if (!opened) return;
  const { purser, registry, token, lease } = opened;
  registry.isThere = false;
  const answer = await lease();
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable'], answer.text);
  assert.match(answer.body.error.message, /never became ready|cannot be pulled/);
  const [operation] = (await purser.run('operation.list', {})).operations;
  assert.match(operation?.reason ?? '', /cannot be pulled.*\(.+\)/);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
});
