import { execFileSync, spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent, hasProgram } from '../../helper/component.ts';
import { until } from '../conformance.ts';

export const IMAGE = 'localhost/busybox:1';
const READY_MILLISECONDS = 30_000;

/** A real engine on a socket of its own; the host's network is left alone. */
export type Engine = { socket: string; docker: Docker; directory: string; stop(): Promise<void> };

/** Starts a real dockerd in a temporary directory, with a small image in it. Undefined, and the test skipped, without one. */
export async function openDocker(t: TestContext, { shared = false } = {}): Promise<Engine | undefined> {
  const isThere = () => process.getuid?.() === 0 && hasProgram('dockerd') && hasProgram('busybox');
  if (!hasComponent(t, 'docker', isThere)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-docker-'));
  const socket = `unix://${directory}/docker.sock`;
  const flags = [
    '--bridge=none',
    '--iptables=false',
    '--ip6tables=false',
    '--ip-forward=false',
    '--ip-masq=false',
    '--userland-proxy=false',
  ];
  const child = spawn(
    'dockerd',
    [
      '-H',
      socket,
      '--data-root',
      `${directory}/data`,
      '--exec-root',
      `${directory}/exec`,
      '--pidfile',
      `${directory}/pid`,
      ...flags,
    ],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let said = '';
  child.stderr.on('data', (chunk) => {
    said = (said + chunk).slice(-4000);
  });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  const docker = new Docker({ socketPath: `${directory}/docker.sock` });
  async function stop() {
    for (const { Id } of await docker.listContainers({ all: true }).catch(() => []))
      await docker
        .getContainer(Id)
        .remove({ force: true })
        .catch(() => {});
    child.kill('SIGTERM');
    await ended;
    try {
      execFileSync('sh', [
        '-c',
        `for m in $(awk '{print $2}' /proc/mounts | grep '^${directory}/' | sort -r); do umount -l "$m"; done`,
      ]);
    } catch {}
    rmSync(directory, { recursive: true, force: true });
  }
  if (!shared) t.after(stop);
  await until(
    `dockerd answers: ${said}`,
    () =>
      docker.ping().then(
        () => true,
        () => false,
      ),
    READY_MILLISECONDS,
  );
  await importBusybox(docker, directory);
  return { socket, docker, directory, stop };
}

/** An image without a registry: busybox and a link for each of its commands. */
async function importBusybox(docker: Docker, directory: string): Promise<void> {
  const bin = join(directory, 'rootfs', 'bin');
  mkdirSync(bin, { recursive: true });
  mkdirSync(join(directory, 'rootfs', 'tmp'), { mode: 0o1777 });
  const busybox = execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim();
  copyFileSync(busybox, join(bin, 'busybox'));
  for (const name of execFileSync(busybox, ['--list'], { encoding: 'utf8' }).trim().split('\n'))
    if (name !== 'busybox') symlinkSync('busybox', join(bin, name));
  const archive = join(directory, 'busybox.tar');
  execFileSync('tar', ['-C', join(directory, 'rootfs'), '-cf', archive, '.']);
  const [repo, tag] = IMAGE.split(':');
  const stream = (await docker.importImage(archive, { repo, tag })) as NodeJS.ReadableStream;
  await new Promise<void>((resolve, reject) =>
    docker.modem.followProgress(stream, (error) => (error ? reject(error) : resolve())),
  );
}
