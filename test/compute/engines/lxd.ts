import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { type LxdApi, openLxdApi, succeeded } from '../../../src/compute/engines/lxd/api.ts';
import { openLxdBackend } from '../../../src/compute/engines/lxd/lxd.ts';
import type { LxdSettings } from '../../../src/compute/engines/lxd/settings.ts';
import { hasComponent } from '../../helper/component.ts';
import { hasEnded, untilServes } from '../../helper/waiting.ts';
import type { Subject } from '../conformance.ts';
import { packBusybox, unmountBelow } from './docker.ts';

export const LXD_IMAGE = 'busybox';
export const LXD_PREFIX = 'purser-inst-conformance-';
const STOP_MILLISECONDS = 3_000;
const CHANGE_MILLISECONDS = 60_000;
const ARCHITECTURES: Record<string, string> = { x64: 'x86_64', arm64: 'aarch64' };

/** A real LXD in a directory of its own, with a pool and an image of busybox. It makes no network. */
export type Lxd = {
  socket: string;
  directory: string;
  /** Where it keeps what it has. */
  data: string;
  api: LxdApi;
  /** Ends the daemon with a signal. What runs goes on. */
  end(signal?: NodeJS.Signals): Promise<void>;
  /** Starts the daemon; resolves when it answers. */
  start(): Promise<void>;
  stop(): Promise<void>;
};

/** Starts one, which the caller stops. Without LXD, returns undefined and skips the test. */
export async function openLxd(t: Pick<TestContext, 'skip'>, roots?: string): Promise<Lxd | undefined> {
  if (!hasComponent(t, 'lxd')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-lxd-'));
  chmodSync(directory, 0o711); // The root of a container is another user outside.
  const data = join(directory, 'data');
  mkdirSync(data, { mode: 0o711 });
  const socket = `unix://${data}/unix.socket`;
  const api = openLxdApi({ socket }, 'default');
  let child: ChildProcess | undefined;

  const lxd: Lxd = {
    socket,
    directory,
    data,
    api,
    async start() {
      child = spawn('lxd', ['--logfile', `${directory}/log`], {
        env: { PATH: process.env.PATH, LXD_DIR: data },
        cwd: directory,
        stdio: 'ignore',
      });
      await untilServes(
        child,
        () => readFileSync(`${directory}/log`, 'utf8'),
        () => api.ask('GET', '/1.0').then(...[() => true, () => false]),
      );
    },
    async end(signal = 'SIGTERM') {
      if (!child || hasEnded(child)) return;
      const ended = once(child, 'exit');
      child.kill(signal);
      const hard = setTimeout(() => child?.kill('SIGKILL'), STOP_MILLISECONDS); // It waits for every command.
      await ended;
      clearTimeout(hard);
    },
    async stop() {
      for (const { name } of await api.ask<{ name: string }[]>('GET', '/1.0/instances?recursion=1').catch(() => [])) {
        const halt = { action: 'stop', force: true, timeout: 10 };
        await api.run('PUT', `/1.0/instances/${name}/state`, halt, CHANGE_MILLISECONDS).catch(() => {});
        await api.run('DELETE', `/1.0/instances/${name}`, undefined, CHANGE_MILLISECONDS).catch(() => {});
      }
      await lxd.end();
      await api.close();
      unmountBelow(directory);
      for (const it of globSync(['/sys/fs/cgroup/lxc.pivot', '/sys/fs/cgroup/*/lxc.pivot'])) // liblxc leaves its own group behind.
        try {
          rmdirSync(it);
        } catch {} // Somebody else uses it.
      rmSync(directory, { recursive: true, force: true });
    },
  };
  try {
    await lxd.start();
    await api.ask('POST', '/1.0/storage-pools', { name: 'default', driver: 'dir', config: {} });
    await importImage(api, directory, LXD_IMAGE, roots);
  } catch (error) {
    const said = readFileSync(`${directory}/log`, 'utf8').slice(-2000);
    await lxd.stop();
    throw new Error(`${(error as Error).message}: ${said}`);
  }
  return lxd;
}

/** Makes an image of busybox; with `roots`, the certificates that it trusts. */
async function importImage(api: LxdApi, directory: string, alias: string, roots?: string): Promise<void> {
  const place = join(directory, 'image');
  mkdirSync(place);
  packBusybox(place);
  for (const folder of ['proc', 'sys', 'dev', 'etc']) mkdirSync(join(place, 'rootfs', folder));
  chmodSync(join(place, 'rootfs', 'tmp'), 0o1777);
  if (roots !== undefined) {
    const certificates = join(place, 'rootfs/etc/ssl/certs');
    mkdirSync(certificates, { recursive: true });
    writeFileSync(join(certificates, 'ca-certificates.crt'), roots);
  }
  const architecture = ARCHITECTURES[process.arch];
  writeFileSync(join(place, 'metadata.yaml'), `architecture: ${architecture}\ncreation_date: 1\n`);
  execFileSync('tar', ['-C', place, '-czf', join(place, 'image.tar.gz'), 'metadata.yaml', 'rootfs']);
  const headers = { 'content-type': 'application/octet-stream', 'X-LXD-filename': 'image.tar.gz' };
  const { id } = await api.ask<{ id: string }>('POST', '/1.0/images', readFileSync(join(place, 'image.tar.gz')), {
    headers,
  });
  const { metadata } = succeeded(await api.wait(id));
  await api.ask('POST', '/1.0/images/aliases', { name: alias, target: metadata?.fingerprint });
}

export const lxdSettings = (socket: string): LxdSettings & { prices: object } => ({
  backend: 'lxd',
  socket,
  project: 'default',
  pool: 'default',
  image: LXD_IMAGE,
  type: 'container',
  user: 1000,
  directory: '/home/lease',
  pids: 64,
  provision_seconds: 60,
  prices: { cpu_hourly_usd: 20_000_000n, memory_gib_hourly_usd: 5_000_000n, gpu_hourly_usd: {} },
  limits: { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 20, max_seconds: 3600 },
  capacity: { cpus: 64, memory_gib: 64 }, // More than the machine has, whichever that is.
});

/** The lxd backend on a real LXD, for the suite of all backends; `change` changes its settings. */
export function lxdSubject(socket: string, change: object = {}): Subject {
  const backend = openLxdBackend({ ...lxdSettings(socket), ...change } as LxdSettings, {
    prefix: LXD_PREFIX,
    now: () => Math.floor(Date.now() / 1000),
  });
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
