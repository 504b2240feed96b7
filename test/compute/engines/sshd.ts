import { execFileSync, spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { SshSettings } from '../../../src/compute/backends/ssh/settings.ts';
import { hasComponent } from '../../helper/component.ts';
import { until } from '../conformance.ts';

const READY_MILLISECONDS = 20_000;
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
  stop(): Promise<void>;
};

/** Starts a real sshd with a root key. Without sshd, returns undefined and skips the test. */
export async function openSshd(t: TestContext, { shared = false, chip = 'test-chip' } = {}): Promise<Sshd | undefined> {
  const isThere = () => process.getuid?.() === 0 && has('/usr/sbin/sshd');
  if (!hasComponent(t, 'sshd', isThere)) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-sshd-'));
  const port = await freePort();
  mkdirSync('/run/sshd', { recursive: true });
  for (const name of ['hostkey', 'identity'])
    execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(directory, name)]);
  writeFileSync(join(directory, 'authorized_keys'), readFileSync(join(directory, 'identity.pub')));
  const lines = [
    'ListenAddress 127.0.0.1',
    `Port ${port}`,
    `HostKey ${directory}/hostkey`,
    `PidFile ${directory}/sshd.pid`,
    `AuthorizedKeysFile ${directory}/authorized_keys`,
    'PermitRootLogin prohibit-password',
    'UsePAM no',
    'StrictModes no',
    'PasswordAuthentication no',
    'MaxStartups 100',
    'Subsystem sftp internal-sftp',
  ];
  writeFileSync(join(directory, 'sshd_config'), `${lines.join('\n')}\n`);
  const pool = join(directory, 'pool');
  const firstUid = randomInt(UIDS.from, UIDS.below);
  mkdirSync(pool, { mode: 0o700 });
  writeFileSync(join(pool, 'next_uid'), `${firstUid}\n`);

  const child = spawn('/usr/sbin/sshd', ['-D', '-e', '-f', join(directory, 'sshd_config')], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  child.stderr.on('data', (chunk) => {
    said = (said + chunk).slice(-4000);
  });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));

  async function halt(): Promise<void> {
    child.kill('SIGTERM');
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
  await until('sshd listens', async () => said.includes('Server listening'), READY_MILLISECONDS);
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
    stop,
  };
}

function has(path: string): boolean {
  try {
    return readFileSync(path).length > 0;
  } catch {
    return false;
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
