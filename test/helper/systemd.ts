import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { TestContext } from 'node:test';
import { hasComponent } from './component.ts';
import { minimalDebian } from './minimal-debian.ts';
import { until } from './waiting.ts';

/** A Debian booted by systemd, with its own files, processes and network. */
export type Machine = {
  /** Runs one command in it as root, and returns its stdout. Throws if it fails. */
  inside(program: string, ...args: string[]): Promise<string>;
  /** Runs a line of shell in the same way. */
  sh(line: string): Promise<string>;
};

/**
 * Boots a machine that sees `files` of this one, read-only, at other paths. Its writes are in memory and gone after the test:
 * systemd's boot jobs, one of which empties /tmp, need a root of their own.
 */
export async function bootMachine(
  t: TestContext,
  packages: readonly string[],
  files: Readonly<Record<string, string>>,
): Promise<Machine | undefined> {
  if (!hasComponent(t, 'systemd-nspawn')) return undefined;
  const tree = await minimalDebian(t, ['systemd-sysv', ...packages]);
  if (!tree) return undefined;
  const binds = Object.entries(files).map(([from, to]) => `--bind-ro=${from}:${to}`);
  const args = [
    '--directory',
    tree,
    '--volatile=overlay',
    '--private-network',
    '--register=no',
    '--keep-unit',
    ...binds,
  ];
  const nspawn = spawn('systemd-nspawn', [...args, '--boot'], { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  for (const stream of [nspawn.stdout, nspawn.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(-4000);
    });
  const ended = new Promise<void>((resolve) => nspawn.once('exit', () => resolve()));
  t.after(async () => {
    nspawn.kill('SIGTERM'); // Everything inside ends with it.
    await ended;
  });

  const machine: Machine = {
    inside: (program, ...words) => enter(nspawn, [program, ...words]),
    sh: (line) => enter(nspawn, ['sh', '-ec', line]),
  };
  await until(
    () => `the machine has booted: ${said}`,
    async () => {
      if (nspawn.exitCode !== null) throw new Error(`systemd-nspawn ended: ${said}`);
      return /^(running|degraded)$/.test(await machine.sh('systemctl is-system-running || true').catch(() => ''));
    },
  );
  return machine;
}

/** Starts a command inside. The machine's first process is nspawn's only child. */
function enter(nspawn: ChildProcess, command: readonly string[]): Promise<string> {
  const { pid } = nspawn;
  const leader = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  const args = ['--target', leader, '--mount', '--uts', '--ipc', '--net', '--pid', '--cgroup', '--', ...command];
  const env = { PATH: '/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' };
  return new Promise((resolve, reject) => {
    execFile('nsenter', args, { encoding: 'utf8', env }, (error, stdout, stderr) => {
      if (error) reject(new Error(`${command.join(' ')}: ${stderr}${stdout}`, { cause: error }));
      else resolve(stdout.trim());
    });
  });
}
