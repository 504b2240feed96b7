import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import test from 'node:test';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { findUnlimited } from '../../src/compute/kit/limits.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { IMAGE } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

const INSTALLATION = 'inst_rootless';
const now = () => Math.floor(Date.now() / 1000);

for (const rootless of [true, false])
  test(`Podman ${rootless ? 'without' : 'as'} root: the trial believes what it reads inside, and not what the engine says of its limits`, async (t) => {
    const engine = await openPodman(t, rootless ? { rootless, driver: 'vfs' } : {});
    if (!engine) return;
    t.after(() => engine.stop());
    const backend = openContainerBackend(
      {
        backend: 'container',
        socket: engine.socket,
        image: IMAGE,
        pull: 'never',
        network: 'none',
        pids: 64,
        provision_seconds: 60,
        prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: {} },
        limits: { cpus: 1, memory_gib: 1, gpus: 0, disk_gb: 20, max_seconds: 3600 },
        gpu_mode: 'nvidia',
      },
      { prefix: 'purser-inst-rootless-', now },
    );
    const findings = new Map((await backend.doctor.check()).map((it) => [it.name, it.detail]));
    assert.match(findings.get('users') ?? '', rootless ? /^root inside is nobody outside$/ : /^not mapped/);
    const tried = await selfTest({ backend, provisionSeconds: 60 }, INSTALLATION, now);
    assert.match(tried.detail, /it was destroyed and is gone$/);
    // Control groups of version 1 cannot be handed to a user.
    if (rootless && existsSync('/sys/fs/cgroup/memory')) {
      assert.equal(tried.ok, false, tried.detail);
      assert.match(tried.detail, /it runs, but inside it nothing limits its .*memory.*, whatever the engine says/);
    } else assert.equal(tried.ok, true, tried.detail);
    assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
  });

test('a limit that is too high, that is none or that cannot be read is named', () => {
  const half = 2 ** 29;
  assert.equal(findUnlimited(`memory ${half}\nprocesses 64\nCPU 50000\n`, 0.5), undefined);
  for (const [printed, what] of [
    [`memory ${half + 1}\nprocesses 64\nCPU 50000\n`, 'memory:'],
    [`memory 9223372036854771712\nprocesses max\nCPU -1\n`, 'memory and processes and CPU:'],
    [`processes 64\nCPU 50000\n`, 'memory:'],
    ['', 'memory and processes and CPU:'],
  ] as const)
    assert.ok(findUnlimited(printed, 0.5)?.includes(`nothing limits its ${what.replace(':', ',')}`), printed);
});
