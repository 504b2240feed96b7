import { execFile, execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
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
  /** Switches it off, and boots it from the same files. */
  reboot(): Promise<void>;
};

/**
 * Boots a machine that sees `files` of this one, read-only, at other paths, and at the paths of `disks` directories of a real disk. Its other writes are in memory and gone after the test:
 * systemd's boot jobs, one of which empties /tmp, need a root of their own.
 */
export async function bootMachine(
  t: TestContext,
  packages: readonly string[],
  files: Readonly<Record<string, string>>,
  disks: readonly string[] = [],
): Promise<Machine | undefined> {
  if (!hasComponent(t, 'systemd-nspawn')) return undefined;
  const tree = await minimalDebian(t, ['systemd-sysv', ...packages]);
  if (!tree) return undefined;
  const directories = disks.map(() => mkdtempSync(join(tmpdir(), 'purser-machine-disk-')));
  const binds = [
    ...Object.entries(files).map(([from, to]) => `--bind-ro=${from}:${to}`),
    ...disks.map((to, i) => `--bind=${directories[i]}:${to}`),
  ];
  let end = async () => {};
  const root = openOverlay(t, tree, async () => {
    await end();
    for (const it of directories) rmSync(it, { recursive: true, force: true });
  });
  let booted = await boot(root, binds);
  end = () => booted.end();
  return {
    inside: (program, ...words) => enter(booted.pid, [program, ...words]),
    sh: (line) => enter(booted.pid, ['sh', '-ec', line]),
    async reboot() {
      await booted.end();
      booted = await boot(root, binds);
    },
  };
}

/** Returns a directory with the files of `tree`. Its changes are in memory; after the test it goes, once `end` has ended its use. */
function openOverlay(t: TestContext, tree: string, end: () => Promise<void>): string {
  const memory = mkdtempSync(join(tmpdir(), 'purser-machine-'));
  const at = (name: string) => join(memory, name);
  execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', memory]);
  t.after(async () => {
    await end();
    execFileSync('umount', ['--recursive', memory]);
    rmdirSync(memory);
  });
  for (const name of ['upper', 'work', 'root']) mkdirSync(at(name));
  const options = `lowerdir=${tree},upperdir=${at('upper')},workdir=${at('work')}`;
  execFileSync('mount', ['-t', 'overlay', '-o', options, 'overlay', at('root')]);
  return at('root');
}

async function boot(root: string, binds: readonly string[]) {
  const args = ['--directory', root, '--private-network', '--register=no', '--keep-unit', ...binds, '--boot'];
  const nspawn = spawn('systemd-nspawn', args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  for (const stream of [nspawn.stdout, nspawn.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(-4000);
    });
  const ended = new Promise<void>((resolve) => nspawn.once('exit', () => resolve()));
  const pid = nspawn.pid as number;
  const end = async () => {
    nspawn.kill('SIGTERM'); // It shuts the machine down: everything inside ends with it.
    await ended;
  };
  try {
    await until(
      () => `the machine has booted: ${said}`,
      async () => {
        if (nspawn.exitCode !== null) throw new Error(`systemd-nspawn ended: ${said}`);
        const state = enter(pid, ['sh', '-ec', 'systemctl is-system-running || true']);
        return /^(running|degraded)$/.test(await state.catch(() => ''));
      },
    );
  } catch (error) {
    await end();
    throw error;
  }
  return { pid, end };
}

/** Starts a command inside. The machine's first process is nspawn's only child. */
function enter(pid: number, command: readonly string[]): Promise<string> {
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
