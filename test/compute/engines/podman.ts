import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent, hasProgram } from '../../helper/component.ts';
import { type Engine, importBusybox, stopEngine, untilReady } from './docker.ts';

/** Limits that a host without CAP_SYS_RESOURCE can give, a runtime for hybrid cgroups, and no systemd. */
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

/** Starts a real Podman service in a temporary directory, with a small image in it. Undefined, and the test skipped, without one. */
export async function openPodman(t: TestContext): Promise<Engine | undefined> {
  const isThere = () =>
    process.getuid?.() === 0 && ['podman', '/usr/lib/podman/netavark', 'runc', 'busybox'].every(hasProgram);
  if (!hasComponent(t, 'podman', isThere)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-podman-'));
  const conf = join(directory, 'containers.conf');
  writeFileSync(conf, CONTAINERS_CONF);
  const socket = `unix://${directory}/podman.sock`;
  // Flags, not CONTAINERS_STORAGE_CONF: conmon's last command would not inherit that.
  const storage = ['--root', `${directory}/graph`, '--runroot', `${directory}/run`, '--tmpdir', `${directory}/libpod`];
  const child = spawn('podman', [...storage, '--storage-driver', 'overlay', 'system', 'service', '--time=0', socket], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, CONTAINERS_CONF: conf },
  });
  const docker = new Docker({ socketPath: `${directory}/podman.sock` });
  async function stop() {
    await stopEngine({ docker, child, directory });
    endMonitors(directory);
  }
  await untilReady(docker, child);
  await importBusybox(docker, directory);
  return { socket, docker, directory, stop };
}

/** The monitor of an exec stays for five minutes after it: those of this directory are ours, and are ended by their ids. */
function endMonitors(directory: string): void {
  for (const pid of readdirSync('/proc').filter((it) => /^\d+$/.test(it)))
    try {
      const commandLine = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
      if (commandLine.includes('conmon') && commandLine.includes(`${directory}/`)) process.kill(Number(pid), 'SIGKILL');
    } catch {} // It has ended meanwhile.
}
