import type { EngineSettings } from '../../../src/compute/engines/container/address.ts';
import { openContainerBackend } from '../../../src/compute/engines/container/container.ts';
import type { Subject } from '../conformance.ts';
import { IMAGE } from './docker.ts';

/** The container backend on a real engine, for the suite of all backends; `change` changes its settings. */
export function containerSubject(engine: EngineSettings, change: object = {}): Subject {
  const backend = openContainerBackend(
    {
      backend: 'container',
      ...engine,
      image: IMAGE,
      pull: 'never',
      network: 'none',
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 20_000_000n, memory_gib_hourly_usd: 5_000_000n, gpu_hourly_usd: {} },
      limits: { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 20, max_seconds: 3600 },
      gpu_mode: 'nvidia',
      ...change,
    },
    { prefix: 'purser-inst-conformance-', now: () => Math.floor(Date.now() / 1000) },
  );
  const spec = { gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
  return {
    backend,
    spec,
    unknownSpec: { ...spec, gpu: 'no-such-gpu', gpus: 0 },
    room: 2,
    extends: true,
    deadlineMinSeconds: 3,
  };
}
