import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chownSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Docker from 'dockerode';
import { hasComponent } from '../../helper/component.ts';
import { until } from '../../helper/waiting.ts';
import { type Engine, importBusybox, stopEngine, untilReady } from './docker.ts';
import { CONTAINERS_CONF } from './podman.ts';

/** User ids that containers of the user get. Nothing else on the machine has them. */
const SUB_IDS = '2000000000:65536';

/** Starts the Podman service of another user, who is made for it and removed afterwards, with a small image. */
export async function openRootlessPodman(t: TestContext): Promise<Engine | undefined> {
  if (!hasComponent(t, 'rootless podman')) return undefined;
  const user = `purser-${randomBytes(6).toString('hex')}`;
  const directory = mkdtempSync(join(tmpdir(), 'rootless-')); // Podman's runroot has at most 50 characters.
  execFileSync('useradd', ['--system', '--no-create-home', '--home-dir', directory, '--shell', '/bin/sh', user]);
  const uid = Number(execFileSync('id', ['-u', user], { encoding: 'utf8' }));
  for (const file of ['/etc/subuid', '/etc/subgid'])
    writeFileSync(file, `${readFileSync(file, 'utf8')}${user}:${SUB_IDS}\n`);
  const run = join(directory, 'run');
  mkdirSync(run, { mode: 0o700 });
  const conf = join(directory, 'containers.conf');
  writeFileSync(conf, CONTAINERS_CONF);
  for (const it of [directory, run, conf]) chownSync(it, uid, uid);
  const socket = join(run, 'podman.sock');
  const as = ['--reuid', user, '--regid', user, '--init-groups'];
  const places = ['--root', `${directory}/graph`, '--runroot', `${run}/storage`, '--tmpdir', `${run}/libpod`];
  const podman = ['podman', '--storage-driver', 'vfs', ...places, 'system', 'service', '--time=0', `unix://${socket}`];
  const child = spawn('setpriv', [...as, ...podman], {
    stdio: ['ignore', 'ignore', 'pipe'],
    cwd: directory,
    env: { PATH: process.env.PATH, HOME: directory, XDG_RUNTIME_DIR: run, CONTAINERS_CONF: conf },
  });
  const docker = new Docker({ socketPath: socket });
  const isTheirs = (pid: string) => {
    try {
      return /^\d+$/.test(pid) && statSync(`/proc/${pid}`).uid === uid;
    } catch {
      return false; // It has ended in the meantime.
    }
  };
  const stop = async () => {
    await stopEngine({ docker, child, directory });
    // What holds the user's namespace names no directory.
    for (const pid of readdirSync('/proc').filter(isTheirs)) process.kill(Number(pid), 'SIGKILL');
    await until('all processes of the user have ended', async () => !readdirSync('/proc').some(isTheirs));
    execFileSync('userdel', [user]);
    for (const file of ['/etc/subuid', '/etc/subgid'])
      writeFileSync(file, readFileSync(file, 'utf8').replace(`${user}:${SUB_IDS}\n`, ''));
    rmSync(directory, { recursive: true, force: true });
  };
  t.after(stop);
  await untilReady(docker, child);
  await importBusybox(docker, directory);
  return { socket: `unix://${socket}`, docker, directory, stop };
}
