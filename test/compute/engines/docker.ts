import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent, hasProgram } from '../../helper/component.ts';
import { until } from '../conformance.ts';

export const IMAGE = 'localhost/busybox:1';
const READY_MILLISECONDS = 30_000;
const LEAVES_THE_NETWORK_ALONE = [
  '--bridge=none',
  '--iptables=false',
  '--ip6tables=false',
  '--ip-forward=false',
  '--ip-masq=false',
  '--userland-proxy=false',
];

/** A real engine on a socket of its own; the host's network is left alone. */
export type Engine = { socket: string; docker: Docker; directory: string; stop(): Promise<void> };

export type DockerOptions = {
  /** Stopped by whoever opened it, not with the test. */
  shared?: boolean;
  /** Where its data lies, if not in its own directory. */
  data?: string;
  flags?: string[];
};

/** Starts a real dockerd in a temporary directory, with a small image in it. Undefined, and the test skipped, without one. */
export async function openDocker(
  t: TestContext,
  { shared = false, data, flags = [] }: DockerOptions = {},
): Promise<Engine | undefined> {
  const isThere = () => process.getuid?.() === 0 && hasProgram('dockerd') && hasProgram('busybox');
  if (!hasComponent(t, 'docker', isThere)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-docker-'));
  const socket = `unix://${directory}/docker.sock`;
  const places = ['--data-root', data ?? `${directory}/data`, '--exec-root', `${directory}/exec`];
  const child = spawn(
    'dockerd',
    ['-H', socket, ...places, '--pidfile', `${directory}/pid`, ...LEAVES_THE_NETWORK_ALONE, ...flags],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  );
  const docker = new Docker({ socketPath: `${directory}/docker.sock` });
  const stop = () => stopEngine({ docker, child, directory });
  if (!shared) t.after(stop);
  await untilReady(docker, child);
  await importBusybox(docker, directory);
  return { socket, docker, directory, stop };
}

/** Waits until an engine that was just started answers. */
export async function untilReady(docker: Docker, child: ChildProcess): Promise<void> {
  let said = '';
  child.stderr?.on('data', (chunk) => {
    said = (said + chunk).slice(-4000);
  });
  await until(
    'the engine answers',
    () =>
      docker.ping().then(
        () => true,
        () => assert.equal(child.exitCode, null, `the engine ended: ${said}`),
      ),
    READY_MILLISECONDS,
  );
}

/** Removes what it runs, ends it by its pid, and undoes its mounts. */
export async function stopEngine({
  docker,
  child,
  directory,
}: {
  docker: Docker;
  child: ChildProcess;
  directory: string;
}) {
  for (const { Id } of await docker.listContainers({ all: true }).catch(() => []))
    await docker
      .getContainer(Id)
      .remove({ force: true })
      .catch(() => {});
  if (child.exitCode === null) {
    const ended = once(child, 'exit');
    child.kill('SIGTERM');
    await ended;
  }
  unmountBelow(directory);
  rmSync(directory, { recursive: true, force: true });
}

export function unmountBelow(directory: string): void {
  const script = 'for m in $(awk \'{print $2}\' /proc/mounts | grep "^$0/" | sort -r); do umount -l "$m"; done';
  execFileSync('sh', ['-c', script, directory]);
}

/** An image without a registry: busybox and a link for each of its commands. */
export async function importBusybox(docker: Docker, directory: string): Promise<void> {
  const bin = join(directory, 'rootfs', 'bin');
  mkdirSync(bin, { recursive: true });
  mkdirSync(join(directory, 'rootfs', 'tmp'), { mode: 0o1777 });
  const busybox = execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim();
  copyFileSync(busybox, join(bin, 'busybox'));
  for (const name of execFileSync(busybox, ['--list'], { encoding: 'utf8' }).trim().split('\n'))
    if (name !== 'busybox') symlinkSync('busybox', join(bin, name));
  const archive = join(directory, 'busybox.tar');
  execFileSync('tar', ['-C', join(directory, 'rootfs'), '-cf', archive, '.']);
  const stream = (await docker.importImage(archive, { repo: IMAGE })) as NodeJS.ReadableStream; // Podman takes no tag.
  await new Promise<void>((resolve, reject) =>
    docker.modem.followProgress(stream, (error) => (error ? reject(error) : resolve())),
  );
}
