import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { SshSettings } from '../../../src/compute/engines/ssh/settings.ts';
import { hasComponent } from '../../helper/component.ts';
import { freePort } from '../../helper/free-port.ts';
import { hasEnded, until, untilServes } from '../../helper/waiting.ts';

/** User ids for tests: a new range for every host, so that even two runs do not assign the same id. */
const UIDS = { from: 1_900_000_000, below: 2_100_000_000 };

/** A pool host: a real sshd on a loopback port, with its own state directory on this machine. */
export type Sshd = {
  host: SshSettings['hosts'][number];
  /** Its state directory. */
  pool: string;
  firstUid: number;
  /** Stops the daemon and its connections. `stop` still cleans up. */
  halt(): Promise<void>;
  /** Sends a signal to the processes of its connections, and to the daemon too if `daemon` is set. */
  signal(signal: NodeJS.Signals, daemon?: 'daemon'): void;
  /** How many connections it has. */
  connections(): number;
  /** What it has logged. */
  log(): string;
  /** Starts the daemon again after it was ended by a signal; resolves when it listens. */
  revive(): Promise<void>;
  stop(): Promise<void>;
};

/**
 * Starts a real sshd with a root key. Without sshd, returns undefined and skips the test. `prepare` is shell that may
 * mount what only this host sees, and change what is in the directory that it starts in.
 */
export async function openSshd(
  t: Pick<TestContext, 'skip' | 'after'>,
  { shared = false, chip = 'test-chip', settings = [] as string[], prepare = '' } = {},
): Promise<Sshd | undefined> {
  if (!hasComponent(t, 'sshd')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-sshd-'));
  const port = await freePort();
  mkdirSync('/run/sshd', { recursive: true });
  for (const name of ['hostkey', 'identity'])
    execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(directory, name)]);
  writeFileSync(join(directory, 'authorized_keys'), readFileSync(join(directory, 'identity.pub')));
  const lines = [
    ...settings, // Of a setting that is there twice, the first counts.
    'ListenAddress 127.0.0.1',
    `Port ${port}`,
    `HostKey ${directory}/hostkey`,
    `PidFile ${directory}/sshd.pid`,
    `AuthorizedKeysFile ${directory}/authorized_keys`,
    'PermitRootLogin prohibit-password',
    'UsePAM no',
    'StrictModes no',
    'PasswordAuthentication no',
    'Subsystem sftp internal-sftp',
    // A bash that sshd starts reads ~/.bashrc, whatever of this machine's is there, unless it is not the outermost shell.
    'SetEnv SHLVL=1',
  ];
  writeFileSync(join(directory, 'sshd_config'), `${lines.join('\n')}\n`);
  const pool = join(directory, 'pool');
  const firstUid = randomInt(UIDS.from, UIDS.below);
  mkdirSync(pool, { mode: 0o700 });
  writeFileSync(join(pool, 'next_uid'), `${firstUid}\n`);

  const argv = ['/usr/sbin/sshd', '-D', '-e', '-f', join(directory, 'sshd_config')];
  // Only with mounts of its own does it have its own view of them: a mount below what it removes would vanish elsewhere.
  const [program = '', ...args] = prepare
    ? ['unshare', '--mount', 'sh', '-ec', `${prepare}\nexec "$@"`, 'sh', ...argv]
    : argv;
  let child: ChildProcess;
  let ended: Promise<void>;
  let said = '';
  async function start(): Promise<void> {
    said = '';
    const daemon = spawn(program, args, { cwd: directory, stdio: ['ignore', 'ignore', 'pipe'] });
    daemon.stderr.on('data', (chunk) => {
      said = (said + chunk).slice(-64_000);
    });
    child = daemon;
    ended = new Promise((resolve) => daemon.once('exit', () => resolve()));
    await untilServes(
      daemon,
      () => said,
      async () => said.includes('Server listening'),
    );
  }

  /** The process of each connection is a child of the daemon. */
  const connections = () =>
    readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number);
  function signal(signal: NodeJS.Signals, daemon?: 'daemon'): void {
    const running = connections();
    if (daemon) child.kill(signal);
    for (const pid of running)
      try {
        process.kill(pid, signal);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error; // It has just ended by itself.
      }
  }

  async function halt(): Promise<void> {
    if (hasEnded(child)) return;
    // It takes no connection between the look at its children and its end: that one would live on.
    child.kill('SIGSTOP');
    await until('sshd stands still', async () => /\) [TZ] /.test(readFileSync(`/proc/${child.pid}/stat`, 'utf8')));
    signal('SIGKILL', 'daemon');
    await ended;
  }
  /** Ends what tests left behind: the tenant of this pool, by the same script that ends every tenant. */
  async function stop(): Promise<void> {
    await halt();
    execFileSync(
      'sh',
      [
        '-c',
        'cd "$1" && for it in pool-*.sh; do [ -d tenant ] && sh "$1/$it" "$1" end "$(cat tenant/user)"; done; true',
        'purser',
        pool,
      ],
      { stdio: 'ignore' },
    );
    rmSync(directory, { recursive: true, force: true });
  }
  if (!shared) t.after(stop);
  await start();
  return {
    host: {
      chip,
      gpus: 0,
      address: '127.0.0.1',
      port,
      user: 'root',
      host_key: readFileSync(join(directory, 'hostkey.pub'), 'utf8').trim(),
      identity_file: join(directory, 'identity'),
      state_directory: pool,
      price_hourly_usd: 400_000_000n,
    },
    pool,
    firstUid,
    halt,
    signal,
    connections: () => connections().length,
    log: () => said,
    async revive() {
      await ended;
      await start();
    },
    stop,
  };
}
