import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { openContainerBackend } from '../../src/compute/backends/container/container.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

/** A lease in the named network: what was answered, and the interfaces inside. */
async function rentIn(engine: Engine, network: string) {
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image: IMAGE,
      pull: 'never',
      network,
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: {} },
      limits: { cpus: 1, memory_gib: 1, gpus: 0, max_seconds: 3600 },
      gpu_mode: 'nvidia',
    },
    { prefix: 'purser-inst-network-' },
  );
  const tag = `purser-inst-network-res-${randomBytes(4).toString('hex')}`;
  const quote = await backend.quote({ gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.1, max_seconds: 60 });
  const created = await backend.create({ tag, quote, deadline: Math.floor(Date.now() / 1000) + 120 });
  const order = { command: 'ls /sys/class/net', timeoutSeconds: 10, streamBytesMax: 1000 };
  const seen = created.kind === 'created' ? (await backend.exec(tag, order)).stdout.toString().trim().split('\n') : [];
  await backend.destroy(tag);
  return { created, seen };
}

const ENGINES: [name: string, open: (t: TestContext) => Promise<Engine | undefined>][] = [
  ['Docker', (t) => openDocker(t, { shared: true, apart: true })],
  ['Podman', (t) => openPodman(t, { apart: true })],
];

for (const [name, open] of ENGINES)
  test(`${name}: a lease is in the network that was named, and one that is not there is a refusal`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    t.after(() => engine.stop());
    await engine.docker.createNetwork({ Name: 'agents', Internal: true });
    assert.deepEqual((await rentIn(engine, 'agents')).seen.sort(), ['eth0', 'lo']);
    assert.deepEqual((await rentIn(engine, 'none')).seen, ['lo']);
    const { created } = await rentIn(engine, 'nowhere');
    assert.equal(created.kind, 'refused', JSON.stringify(created));
    assert.match((created as { words: string }).words, /nowhere/);
    assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
  });
