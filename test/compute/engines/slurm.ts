import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { cpus, hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { promisify } from 'node:util';
import { hasComponent } from '../../helper/component.ts';
import { freePort } from '../../helper/free-port.ts';
import { until, untilServes } from '../../helper/waiting.ts';

const STOP_MILLISECONDS = 30_000;
const MEMORY_MIB = 800;
const JOB_SUBMIT = join(import.meta.dirname, '../../../docs/job_submit.lua');
const NOBODY = 65_534;
/** Jobs on one machine are told apart by their numbers, in `/tmp` and in environments: every cluster has some of its own. */
const JOBS_MAX = 1000;
const CLUSTERS_MAX = 67_000; // Slurm's own numbers end at 67,043,328 (slurm.conf(5), MaxJobId).
const PATH = '/usr/sbin:/usr/bin:/sbin:/bin';

/** A real cluster of one node, this machine, with two fake GPUs: munged, slurmctld and slurmd on loopback. */
export type Cluster = {
  conf: string;
  directory: string;
  /** Runs one of Slurm's programs as root, and returns its output. */
  slurm(program: string, ...args: string[]): Promise<string>;
  /** Suspends the controller alone. */
  pause(): void;
  proceed(): void;
  stopController(): Promise<void>;
  /** Stops munged. Without it no user can authenticate. */
  stopMunge(): Promise<void>;
  /** Stops the node: slurmd alone. */
  stopNode(): Promise<void>;
  startNode(): Promise<void>;
  startMunge(): Promise<void>;
  /** Runs a program as the job user, not as root. */
  asJobUser(program: string, ...args: string[]): Promise<string>;
  /** Sets whether slurmctld refuses what the job user submits, by docs/job_submit.lua. */
  guard(isOn: boolean): void;
  startController(): Promise<void>;
  stop(): Promise<void>;
};

/** Starts one, which the caller stops. Without Slurm or munge, returns undefined and skips the test. */
export async function openSlurm(t: TestContext): Promise<Cluster | undefined> {
  if (!hasComponent(t, 'slurm')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-slurm-'));
  chmodSync(directory, 0o755); // Jobs run as another user.
  const conf = await configure(directory);
  const env = { PATH, LC_ALL: 'C', SLURM_CONF: conf };
  const running = new Map<string, { child: ChildProcess; ended: Promise<void> }>();

  function start(program: string, ...args: string[]) {
    const child = spawn(program, args, { env, cwd: directory, stdio: 'ignore' });
    const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()).once('error', () => resolve()));
    running.set(program, { child, ended });
    return child;
  }
  async function end(program: string, milliseconds = STOP_MILLISECONDS) {
    const it = running.get(program);
    if (!it) return;
    running.delete(program);
    it.child.kill('SIGCONT');
    it.child.kill('SIGTERM');
    const hard = setTimeout(() => it.child.kill('SIGKILL'), milliseconds);
    await it.ended;
    clearTimeout(hard);
  }
  const slurm = async (program: string, ...args: string[]) =>
    (await promisify(execFile)(program, args, { env })).stdout;
  const munge = join(directory, 'munge');
  const socket = join(directory, 'run', 'munge.sock');
  async function startMunge() {
    const files = [
      `--key-file=${munge}/key`,
      `--pid-file=${munge}/pid`,
      `--log-file=${munge}/log`,
      `--seed-file=${munge}/seed`,
    ];
    await untilServes(
      start('munged', '--foreground', '--force', `--socket=${socket}`, ...files),
      () => readFileSync(`${munge}/log`, 'utf8'),
      async () => existsSync(socket),
    );
  }
  const script = readFileSync(JOB_SUBMIT, 'utf8').replace('[1234]', `[${NOBODY}]`);
  let changedAt = Math.floor(Date.now() / 1000) - 1000;
  function guard(isOn: boolean) {
    const file = join(directory, 'job_submit.lua');
    writeFileSync(file, isOn ? script : script.replace('= true', '= nil'));
    // The plugin reloads the file when its time, in whole seconds, has changed.
    utimesSync(file, ++changedAt, changedAt);
  }

  const cluster: Cluster = {
    conf,
    directory,
    slurm,
    pause: () => void running.get('slurmctld')?.child.kill('SIGSTOP'),
    proceed: () => void running.get('slurmctld')?.child.kill('SIGCONT'),
    stopController: () => end('slurmctld'),
    stopMunge: () => end('munged'),
    startMunge,
    stopNode: () => end('slurmd'),
    async startNode() {
      start('slurmd', '-D');
      await slurm('scontrol', 'ping');
    },
    guard,
    asJobUser: async (program, ...args) =>
      (await promisify(execFile)(program, args, { env, cwd: '/', uid: NOBODY, gid: NOBODY })).stdout,
    async startController() {
      await untilServes(
        start('slurmctld', '-D'),
        () => readFileSync(join(directory, 'slurmctld.log'), 'utf8'),
        async () => /idle|mixed|allocated/.test(await slurm('sinfo', '-h', '-o', '%T').catch(() => '')),
      );
    },
    async stop() {
      // The processes of a job would outlive the daemons.
      await slurm('scancel', '--partition=main').catch(() => {});
      await until('the jobs have ended', async () => (await slurm('squeue', '-h').catch(() => '')) === '').catch(
        () => {},
      );
      for (const program of ['slurmd', 'slurmctld', 'munged']) await end(program);
      for (const pid of left(directory)) process.kill(pid, 'SIGKILL');
      rmSync(directory, { recursive: true, force: true });
    },
  };
  try {
    guard(true);
    await startMunge();
    start('slurmd', '-D');
    await cluster.startController();
  } catch (error) {
    await cluster.stop();
    throw error;
  }
  return cluster;
}

async function configure(directory: string): Promise<string> {
  for (const [name, mode] of [
    ['munge', 0o700],
    ['run', 0o755],
    ['state', 0o700],
    ['spool', 0o755],
  ] as const)
    mkdirSync(join(directory, name), { mode });
  writeFileSync(join(directory, 'munge', 'key'), randomBytes(128), { mode: 0o400 });
  const host = hostname().split('.')[0];
  const [controller, node] = [await freePort(), await freePort()];
  const lines = [
    'ClusterName=purser',
    `SlurmctldHost=${host}(127.0.0.1)`,
    `SlurmctldPort=${controller}`,
    `SlurmdPort=${node}`,
    'AuthType=auth/munge',
    `AuthInfo=socket=${directory}/run/munge.sock`,
    'SlurmUser=root',
    'SlurmdUser=root',
    `StateSaveLocation=${directory}/state`,
    `SlurmdSpoolDir=${directory}/spool`,
    `SlurmctldPidFile=${directory}/slurmctld.pid`,
    `SlurmdPidFile=${directory}/slurmd.pid`,
    `SlurmctldLogFile=${directory}/slurmctld.log`,
    `SlurmdLogFile=${directory}/slurmd.log`,
    'ProctrackType=proctrack/linuxproc', // This machine may not allow control groups; a job's own script finds processes that escape.
    'TaskPlugin=task/none',
    'SelectType=select/cons_tres',
    'SelectTypeParameters=CR_Core_Memory',
    'GresTypes=gpu',
    'ReturnToService=2',
    'MpiDefault=none',
    'MessageTimeout=5',
    'OverTimeLimit=0',
    'JobSubmitPlugins=lua',
    `FirstJobId=${randomInt(1, CLUSTERS_MAX) * JOBS_MAX}`,
    `NodeName=${host} NodeAddr=127.0.0.1 CPUs=${cpus().length} RealMemory=${MEMORY_MIB} Gres=gpu:h100:2`,
    `PartitionName=main Nodes=${host} Default=YES`,
  ];
  writeFileSync(join(directory, 'slurm.conf'), `${lines.join('\n')}\n`);
  writeFileSync(join(directory, 'gres.conf'), `NodeName=${host} Name=gpu Type=h100 File=/dev/null,/dev/zero\n`);
  return join(directory, 'slurm.conf');
}

/** Returns the processes that still belong to this cluster, by its directory in their environment. */
function left(directory: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/environ`, 'latin1')
          .split('\0')
          .includes(`SLURM_CONF=${directory}/slurm.conf`);
      } catch {
        return false;
      }
    })
    .map(Number);
}
