import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent } from '../../helper/component.ts';
import { hasEnded, until, untilServes } from '../../helper/waiting.ts';

export const IMAGE = 'localhost/busybox:1';
export const IMAGE_WITH_VOLUME = 'localhost/busybox-volume:1';
const REVIVAL_COUNT = 5;
const LEAVES_THE_NETWORK_ALONE = [
  '--bridge=none',
  '--iptables=false',
  '--ip6tables=false',
  '--ip-forward=false',
  '--ip-masq=false',
  '--userland-proxy=false',
];

/** A real engine on its own socket. It leaves the host's network alone. */
export type Engine = { socket: string; docker: Docker; directory: string; stop(): Promise<void> };
/** An engine whose daemon can be stopped and restarted. */
export type Daemon = Engine & {
  /** Sends the daemon a signal. */
  signal(signal: NodeJS.Signals): void;
  /** Starts the daemon again after it was ended by a signal; resolves when it answers. */
  revive(): Promise<void>;
};

export type DockerOptions = {
  /** Stopped by the code that opened it, not with the test. */
  shared?: boolean;
  /** The data directory, if not in its own directory. */
  data?: string;
  flags?: string[];
  /** Settings of its daemon.json. */
  settings?: object;
  /** Runs in its own network namespace, where it may make networks. */
  apart?: boolean;
  /** A directory that it does not see, as if it ran on another machine. */
  blindTo?: string;
};

/** Starts a real dockerd in a temporary directory, with a small image. Without dockerd, returns undefined and skips the test. */
export async function openDocker(
  t: Pick<TestContext, 'after' | 'skip'>,
  { shared = false, data, flags = [], settings = {}, apart = false, blindTo }: DockerOptions = {},
): Promise<Daemon | undefined> {
  if (!hasComponent(t, 'docker')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-docker-'));
  const socket = `unix://${directory}/docker.sock`;
  const places = ['--data-root', data ?? `${directory}/data`, '--exec-root', `${directory}/exec`];
  writeFileSync(`${directory}/daemon.json`, JSON.stringify(settings));
  const hide = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs none "$0" && exec "$@"', blindTo as string];
  const command = [
    ...(blindTo === undefined ? [] : hide),
    'dockerd',
    '-H',
    socket,
    ...places,
    '--pidfile',
    `${directory}/pid`,
    '--config-file',
    `${directory}/daemon.json`,
    ...LEAVES_THE_NETWORK_ALONE,
    ...flags,
  ];
  let child = startEngine(command, { directory, apart });
  const docker = new Docker({ socketPath: `${directory}/docker.sock` });
  const stop = () => stopEngine({ docker, child, directory });
  try {
    await untilReady(docker, child);
    await importBusybox(docker, directory);
  } catch (error) {
    await stop();
    throw error;
  }
  if (!shared) t.after(stop);
  return {
    socket,
    docker,
    directory,
    stop,
    signal: (signal) => void child.kill(signal),
    async revive() {
      if (!hasEnded(child)) await once(child, 'exit');
      // Its containerd ends a moment later. A daemon that still sees it would wait for it in vain.
      await until('containerd has ended', async () => !isAlive(`${directory}/exec/containerd/containerd.pid`));
      for (let attempts = REVIVAL_COUNT; ; attempts--) {
        child = startEngine(command, { directory, apart });
        try {
          return await untilReady(docker, child);
        } catch (error) {
          // On a busy machine its containerd may take longer than a daemon waits for it.
          if (!hasEnded(child) || attempts === 1) throw error;
        }
      }
    },
  };
}

/** A watchdog as Purser starts it beside process 1: that of the engine's default runtime, and of one that is named. */
export const WATCHDOG = ['/proc/1/exe'];
export const COPIED_WATCHDOG = ['/.purser/watchdog', '/.purser'];

/** Returns the deadline that a container's watchdog has, read as Purser reads it. */
export async function deadlineInside(docker: Docker, container: string, watchdog = WATCHDOG): Promise<number> {
  const exec = await docker.getContainer(container).exec({
    Cmd: watchdog,
    User: '63541:63541',
    AttachStdout: true,
    Tty: true,
  });
  const stream = await exec.start({ Tty: true });
  let said = '';
  for await (const chunk of stream) said += chunk;
  return Number(said);
}

/** Runs a program as the tenant's root, without Purser and without a shell. Returns its exit code and output. */
export async function runAsRoot(docker: Docker, container: string, ...argv: string[]): Promise<[number, string]> {
  const exec = await docker
    .getContainer(container)
    .exec({ Cmd: argv, User: '0:0', AttachStdout: true, AttachStderr: true, Tty: true });
  let said = '';
  for await (const chunk of await exec.start({ Tty: true })) said += chunk;
  const code = await until('it has ended', async () => {
    const { Running, ExitCode } = await exec.inspect();
    return !Running && String(ExitCode);
  });
  return [Number(code), said];
}

/** Returns whether the process that a pid file names is running. */
function isAlive(pidFile: string): boolean {
  try {
    const status = readFileSync(`/proc/${readFileSync(pidFile, 'utf8').trim()}/status`, 'utf8');
    return !/^State:\tZ/m.test(status);
  } catch {
    return false;
  }
}

/** Starts an engine that works in `directory`, with `apart` in its own network namespace. */
export function startEngine(
  command: string[],
  { directory, apart, env = {} }: { directory: string; apart: boolean; env?: Record<string, string> },
): ChildProcess {
  const [program, ...args] = apart ? ['unshare', '--net', ...command] : command;
  return spawn(program as string, args, {
    // Podman's conmon leaves a file `oom` where it works.
    cwd: directory,
    stdio: ['ignore', 'ignore', 'pipe'],
    // Docker's containerd leaves its stacks in the temporary directory, Podman a copy of each image that it imports.
    env: { ...process.env, TMPDIR: directory, ...env },
  });
}

/** Waits until an engine that was just started answers. */
export async function untilReady(docker: Docker, child: ChildProcess): Promise<void> {
  let said = '';
  child.stderr?.on('data', (chunk) => {
    said = (said + chunk).slice(-4000);
  });
  await untilServes(
    child,
    () => said,
    () => docker.ping().then(...[() => true, () => false]),
  );
}

/** Removes the engine's containers, ends it by its pid, and undoes its mounts. */
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
  if (!hasEnded(child)) {
    const ended = once(child, 'exit');
    child.kill('SIGTERM');
    await ended;
  }
  await until('what it left has ended', async () => endLeft(directory) === 0);
  unmountBelow(directory);
  rmSync(directory, { recursive: true, force: true });
}

/**
 * Ends processes that an engine left behind, and returns how many there were. Podman's monitor of an exec stays for five
 * minutes, and its cleanup writes into the directory that is about to be removed. An engine without root
 * leaves one that keeps its namespaces. Only processes whose command or environment names this directory are ended, each
 * by its id.
 */
function endLeft(directory: string): number {
  const left = readdirSync('/proc').filter((pid) => {
    try {
      const says = (file: string) => readFileSync(`/proc/${pid}/${file}`, 'utf8').includes(`${directory}/`);
      return /^\d+$/.test(pid) && (says('cmdline') || says('environ'));
    } catch {
      return false; // It has ended in the meantime.
    }
  });
  for (const pid of left)
    try {
      process.kill(Number(pid), 'SIGKILL');
    } catch {}
  return left.length;
}

export function unmountBelow(directory: string): void {
  const script = 'for m in $(awk \'{print $2}\' /proc/mounts | grep "^$0/" | sort -r); do umount -l "$m"; done';
  execFileSync('sh', ['-c', script, directory]);
}

/** Imports an image without a registry: busybox and a link for each of its commands. */
export async function importBusybox(docker: Docker, directory: string): Promise<void> {
  const archive = packBusybox(directory);
  await importImage(docker, archive, { repo: IMAGE }); // Podman takes no tag of its own.
  await importImage(docker, archive, { repo: IMAGE_WITH_VOLUME, changes: 'VOLUME /data' });
}

export async function importImage(
  docker: Docker,
  archive: string | NodeJS.ReadableStream,
  options: object,
): Promise<void> {
  const stream = await docker.importImage(archive, options);
  await new Promise<void>((resolve, reject) =>
    docker.modem.followProgress(stream, (error) => (error ? reject(error) : resolve())),
  );
}

/** Packs the files of that image below `directory`. */
export function packBusybox(directory: string): string {
  const bin = join(directory, 'rootfs', 'bin');
  mkdirSync(bin, { recursive: true });
  mkdirSync(join(directory, 'rootfs', 'tmp'), { mode: 0o1777 });
  const busybox = execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim();
  copyFileSync(busybox, join(bin, 'busybox'));
  for (const name of execFileSync(busybox, ['--list'], { encoding: 'utf8' }).trim().split('\n'))
    if (name !== 'busybox') symlinkSync('busybox', join(bin, name));
  const archive = join(directory, 'busybox.tar');
  execFileSync('tar', ['-C', join(directory, 'rootfs'), '-cf', archive, '.']);
  return archive;
}
