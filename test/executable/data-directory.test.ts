import assert from 'node:assert/strict';
import { existsSync, linkSync, mkdtempSync, readdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { installation } from '../helper/executable.ts';
import { filesOf } from '../helper/files.ts';

test('serve creates the installation on its first start, says so, and everything in it is its owner’s alone', async (t) => {
  const parent = mkdtempSync(join(tmpdir(), 'purser-new-'));
  const directory = join(parent, 'deep', 'data');
  const env = { PURSER_LISTEN: '127.0.0.1:0', PURSER_DATA: directory };
  const purser = installation(t, { settings: null, env, directory });
  t.after(() => rmSync(parent, { recursive: true, force: true })); // Once its server has ended.
  rmSync(directory, { recursive: true });
  const server = await purser.serve();
  assert.match(server.output.stderr, new RegExp(`^Creating a new installation in ${directory}\\.\n`));
  assert.equal(server.output.stdout, '');
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  assert.equal(statSync(directory).mode & 0o777, 0o700);
  assert.equal(statSync(join(directory, 'purser.sock')).mode & 0o777, 0o600);
  for (const [name, { mode }] of filesOf(directory)) assert.equal(mode & 0o077, 0, name);
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
  const said = `${purser.directory} is in use by purser serve (process ${first.pid} on ${hostname()}). Only one process may write there.\n`;
  assert.equal(second.output.stderr, said);
  assert.equal(second.output.stdout, '');
  assert.equal((await first.ask('GET', '/readyz')).status, 200);
  assert.equal((await purser.json('account', 'list')).accounts.length, 1);
});

for (const [kind, makeName, why] of [
  ['a symbolic link', symlinkSync, (pid: number) => `is in use by purser serve \\(process ${pid} on `],
  ['a hard link', linkSync, (pid: number) => `second name \\(a hard link\\), .* in use by process ${pid} on `],
] as const)
  test(`books that are reached by ${kind} are the same books: a second server is refused, with the first one’s process`, async (t) => {
    const purser = installation(t);
    const first = await purser.serve();
    const other = installation(t);
    makeName(join(purser.directory, 'purser.db'), join(other.directory, 'purser.db'));
    const second = other.launch('serve');
    assert.deepEqual(await second.ended, { code: 5, signal: null }, second.output.stderr);
    assert.match(second.output.stderr, new RegExp(why(first.pid)));
    assert.equal((await first.ask('GET', '/readyz')).status, 200);
    assert.deepEqual(await first.stop(), { code: 0, signal: null });
    assert.equal((await purser.json('ledger', 'verify')).ok, true);
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
