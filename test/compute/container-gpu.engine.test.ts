import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import test, { after, type TestContext } from 'node:test';
import { tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { countGpus } from '../../src/compute/machine/proof.ts';
import { openTestServer } from '../helper/server.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { type FakeGpus, openFakeGpus } from './engines/fake-gpus.ts';
import { openPodman } from './engines/podman.ts';

let podman: Engine | undefined;
let docker: Engine | undefined;
after(async () => {
  await podman?.stop();
  await docker?.stop();
});

const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
const freshTag = () => tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
const SPEC = { gpu: 'h100', gpus: 1, cpus: 0.25, memory_gib: 0.12, max_seconds: 600 };

function openBackend(engine: Engine, devices: string[], prefix = tagPrefix(INSTALLATION)) {
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image: IMAGE,
      pull: 'never',
      network: 'none',
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: { h100: 2_500_000_000n } },
      limits: { cpus: 2, memory_gib: 1, gpus: 2, disk_gb: 20, max_seconds: 3600 },
      gpu_devices: { h100: devices },
      gpu_mode: 'nvidia',
    },
    { prefix, now: () => Math.floor(Date.now() / 1000) },
  );
  const create = async (gpus = 1, tag = freshTag()) => {
    const quote = await backend.quote({ ...SPEC, gpus });
    return backend.create({ tag, quote, deadline: Math.floor(Date.now() / 1000) + 660 });
  };
  const rent = async (gpus = 1) => {
    const created = await create(gpus);
    assert.equal(created.kind, 'created', JSON.stringify(created));
    return (created as { ref: string }).ref;
  };
  const seen = async (ref: string) => {
    const order = { command: 'nvidia-smi -L', timeoutSeconds: 10, streamBytesMax: 4096 };
    const { stdout } = await backend.guest.exec(ref, order);
    return [...stdout.toString().matchAll(/UUID: (\S+)\)/g)].map(([, name]) => name as string);
  };
  const isGpuOffered = async () =>
    (await backend.offers(UNHURRIED_MILLISECONDS)).find(({ spec }) => 'gpu' in spec && spec.gpu)?.available;
  return Object.assign(backend, { create: backend.create, order: create, rent, seen, isGpuOffered });
}

/** A Podman for the whole file, and GPUs for this test. */
async function openGpus(
  t: TestContext,
  count: number,
  use?: string,
): Promise<{ engine: Engine; gpus: FakeGpus } | undefined> {
  podman ??= await openPodman(t);
  if (!podman) return undefined;
  const gpus = openFakeGpus(count, use);
  t.after(() => gpus.remove());
  return { engine: podman, gpus };
}

test('every lease gets GPUs of its own, and a race for the last one has one winner', async (t) => {
  const opened = await openGpus(t, 3);
  if (!opened) return;
  const { engine, gpus } = opened;
  const backend = openBackend(engine, gpus.names);
  const pair = await backend.rent(2);
  assert.deepEqual(await backend.seen(pair), gpus.names.slice(0, 2));
  assert.equal((await backend.inspect(pair))?.state, 'running');

  assert.equal(await backend.isGpuOffered(), true);
  const racers = await Promise.all(Array.from({ length: 4 }, () => backend.order()));
  const refs = racers.flatMap((it) => (it.kind === 'created' ? [it.ref] : []));
  assert.equal(refs.length, 1, JSON.stringify(racers));
  for (const it of racers.filter(({ kind }) => kind !== 'created'))
    assert.deepEqual(it, {
      kind: 'refused',
      code: 'capacity_unavailable',
      reason: 'There is no room: 3 of 3 h100 are leased. Nothing was charged.',
    });
  assert.deepEqual(await backend.seen(refs[0] as string), gpus.names.slice(2));
  assert.equal(await backend.isGpuOffered(), false);

  await backend.destroy(pair);
  assert.equal(await backend.isGpuOffered(), true);
  const third = await backend.rent();
  assert.deepEqual(await backend.seen(third), [gpus.names[0]]);
  for (const ref of [third, ...refs]) await backend.destroy(ref);
});

test('after a restart the engine’s containers tell which GPUs are leased, whoever leased them', async (t) => {
  const opened = await openGpus(t, 2);
  if (!opened) return;
  const { engine, gpus } = opened;
  const before = openBackend(engine, gpus.names);
  const first = await before.rent();
  const after = openBackend(engine, gpus.names, 'purser-inst-another-');
  const second = await after.rent();
  assert.deepEqual(await after.seen(second), [gpus.names[1]]);
  assert.equal((await after.order()).kind, 'refused');
  await after.destroy(first);
  const third = await after.rent();
  assert.deepEqual(await after.seen(third), [gpus.names[0]]);
  for (const ref of [second, third]) await after.destroy(ref);
});

test('a lease with fewer GPUs inside than were bought does not prove itself, and says why', async (t) => {
  const opened = await openGpus(t, 1);
  if (!opened) return;
  const { engine, gpus } = opened;
  const backend = openBackend(engine, [...gpus.names, gpus.absent]);
  const ref = await backend.rent(2);
  assert.equal(await backend.guest.prove(ref), 'nvidia-smi -L shows 1 of 2 GPUs inside');
  await backend.destroy(ref);
  assert.equal(await backend.inspect(ref), undefined);
});

test('a GPU that the engine does not know is a clear refusal, and leaves nothing behind', async (t) => {
  const opened = await openGpus(t, 1);
  if (!opened) return;
  const { engine, gpus } = opened;
  const backend = openBackend(engine, ['GPU-nobody-has']);
  const tag = freshTag();
  const refused = await backend.order(1, tag);
  assert.equal(refused.kind, 'refused', JSON.stringify(refused));
  assert.match((refused as { words: string }).words, /GPU-nobody-has/);
  assert.equal(await backend.inspect(tag), undefined);
  assert.equal(await backend.isGpuOffered(), true, 'what was refused holds nothing');
  assert.ok(gpus);
});

test('on a Docker Engine without GPUs a lease with one is a clear refusal', async (t) => {
  docker ??= await openDocker(t, { shared: true });
  if (!docker) return;
  const backend = openBackend(docker, ['0', '1']);
  const tag = freshTag();
  const refused = await backend.order(1, tag);
  assert.equal(refused.kind, 'refused', JSON.stringify(refused));
  assert.match((refused as { words: string }).words, /could not select device driver "nvidia"/);
  assert.equal(await backend.inspect(tag), undefined);
});

/** A purser that leases GPUs. */
async function openGpuServer(t: TestContext, engine: Engine, devices: string[]) {
  const provider_one = {
    backend: 'container',
    socket: engine.socket,
    image: IMAGE,
    prices: { cpu_hourly_usd: '0', memory_gib_hourly_usd: '0', gpu_hourly_usd: { h100: '2.50' } },
    limits: { cpus: 2, memory_gib: 1, gpus: 2, disk_gb: 20, max_seconds: 3600 },
    gpu_devices: { h100: devices },
  };
  const purser = await openTestServer(t, { settings: { compute: { provider_one } } });
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const lease = (key: string = randomUUID()) =>
    purser.ask('POST', '/v1/compute/create', { token, key, body: { provider: 'provider_one', spec: SPEC } });
  const machines = async () =>
    (await purser.app.slots.list[0]?.backend.listOwned(tagPrefix(purser.app.installationId)))?.length;
  return Object.assign(purser, { token, lease, machines });
}

test('two agents race for the last GPU: one pays and has it, the other pays nothing', async (t) => {
  const opened = await openGpus(t, 1);
  if (!opened) return;
  const purser = await openGpuServer(t, opened.engine, opened.gpus.names);
  const answers = await Promise.all([purser.lease(), purser.lease()]);
  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 503], answers.map(({ text }) => text).join('\n'));
  assert.equal(answers.find(({ status }) => status === 503)?.body.error.code, 'capacity_unavailable');
  const budget = await purser.budget(purser.token);
  assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.416666667']);
  const { offers } = (await purser.ask('GET', '/v1/compute/offers', { token: purser.token })).body;
  assert.deepEqual(
    offers.map((it: { spec: { gpus: number }; available: boolean }) => [it.spec.gpus, it.available]),
    [
      [0, true],
      [1, false],
    ],
  );
  assert.deepEqual(purser.problems(), []);
});

test('the use of the GPUs of a lease is in its status', async (t) => {
  const opened = await openGpus(t, 2);
  if (!opened) return;
  const { ask, lease, token, problems } = await openGpuServer(t, opened.engine, opened.gpus.names);
  const { id } = (await lease()).body;
  const usage = await until('all of it was read', async () => {
    const { body } = await ask('POST', '/v1/compute/status', { token, body: { id } });
    return body.usage?.gpus && body.usage.memory_bytes !== undefined && body.usage;
  });
  assert.deepEqual(usage.gpus, [{ utilization_percent: 40, memory_bytes: 1024 ** 3 }], 'of its own, and no other');
  assert.deepEqual(problems(), []);
});

test('a tenant with an nvidia-smi of his own can falsify or flood the use of his GPU, and no other figure', async (t) => {
  const flood = 'printf "purser-cpu cgroup 9 1 1\\n100, 9999999\\n"; yes "0, 0" | head -n 1000000';
  const opened = await openGpus(t, 1, flood);
  if (!opened) return;
  const { app, ask, lease, token, problems } = await openGpuServer(t, opened.engine, opened.gpus.names);
  const { id } = (await lease()).body;
  const usage = await until('all of it was read', async () => {
    const { body } = await ask('POST', '/v1/compute/status', { token, body: { id } });
    return app.usages.get(id)?.guest.last() && body.usage?.memory_bytes !== undefined && body.usage;
  });
  assert.equal('gpus' in usage, false);
  assert.ok(usage.cpu_seconds < 9, JSON.stringify(usage));
  assert.doesNotMatch(await app.events.registry.metrics(), /purser_leases_gpus\{/);
  assert.deepEqual(problems(), []);
});

test('a lease whose GPU never arrives is never sold, and its reason reaches the operator', async (t) => {
  const opened = await openGpus(t, 0);
  if (!opened) return;
  const purser = await openGpuServer(t, opened.engine, [opened.gpus.absent]);
  const asked = purser.lease('k');
  const seen = await until('its GPUs were counted', async () => {
    const [resource] = (await purser.run('resource.list', {})).resources;
    return resource?.last_error ? resource : undefined;
  });
  assert.deepEqual(
    [seen.status, seen.last_error],
    ['provisioning', 'nvidia-smi -L shows 0 of 1 GPUs inside (No devices were found)'],
  );
  assert.equal(await purser.machines(), 1);
  assert.equal((await purser.budget(purser.token)).used_usd, '0.00');
  purser.clock.advance(61);
  const answer = await asked;
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable'], answer.text);
  assert.match(answer.body.error.message, /never became ready \(create_failed\)/);
  const [operation] = (await purser.run('operation.list', {})).operations;
  assert.match(operation?.reason ?? '', /nvidia-smi -L shows 0 of 1 GPUs inside/);
  const budget = await purser.budget(purser.token);
  assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);
  assert.equal(await purser.machines(), 0);
  assert.deepEqual(purser.problems(), []);
});

test('GPUs are counted as nvidia-smi lists them, divided ones by their parts', () => {
  const whole = 'GPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n';
  const divided =
    'GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 3g.20gb Device 0: (UUID: MIG-1)\n  MIG 3g.20gb Device 1: (UUID: MIG-2)\n';
  assert.deepEqual([whole, divided, divided + whole, 'No devices found.\n', ''].map(countGpus), [2, 2, 4, 0, 0]);
});
