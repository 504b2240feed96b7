import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import { openContainerBackend } from '../../src/compute/backends/container.ts';
import { conform, type Subject } from './conformance.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

const engines: { docker?: Engine | undefined; podman?: Engine | undefined } = {};
let leases: string;
before(() => {
  leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
});
after(async () => {
  await engines.docker?.stop();
  await engines.podman?.stop();
  rmSync(leases, { recursive: true, force: true });
});

function subject(engine: Engine | undefined): Subject | undefined {
  if (!engine) return undefined;
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket: engine.socket,
      image: IMAGE,
      pull: 'never',
      network: 'none',
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 20_000_000n, memory_gib_hourly_usd: 5_000_000n, gpu_hourly_usd: {} },
      limits: { cpus: 2, memory_gib: 1, gpus: 0, max_seconds: 3600 },
      gpu_mode: 'nvidia',
    },
    { leases, prefix: 'purser-inst-conformance-' },
  );
  const spec = { gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
  return {
    backend,
    spec,
    unknownSpec: { ...spec, gpu: 'no-such-gpu', gpus: 0 },
    room: 2,
    extends: true,
    deadlineSlackSeconds: 5,
    deadlineLeastSeconds: 3,
  };
}

conform('container on Docker', async (t) => {
  engines.docker ??= await openDocker(t, { shared: true });
  return subject(engines.docker);
});

conform('container on Podman', async (t) => {
  engines.podman ??= await openPodman(t);
  return subject(engines.podman);
});
