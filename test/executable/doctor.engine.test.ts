import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  copyFileSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Database from 'better-sqlite3';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { books, type Check, doctor } from './doctor-shared.ts';

const isRoot = (t: TestContext) => hasComponent(t, 'root');

test('who owns the files and who can read them is looked at, one by one', async (t) => {
  const { is, at, purser } = await books(t);
  await is('data directory', true, /purser-executable/);
  await is('files', true, /files, all owned by user/);
  await is('secrets', true, /master\.key: closed to others/);

  chmodSync(purser.directory, 0o755);
  await is('data directory', false, /open to other users \(mode 755\)\. Run: chmod 700/);
  await is('database', true, /whole; every commit is synced/); // And the rest is looked at all the same.
  chmodSync(purser.directory, 0o700);

  chmodSync(at('master.key'), 0o640);
  await is('secrets', false, /master\.key holds a secret .*mode 640\)\. Run: chmod 600/);
  await is('files', false, /master\.key: can be read or changed by others.* Run: chmod go-rwx/);
  chmodSync(at('master.key'), 0o600);

  linkSync(at('purser.db'), at('a-copy'));
  await is('files', true, /^Warning: .*purser\.db has 2 names.* find .*-samefile/);
  rmSync(at('a-copy'));

  if (!isRoot(t)) return;
  chownSync(at('ledger.head'), 12345, 12345);
  await is('files', false, /ledger\.head: not owned by user 0.* Run: chown -R 0 /);
  chownSync(at('ledger.head'), 0, 0);
  await is('files', true, /all owned by user 0/);
  chownSync(purser.directory, 12345, 12345);
  await is('data directory', false, /belongs to user 12345, this is user 0\. Run Purser as the owner/);
  chownSync(purser.directory, 0, 0);
});

test('a clock behind the journal, and one that the kernel does not hold for right', async (t) => {
  if (!hasComponent(t, 'faketime')) return;
  if (!hasComponent(t, 'busybox')) return;
  const { is, by } = await books(t);
  const yesterday = by({ command: ['faketime', '-f', '-1d', EXECUTABLE] });
  await is('clock', false, /is 24 hours behind the newest time.* If the clock is wrong, set it/, yesterday);

  const tools = mkdtempSync(join(tmpdir(), 'purser-tools-'));
  t.after(() => rmSync(tools, { recursive: true, force: true }));
  const there = by({ env: { PATH: tools } });
  const says = (answer: string) =>
    writeFileSync(join(tools, 'timedatectl'), `#!/bin/sh\necho ${answer}\n`, { mode: 0o755 });
  await is('clock', true, /^not ahead of the books and not behind them$/, there);
  says('no');
  await is('clock', true, /^Warning: .*it is not synchronized\. Run a time service/, there);
  says('yes');
  await is('clock', true, /a time service says that it is synchronized$/, there);
  rmSync(join(tools, 'timedatectl'));
  copyFileSync(execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim(), join(tools, 'busybox'));
  const isSynced = !/return value: +5/.test(execFileSync(join(tools, 'busybox'), ['adjtimex'], { encoding: 'utf8' }));
  await is('clock', true, isSynced ? /synchronized$/ : /^Warning: .*it is not synchronized/, there);
});

/** A file system of this type for the length of the test. */
function mounted(t: TestContext, type: string, options: string): string | undefined {
  if (!hasComponent(t, 'root')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-mount-'));
  execFileSync('mount', ['-t', type, '-o', options, type, directory]);
  t.after(() => {
    execFileSync('umount', ['--lazy', directory]);
    rmSync(directory, { recursive: true, force: true });
  });
  return directory;
}

test('memory is no disk, and one that is full has no room for settlements', async (t) => {
  const disk = mounted(t, 'tmpfs', 'size=64m,mode=755');
  if (!disk) return;
  mkdirSync(join(disk, 'data'), { mode: 0o700 });
  const { is } = await books(t, { directory: join(disk, 'data') });
  await is('file system', false, /on tmpfs \(tmpfs\), which is memory.* Move it to a disk\.$/);
  await is('durability', false, /no disk is that fast/);
  await is('disk space', true, /^Warning: \d+ MiB free/);
  const { bavail, bsize } = statfsSync(disk);
  writeFileSync(join(disk, 'filler'), Buffer.alloc(bavail * bsize - 4096 * 4));
  await is('disk space', false, /^0 MiB free: settlements need 10 MiB, so nothing new is begun\. Free some/);
  await is('durability', false, /Nothing can be written to .*it is full \(ENOSPC\)\. Free some space there\./);
});

test('a layer of a container is no place for books', async (t) => {
  const parts = mounted(t, 'tmpfs', 'size=64m,mode=755');
  if (!parts) return;
  for (const name of ['lower', 'upper', 'work']) mkdirSync(join(parts, name));
  const layer = mounted(
    t,
    'overlay',
    `lowerdir=${join(parts, 'lower')},upperdir=${join(parts, 'upper')},workdir=${join(parts, 'work')}`,
  );
  if (!layer) return;
  mkdirSync(join(layer, 'data'), { mode: 0o700 });
  const { is } = await books(t, { directory: join(layer, 'data') });
  await is('file system', true, /^Warning: .*on overlay .*Put the data directory on a volume\.$/);
});

test('a disk that refuses to sync is told from one that is slow', async (t) => {
  if (!hasComponent(t, 'strace')) return;
  const { is, by, purser } = await books(t);
  const strace = (inject: string) =>
    by({ command: ['strace', '-f', '-qq', '-o', '/dev/null', '-e', `inject=fsync:${inject}`, EXECUTABLE] });
  await is('durability', false, /does not take what is written \(EIO\)\. Check the kernel log/, strace('error=EIO'));
  await is('durability', true, /^Warning: fsync takes .*waits that long\./, strace('delay_enter=60000'));
  assert.deepEqual(
    readdirSync(purser.directory).filter((it) => it.startsWith('.')),
    [],
    'it leaves nothing behind',
  );
});

test('scheduled backups that cannot be made, or were not, are named', async (t) => {
  const place = mkdtempSync(join(tmpdir(), 'purser-doctor-'));
  t.after(() => rmSync(place, { recursive: true }));
  const directory = join(place, 'backups');
  const { purser } = await books(t, { settings: { backup: { every: '6h', directory } } });
  const found = async () => (await doctor(purser)).get('backups');
  assert.deepEqual(await found(), {
    name: 'backups',
    ok: false,
    detail: `${directory} cannot be read (ENOENT), so no backup is made. Is it mounted?`,
  });
  mkdirSync(directory);
  assert.match((await found())?.detail ?? '', /^Warning: there is none in .*backups\. A running server makes/);

  const database = new Database(join(purser.directory, 'purser.db'), { readonly: true });
  const id = database.prepare('select installation_id from installation').pluck().get();
  database.close();
  const madeBefore = (hours: number) => {
    const time = new Date(Date.now() - hours * 3_600_000).toISOString().replace(/[-:]|\.\d+/g, '');
    writeFileSync(join(directory, `purser-${id}-${time}.db`), '');
  };
  writeFileSync(join(directory, `purser-inst_other-20260101T000000Z.db`), '');
  madeBefore(-48); // The clock went back.
  madeBefore(30);
  assert.match(
    (await found())?.detail ?? '',
    /^Warning: the newest in .* is 30 h old, and one is due every 6 h\. .*\(backup\.failed\)/,
  );
  madeBefore(5);
  assert.deepEqual(await found(), { name: 'backups', ok: true, detail: `the newest in ${directory} is 5 h old` });
});

test('a server that may not write where this user may is asked: backups, and the limits of its process', async (t) => {
  if (!hasComponent(t, 'root')) return;
  const directory = mkdtempSync(join(tmpdir(), 'purser-doctor-'));
  t.after(() => rmSync(directory, { recursive: true }));
  // As the unit does it: read-only for the server alone.
  const readOnly = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ulimit -n 2048 && exec "$@"';
  const command = ['unshare', '--mount', 'sh', '-c', readOnly, directory, EXECUTABLE];
  const settings = { backup: { every: '6h', directory } };
  const purser = installation(t, { settings, command });
  const outside = installation({ after() {} }, { settings, directory: purser.directory });
  const server = await purser.serve();
  await server.logged('backup.failed');
  const { checks } = JSON.parse((await outside.cli('--json', 'doctor')).stdout) as { checks: Check[] };
  const found = (name: string) => checks.find((it) => it.name === name);
  assert.equal(found('backups')?.ok, false);
  assert.match(
    found('backups')?.detail ?? '',
    /^The running server may not write into \S+ \(EROFS\), .*ReadWritePaths=/,
  );
  assert.match(found('limits')?.detail ?? '', /^Warning: 2048 open files, /);
});
