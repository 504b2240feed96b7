import { chownSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent } from '../../helper/component.ts';
import { type Engine, importBusybox, startEngine, stopEngine, untilReady } from './docker.ts';

/** Limits that a host without CAP_SYS_RESOURCE can set, a runtime for hybrid cgroups, and no systemd. */
export const CONTAINERS_CONF = `[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
pids_limit = 512
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
`;

export type PodmanOptions = {
  /** A registry that it may pull from without TLS. */
  registry?: string;
  driver?: string;
  /** The data directory, if not in its own directory. */
  data?: string;
  /** Runs in its own network namespace, where it may make networks. */
  apart?: boolean;
  /** Runs as the user nobody, with subordinate ids that only this engine sees. */
  rootless?: boolean;
};

const NOBODY = 65_534;
/** Runs a program as nobody, with `$0` as the list of subordinate ids. */
const AS_NOBODY = `mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid &&
exec setpriv --reuid=${NOBODY} --regid=${NOBODY} --clear-groups "$@"`;

/** Starts a real Podman service in a temporary directory, with a small image. Without Podman, returns undefined and skips the test. */
export async function openPodman(
  t: TestContext,
  { registry = 'localhost', driver = 'overlay', data, apart = false, rootless = false }: PodmanOptions = {},
): Promise<Engine | undefined> {
  if (!hasComponent(t, 'podman')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-podman-'));
  const conf = join(directory, 'containers.conf');
  writeFileSync(conf, CONTAINERS_CONF);
  const registries = join(directory, 'registries.conf');
  writeFileSync(registries, `[[registry]]\nlocation = "${registry}"\ninsecure = true\n`);
  const socket = `unix://${directory}/podman.sock`;
  // Flags, not CONTAINERS_STORAGE_CONF: conmon's last command would not inherit that.
  const storage = [
    '--root',
    data ?? `${directory}/graph`,
    '--runroot',
    `${directory}/run`,
    '--tmpdir',
    `${directory}/libpod`,
  ];
  const places = [...storage, '--storage-driver', driver, '--network-config-dir', `${directory}/networks`];
  // For each answer to /info, Podman has `dpkg -S` search the lists of all packages for several of its programs.
  const programs = join(directory, 'bin');
  mkdirSync(programs);
  writeFileSync(join(programs, 'dpkg-query'), '#!/bin/sh\nexit 1\n', { mode: 0o755 });
  const env: Record<string, string> = {
    ...{ CONTAINERS_CONF: conf, CONTAINERS_REGISTRIES_CONF: registries },
    PATH: `${programs}:${process.env.PATH}`,
  };
  const runtime = join(directory, 'runtime');
  let command = ['podman', ...places, 'system', 'service', '--time=0', socket];
  if (rootless) {
    mkdirSync(runtime);
    for (const it of [directory, runtime]) chownSync(it, NOBODY, NOBODY);
    const ids = join(directory, 'ids');
    writeFileSync(ids, 'nobody:200000:65536\n');
    command = ['unshare', '--mount', 'sh', '-c', AS_NOBODY, ids, ...command];
    Object.assign(env, { HOME: directory, XDG_RUNTIME_DIR: runtime });
  }
  const child = startEngine(command, { directory, apart, env });
  const docker = new Docker({ socketPath: `${directory}/podman.sock` });
  const stop = () => stopEngine({ docker, child, directory });
  try {
    await untilReady(docker, child);
    await importBusybox(docker, directory);
  } catch (error) {
    await stop();
    throw error;
  }
  return { socket, docker, directory, stop };
}
