import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { chownSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation, run } from '../helper/executable.ts';
import { openSmallDisk } from '../helper/small-disk.ts';
import { STRANGER } from './data-directory-shared.ts';
import type { Check } from './doctor-shared.ts';

test('another user than the owner of the directory is refused with exit 4, before anything is written', async (t) => {
  if (!hasComponent(t, 'root')) return;
  const purser = installation(t);
  await (await purser.serve()).stop();
  rmSync(join(purser.directory, 'lib'), { recursive: true });
  const before = readdirSync(purser.directory);
  chownSync(purser.directory, STRANGER, STRANGER);
  const reading = [
    ['account', 'list'],
    ['wallet', 'show', 'wal_x'],
    ['ledger', 'verify'],
    ['models', 'check'],
  ];
  for (const args of [['serve'], ['freeze'], ...reading]) {
    const { code, stdout, stderr } = await purser.cli(...args);
    assert.deepEqual([code, stdout], [4, ''], stderr);
    assert.match(stderr, /belongs to user 65534, this is user 0\. Run Purser as the owner of its data directory\.\n$/);
  }
  assert.deepEqual(readdirSync(purser.directory), before);
});

test('a first start that is refused creates nothing and does not say that it does', async (t) => {
  const purser = installation(t);
  const refused = async (env: Record<string, string>, why: RegExp, exitCode: number) => {
    const { code, stdout, stderr } = await run(['--data', purser.directory, 'serve'], { env });
    assert.deepEqual([code, stdout], [exitCode, ''], stderr);
    assert.match(stderr, why);
    assert.doesNotMatch(stderr, /Creating|Copy|replace --lost/);
    assert.deepEqual(readdirSync(purser.directory), ['purser.yaml']);
  };
  await refused(
    { PURSER_MASTER_KEY_FILE: '/nope' },
    /there is no file \/nope\. .*for a new installation.* a fresh one/,
    1,
  );
  if (!hasComponent(t, 'root')) return;
  chownSync(purser.directory, STRANGER, STRANGER);
  await refused({}, /belongs to user 65534/, 4);
});

test('a copy of the SQLite addon that the owner cannot read is written anew', async (t) => {
  if (!hasComponent(t, 'root')) return;
  const asOwner = ['setpriv', `--reuid=${STRANGER}`, `--regid=${STRANGER}`, '--clear-groups', EXECUTABLE];
  const purser = installation(t, { command: asOwner });
  chownSync(purser.directory, STRANGER, STRANGER);
  await (await purser.serve()).stop();
  const library = join(purser.directory, 'lib');
  const [copy] = readdirSync(library) as [string];
  chownSync(join(library, copy), 0, 0);
  assert.equal((await purser.json('account', 'list')).accounts.length, 1);
  assert.deepEqual([readdirSync(library), statSync(join(library, copy)).uid], [[copy], STRANGER]);
});

test('a start that ended while it unpacked the SQLite addon is in no later one’s way, also in a container, where all have one number', async (t) => {
  if (!hasComponent(t, 'root')) return;
  const asOwner = ['setpriv', `--reuid=${STRANGER}`, `--regid=${STRANGER}`, '--clear-groups'];
  const asFirst = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc', ...asOwner];
  const purser = installation(t, { command: [...asOwner, EXECUTABLE] });
  chownSync(purser.directory, STRANGER, STRANGER);
  await (await purser.serve()).stop();
  const library = join(purser.directory, 'lib');
  const [copy] = readdirSync(library) as [string];
  const whole = readFileSync(join(library, copy));
  rmSync(join(library, copy));

  const list = ['--data', purser.directory, '--json', 'account', 'list'];
  const full = await run(list, { command: [...asFirst, 'sh', '-c', 'ulimit -f 1000; exec "$0" "$@"', EXECUTABLE] });
  assert.match(full.stdout, /EFBIG/);
  assert.deepEqual(readdirSync(library), [], 'nothing takes the rest of the disk');

  for (const ending of ['.1', '.1.new']) {
    const killed = join(library, copy + ending);
    writeFileSync(killed, whole.subarray(0, 1000), { mode: 0o500 });
    chownSync(killed, STRANGER, STRANGER);
  }
  const { code, stdout } = await run(list, { command: [...asFirst, EXECUTABLE] });
  assert.equal(code, 0, stdout);
  assert.deepEqual(readFileSync(join(library, copy)), whole);
});

test('a second server behind a bind mount and in another namespace of processes is refused after a few seconds, with the first one’s process', async (t) => {
  if (!hasComponent(t, 'root')) return;
  const purser = installation(t);
  const first = await purser.serve();
  const bound = `mount --bind ${purser.directory} "$1" && shift && exec "$0" "$@"`;
  const inside = ['unshare', '--mount', '--pid', '--fork', '--kill-child', '--mount-proc', 'sh', '-c', bound];
  const mountPoint = mkdtempSync(join(tmpdir(), 'purser-bound-'));
  t.after(() => rmSync(mountPoint, { recursive: true }));
  const command = [...inside, EXECUTABLE, mountPoint];
  const { code, stderr } = await run(['--data', mountPoint, 'serve'], { command });
  assert.equal(code, 5, stderr);
  assert.match(stderr, new RegExp(`in use by purser serve \\(process ${first.pid} on ${hostname()}\\)\\. Only one`));
  assert.equal((await first.ask('GET', '/readyz')).status, 200);
});

test('on a memory disk the log of a start warns that the books do not outlive the machine', async (t) => {
  const disk = openSmallDisk(t, 64);
  if (!disk) return;
  const server = await installation(t, { directory: join(disk.directory, 'data') }).serve();
  assert.match(String((await server.logged('storage.unsafe')).msg), /is on tmpfs \(tmpfs\), which is memory/);
});

test('on a disk that has become read-only each command says so, however the server has ended', async (t) => {
  const disk = openSmallDisk(t, 64);
  if (!disk) return;
  const purser = installation(t, { directory: join(disk.directory, 'data') });
  await (await purser.serve()).stop();
  const mounted = (how: string) => execFileSync('mount', ['-o', `remount,${how}`, disk.directory]);
  mounted('ro');
  for (const args of [['status'], ['ledger', 'verify'], ['ledger', 'export'], ['backup', '/tmp/never.db'], ['serve']]) {
    const { code, stdout, stderr } = await purser.cli(...args);
    assert.deepEqual([code, stdout], [5, ''], stderr);
    assert.match(
      stderr,
      /^The file system of \S+ is read-only: nothing can be written there\..*Check and mount it again\.\n$/,
    );
  }
  const { checks } = JSON.parse((await purser.cli('--json', 'doctor')).stdout) as { checks: Check[] };
  for (const name of ['files', 'database'])
    assert.match(checks.find((it) => it.name === name)?.detail ?? '', /is read-only: nothing can be written there/);
  mounted('rw');
  await (await purser.serve()).stop('SIGKILL');
  mounted('ro');
  const { code, stdout } = await purser.cli('ledger', 'verify'); // SQLite's files are there.
  assert.deepEqual([code, /every balance agrees/.test(stdout)], [0, true]);
});
