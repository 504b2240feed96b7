import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import { openContainerBackend } from '../../src/compute/backends/container/container.ts';
import { conform, type Subject } from './conformance.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

const engines: { docker?: Engine | undefined; podman?: Engine | undefined } = {};
after(async () => {
  await engines.docker?.stop();
  await engines.podman?.stop();
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
    { prefix: 'purser-inst-conformance-' },
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

async function openSharedDocker(t: TestContext): Promise<Engine | undefined> {
  engines.docker ??= await openDocker(t, { shared: true });
  return engines.docker;
}
async function openSharedPodman(t: TestContext): Promise<Engine | undefined> {
  engines.podman ??= await openPodman(t);
  return engines.podman;
}

conform('container on Docker', async (t) => subject(await openSharedDocker(t)));
conform('container on Podman', async (t) => subject(await openSharedPodman(t)));

for (const name of ['Docker', 'Podman'] as const)
  test(`${name}: a container is limited, without capabilities and network, and says nothing into a log`, async (t) => {
    const opened = subject(await (name === 'Docker' ? openSharedDocker(t) : openSharedPodman(t)));
    if (!opened) return;
    const { backend, spec } = opened;
    const tag = 'purser-inst-conformance-res-limits';
    const deadline = Math.floor(Date.now() / 1000) + 600;
    const created = await backend.create({ tag, quote: await backend.quote(spec), deadline });
    assert.deepEqual(created, { kind: 'created', ref: tag });
    const sh = async (command: string) => {
      const said = await backend.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 4096 });
      return `${said.stdout}${said.stderr}${said.exitCode}`.trim();
    };
    assert.equal(
      await sh("awk '/^Cap(Prm|Eff|Bnd)|^NoNewPrivs/ { print $2 }' /proc/1/status"),
      [...Array(3).fill('0'.repeat(16)), '1', '0'].join('\n'),
    );
    assert.equal(await sh('ls /sys/class/net; hostname; pwd; echo $NVIDIA_VISIBLE_DEVICES'), 'lo\nlease\n/\nvoid\n0');
    assert.match(await sh('echo x > /.purser-watchdog'), /Permission denied/);
    assert.equal(await sh('cat /proc/self/oom_score_adj'), '500\n0', 'it is ended before Purser is');
    assert.match(await sh('dd if=/dev/zero of=/dev/null bs=300M count=1'), /137$/, 'more than its memory kills it');
    assert.match(await sh('for i in $(seq 80); do sleep 1 & done; wait'), /can't fork/);
    await sh('for i in $(seq 1000); do echo noise > /proc/1/fd/1; done');
    const { HostConfig, LogPath } = await (engines[name === 'Docker' ? 'docker' : 'podman'] as Engine).docker
      .getContainer(tag)
      .inspect();
    assert.deepEqual([HostConfig.LogConfig?.Type, LogPath], ['none', '']);
    assert.deepEqual([HostConfig.CpuShares, HostConfig.OomScoreAdj, HostConfig.Binds ?? []], [128, 500, []]);
    assert.equal(HostConfig.NanoCpus || (HostConfig.CpuQuota ?? 0) * 1e4, 5e8);
    await backend.destroy(tag);
  });
