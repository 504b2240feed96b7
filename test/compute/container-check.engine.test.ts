import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { openContainerBackend } from '../../src/compute/engines/container/container.ts';
import { readConfig } from '../../src/config/config.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { openTestServer } from '../helper/server.ts';
import { IMAGE, openDocker } from './engines/docker.ts';
import { openPodman } from './engines/podman.ts';

const leases = mkdtempSync(join(tmpdir(), 'purser-leases-'));
after(() => rmSync(leases, { recursive: true, force: true }));

type Over = { image?: string; network?: string; pull?: 'never' | 'missing'; gpus?: number; egress?: string[] };

async function check(socket: string, { gpus = 0, ...over }: Over = {}) {
  const backend = openContainerBackend(
    {
      backend: 'container',
      socket,
      image: IMAGE,
      pull: 'never',
      network: 'none',
      pids: 64,
      provision_seconds: 60,
      prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: { h100: 1n } },
      limits: { cpus: 2, memory_gib: 1, gpus, disk_gb: 20, max_seconds: 3600 },
      gpu_mode: 'nvidia',
      ...over,
    },
    { prefix: 'purser-inst-check-', now: () => Math.floor(Date.now() / 1000) },
  );
  const findings = await backend.doctor.check();
  return new Map(findings.map(({ name, ok, detail }) => [name, `${ok ? 'ok' : 'bad'}: ${detail}`]));
}

test('Docker: check names what is wrong, and what a lease cannot count on', async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  const { socket } = engine;
  const fit = await check(socket, { gpus: 2 });
  assert.match(fit.get('engine') ?? '', /^ok: Docker Engine \d+\.\S+ on unix:/);
  assert.equal(fit.get('image'), `ok: ${IMAGE} is there`);
  assert.equal(fit.get('network'), 'ok: none: leases reach nobody');
  const reaching = await check(socket, { egress: ['pypi.org', '10.0.5.0/24:443'] });
  assert.equal(reaching.get('network'), 'ok: none, but a way out through Purser (pypi.org, 10.0.5.0/24:443)');
  assert.match(fit.get('limits') ?? '', /^ok: the engine says that it limits memory, CPU and processes/);
  assert.match(fit.get('restart') ?? '', /^ok: live-restore is off: restarting the engine ends every lease\./);
  assert.match(fit.get('users') ?? '', /^ok: not mapped/);
  assert.match(fit.get('gpus') ?? '', /^ok: h100: 0, 1\. Not tried here/);

  const unfit = await check(socket, { image: 'localhost/nothing:1', network: 'nowhere' });
  assert.equal(unfit.get('image'), 'bad: localhost/nothing:1 is not there. Pull it, or set pull: missing');
  assert.equal(unfit.get('network'), 'bad: nowhere is not there. Make it: network create nowhere');
  const pulled = await check(socket, { image: 'localhost/nothing:1', pull: 'missing' });
  assert.equal(pulled.get('image'), 'ok: localhost/nothing:1 is not there yet: the first lease pulls it');
  assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
});

test('Docker: doctor says what check finds, and tries a lease', async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  const offers = [{ id: 'small', cpus: 0.1, memory_gib: 0.05, max_disk_gb: 1, price_hourly_usd: '0.01' }];
  const provider_three = { backend: 'container', socket: engine.socket, image: IMAGE, offers };
  const purser = await openTestServer(t, { settings: { compute: { provider_three } } });
  const config = readConfig({ data: purser.directory }, {});
  const found = new Map((await examine(config)).map((it) => [it.name, it]));
  const detail = (name: string) => {
    const it = found.get(`provider_three container: ${name}`);
    assert.equal(it?.ok, true, JSON.stringify(it));
    return it?.detail ?? '';
  };
  assert.match(detail('engine'), /^Docker Engine/);
  assert.match(detail('disk'), /^Warning: disk_gb is not enforced: overlay2 on .* are on one file system/);
  assert.match(
    detail('trial'),
    /ran a command; its disk: a lease that wrote more than disk_gb is ended; deleted files that are still open do not count\. Only quotas count them; it was destroyed and is gone$/,
  );
  assert.deepEqual(await engine.docker.listContainers({ all: true }), []);
});

test('Docker: check sees live-restore', async (t) => {
  const engine = await openDocker(t, { flags: ['--live-restore'] });
  if (!engine) return;
  assert.match((await check(engine.socket)).get('restart') ?? '', /^ok: live-restore is on/);
});

test('Podman: check names what is wrong, and what a lease cannot count on', async (t) => {
  const engine = await openPodman(t);
  if (!engine) return;
  t.after(() => engine.stop());
  const fit = await check(engine.socket);
  assert.match(fit.get('engine') ?? '', /^ok: Podman \d+\.\S+ on unix:/);
  assert.equal(fit.get('image'), `ok: ${IMAGE} is there`);
  assert.match(fit.get('limits') ?? '', /^ok: the engine says that it limits memory, CPU and processes/);
  assert.equal(fit.get('restart'), 'ok: leases outlive a restart of the engine');
  assert.equal(fit.has('gpus'), false);
  const unfit = await check(engine.socket, { image: 'localhost/nothing:1', network: 'nowhere' });
  assert.match(unfit.get('image') ?? '', /^bad: localhost\/nothing:1 is not there/);
  assert.match(unfit.get('network') ?? '', /^bad: nowhere is not there/);
});

test('an engine that is not there and one that never answers are named within their limit', async (t) => {
  const missing = await check(`unix://${leases}/nothing.sock`);
  assert.deepEqual([...missing.keys()], ['engine']);
  assert.match(missing.get('engine') ?? '', /^bad: .*nothing\.sock cannot be asked: .*ENOENT.* Is the engine running/);

  const server = createServer();
  t.after(() => server.close());
  const sockets: { destroy(): void }[] = [];
  server.on('connection', (it) => sockets.push(it));
  server.listen(join(leases, 'silent.sock'));
  await once(server, 'listening');
  const silent = await check(`unix://${leases}/silent.sock`);
  assert.match(silent.get('engine') ?? '', /^bad: .*\/version took longer than 20 s/);
  for (const it of sockets) it.destroy();
});
