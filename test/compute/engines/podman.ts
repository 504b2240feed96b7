import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent, hasProgram } from '../../helper/component.ts';
import { type Engine, importBusybox, startEngine, stopEngine, untilReady } from './docker.ts';

/** Limits that a host without CAP_SYS_RESOURCE can set, a runtime for hybrid cgroups, and no systemd. */
const CONTAINERS_CONF = `[containers]
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
};

/** Starts a real Podman service in a temporary directory, with a small image. Without Podman, returns undefined and skips the test. */
export async function openPodman(
  t: TestContext,
  { registry = 'localhost', driver = 'overlay', data, apart = false }: PodmanOptions = {},
): Promise<Engine | undefined> {
  const isThere = () =>
    process.getuid?.() === 0 && ['podman', '/usr/lib/podman/netavark', 'runc', 'busybox'].every(hasProgram);
  if (!hasComponent(t, 'podman', isThere)) return undefined;
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
  const env = { ...process.env, CONTAINERS_CONF: conf, CONTAINERS_REGISTRIES_CONF: registries };
  const child = startEngine(['podman', ...places, 'system', 'service', '--time=0', socket], apart, env);
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
