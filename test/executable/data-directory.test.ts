import assert from 'node:assert/strict';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { EXECUTABLE, installation, run, within } from '../helper/executable.ts';

const STRANGER = 65534;

/** Returns whether a process has a file of this name open. */
function hasOpen(pid: number, name: string): boolean {
  const open = `/proc/${pid}/fd`;
  return readdirSync(open).some((fd) => {
    try {
      return readlinkSync(join(open, fd)).endsWith(`/${name}`);
    } catch {
      return false; // Closed since it was listed.
    }
  });
}

/** Looks as often as it can until `condition` holds. */
async function seen(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}

test('serve creates the installation on its first start, says so, and everything in it is its owner’s alone', async (t) => {
  const parent = mkdtempSync(join(tmpdir(), 'purser-new-'));
  t.after(() => rmSync(parent, { recursive: true, force: true }));
  const directory = join(parent, 'deep', 'data');
  const env = { PURSER_LISTEN: '127.0.0.1:0', PURSER_DATA: directory };
  const purser = installation(t, { settings: null, env, directory });
  rmSync(directory, { recursive: true });
  const server = await purser.serve();
  assert.match(server.output.stderr, new RegExp(`^Creating a new installation in ${directory}\\.\n`));
  assert.equal(server.output.stdout, '');
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  assert.equal(statSync(directory).mode & 0o777, 0o700);
  for (const name of readdirSync(directory)) assert.equal(statSync(join(directory, name)).mode & 0o077, 0, name);
  assert.equal(statSync(join(directory, 'purser.sock')).mode & 0o777, 0o600);
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  assert(!existsSync(join(directory, 'purser.sock')), 'the socket goes with the server');

  const again = await purser.serve();
  assert.doesNotMatch(again.output.stderr, /Creating/);
});

test('a second server on the same directory is refused with exit 5, and the first goes on', async (t) => {
  const purser = installation(t);
  const first = await purser.serve();
  const second = purser.launch('serve');
  assert.deepEqual(await second.ended, { code: 5, signal: null });
  const said = `${purser.directory} is in use by purser serve (process ${first.pid}). Only one process may write there.\n`;
  assert.equal(second.output.stderr, said);
  assert.equal(second.output.stdout, '');
  assert.equal((await first.ask('GET', '/readyz')).status, 200);
  assert.equal((await purser.json('account', 'list')).accounts.length, 1);
});

test('a server that was killed leaves nothing in the way of the next one', async (t) => {
  const purser = installation(t);
  const first = await purser.serve();
  await first.stop('SIGKILL');
  assert(existsSync(join(purser.directory, 'purser.sock')), 'its socket is still there');
  assert.equal(
    (await purser.json('account', 'list')).accounts.length,
    1,
    'nobody listens, so the command does it itself',
  );
  const second = await purser.serve();
  assert.equal((await second.ask('GET', '/readyz')).status, 200);
});

test('commands and a starting server take turns: none of them sees a locked database', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const create = (name: string) => purser.json('account', 'create', name);
  const before = [create('a'), create('b'), create('c')];
  const server = await purser.serve();
  await Promise.all([...before, create('d'), create('e')]);
  const { accounts } = await purser.json('account', 'list');
  assert.deepEqual(accounts.map((it: { name: string }) => it.name).sort(), ['a', 'b', 'c', 'd', 'default', 'e']);
  await server.stop();
});

test('a command that found the lock taken, and then free, takes effect once', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const { accounts } = await purser.json('account', 'list');
  const lock = new Client(join(purser.directory, 'purser.lock'));
  lock.exec('begin exclusive');
  writeFileSync(join(purser.directory, 'purser.lock.holder'), `purser serve (process ${process.pid})\n`);
  const { child, output, ended } = purser.launch('account', 'credit', accounts[0].id, '500', '--reason', 'once');
  // It tries ten times a second; at the second time it has been refused once.
  for (const isTrying of [true, false, true])
    await within(
      seen(() => hasOpen(child.pid as number, 'purser.lock') === isTrying),
      () => 'the command tries to take the lock',
    );
  lock.close();
  assert.equal((await ended).code, 0, output.stderr);
  const after = await purser.json('account', 'list');
  assert.equal(after.accounts[0].available_cents, accounts[0].available_cents + 500);
});

test('a database that is newer than the executable is refused with a sentence, and not touched', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const file = join(purser.directory, 'purser.db');
  const client = new Client(file);
  client.prepare('insert into migration values (?, ?, 1)').run('9999_future.sql', '0'.repeat(64));
  client.close();
  const sentence =
    'The database was written by a newer Purser: it has 9999_future.sql, which this one does not know. Use the newer version, or an earlier backup.\n';
  const { mtimeMs } = statSync(file);
  for (const args of [['serve'], ['account', 'list'], ['ledger', 'verify'], ['ledger', 'export'], ['freeze']]) {
    const { code, stdout, stderr } = await purser.cli(...args);
    assert.deepEqual({ code, stdout, stderr }, { code: 1, stdout: '', stderr: sentence }, args.join(' '));
  }
  assert.equal(statSync(file).mtimeMs, mtimeMs);
  assert(!readdirSync(purser.directory).some((name) => name.includes('before')), 'no migration was begun');
});

test('another user than the owner of the directory is refused with exit 4, before anything is written', async (t) => {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0)) return;
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
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0)) return;
  chownSync(purser.directory, STRANGER, STRANGER);
  await refused({}, /belongs to user 65534/, 4);
});

test('a copy of the SQLite addon that the owner cannot read is written anew', async (t) => {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0 && hasProgram('setpriv'))) return;
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

test('a data directory or settings that others may write, and a master key that others may read, are refused with the remedy', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const { directory } = purser;
  const [settings, key] = [join(directory, 'purser.yaml'), join(directory, 'master.key')];
  const before = readdirSync(directory);
  const refuses = async (...remedies: string[]) => {
    for (const args of [['serve'], ['account', 'list'], ['freeze']]) {
      const { code, stdout, stderr } = await purser.cli(...args);
      assert.deepEqual([code, stdout], [4, ''], stderr);
      assert.deepEqual(
        [...stderr.matchAll(/Run: (.*)$/gm)].map(([, it]) => it),
        remedies,
        stderr,
      );
    }
    assert.deepEqual(readdirSync(directory), before);
  };
  for (const mode of [0o770, 0o707, 0o1777]) {
    chmodSync(directory, mode);
    await refuses(`chmod go-w ${directory}`);
  }
  chmodSync(directory, 0o755);
  for (const mode of [0o660, 0o606]) {
    chmodSync(settings, mode);
    await refuses(`chmod go-w ${settings}`);
  }
  chmodSync(settings, 0o644);
  for (const mode of [0o640, 0o604]) {
    chmodSync(key, mode);
    await refuses(`chmod 600 ${key}`);
  }
  chmodSync(directory, 0o777);
  await refuses(`chmod go-w ${directory}`, `chmod 600 ${key}`);
  chmodSync(directory, 0o750);
  chmodSync(key, 0o400);
  assert.equal((await purser.json('account', 'list')).accounts.length, 1, 'what others may only read is no matter');
  await (await purser.serve()).stop();
});

test('settings elsewhere are judged like those in the directory, by their owner too', async (t) => {
  const parent = mkdtempSync(join(tmpdir(), 'purser-settings-'));
  t.after(() => rmSync(parent, { recursive: true, force: true }));
  const file = join(parent, 'elsewhere.yaml');
  writeFileSync(file, 'listen: 127.0.0.1:0\n', { mode: 0o644 });
  const purser = installation(t, { settings: null, env: { PURSER_CONFIG: file } });
  await (await purser.serve()).stop();
  chmodSync(file, 0o666);
  assert.match((await purser.cli('account', 'list')).stderr, new RegExp(`Run: chmod go-w ${file}\n$`));
  chmodSync(file, 0o644);
  if (process.getuid?.() !== 0) return;
  chownSync(file, STRANGER, STRANGER);
  const { code, stderr } = await purser.cli('serve');
  assert.equal(code, 4);
  assert.match(stderr, new RegExp(`belongs to user 65534.*Run: chown 0 ${file}\n$`));
});

test('a data directory whose path is longer than a unix socket may have still works over the socket', async (t) => {
  const parent = mkdtempSync(join(tmpdir(), 'purser-long-'));
  t.after(() => rmSync(parent, { recursive: true, force: true }));
  const directory = join(parent, 'ä'.repeat(60), 'b'.repeat(100));
  assert(Buffer.byteLength(directory) > 200);
  const purser = installation(t, { directory });
  const server = await purser.serve();
  const { id } = await purser.json('account', 'create', 'research', '--credit-cents', '700');
  assert.equal(statSync(join(directory, 'purser.sock')).mode & 0o777, 0o600);
  const { id: walletId } = await purser.json(
    'wallet',
    'create',
    '--account',
    id,
    '--name',
    'n',
    '--budget-cents',
    '100',
  );
  assert(server.output.stderr.includes(walletId), 'the server did it, so it was asked over its socket');
  assert.deepEqual(await server.stop(), { code: 0, signal: null });
  assert.equal((await purser.json('account', 'show', id)).available_cents, 600);
});
