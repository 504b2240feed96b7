import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { linkSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { refuseOtherName, takeLock } from '../../src/db/lock.ts';
import { LockedError } from '../../src/files/data-directory.ts';

function lockFile(t: TestContext): string {
  const directory = mkdtempSync(join(tmpdir(), 'purser-lock-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return join(directory, 'purser.lock');
}

test('beside a server that serves another is refused at once, by its name', async (t) => {
  const file = lockFile(t);
  const held = await takeLock(file, 'purser serve');
  const waits = () => assert.fail('it waits');
  await assert.rejects(takeLock(file, 'purser serve', { milliseconds: 60_000, waits }), (error: Error) => {
    assert(error instanceof LockedError);
    assert.match(error.message, new RegExp(`in use by purser serve \\(process ${process.pid} on ${hostname()}\\)`));
    return true;
  });
  held.release();
});

test('a start waits for a command that took the lock after a server was killed, though the server’s name still stands there', async (t) => {
  const file = lockFile(t);
  const command = await takeLock(file, 'purser account credit');
  const { pid: dead } = spawnSync('true');
  // The command has the lock, and has not written its name yet.
  const [, namespace] = readFileSync(`${file}.holder`, 'utf8').split('\n');
  writeFileSync(`${file}.holder`, `purser serve (process ${dead} on here)\n${namespace}\n`);
  const starting = takeLock(file, 'purser serve');
  setTimeout(() => command.release(), 200);
  (await starting).release();
});

test('a server waits longer for a command than a command does, and says so', async (t) => {
  const file = lockFile(t);
  const command = await takeLock(file, 'purser resource.reconcile');
  const asked = assert.rejects(takeLock(file, 'purser wallet.list'), LockedError);
  const said = Promise.withResolvers<string>();
  const starting = takeLock(file, 'purser serve', { milliseconds: 60_000, waits: said.resolve });
  await asked; // After five seconds.
  assert.equal(await said.promise, `purser resource.reconcile (process ${process.pid} on ${hostname()})`);
  command.release();
  (await starting).release();
});

test('where the holder may be a server in another namespace of processes, a start waits a few seconds and names it', async (t) => {
  const file = lockFile(t);
  const held = await takeLock(file, 'purser serve');
  const { pid: dead } = spawnSync('true'); // Here the number means nothing, or another process.
  writeFileSync(`${file}.holder`, `purser serve (process ${dead} on box-a)\npid:[1] another boot\n`);
  const waits = () => assert.fail('it waits for as long as for a command');
  await assert.rejects(takeLock(file, 'purser serve', { milliseconds: 600_000, waits }), (error: Error) => {
    assert(error instanceof LockedError);
    assert.match(error.message, new RegExp(`in use by purser serve \\(process ${dead} on box-a\\)\\.`));
    return true;
  });
  held.release();
});

test('a database in use under a second name is refused; one that is only read under its own is not, nor one whose second name is idle', async (t) => {
  const database = lockFile(t).replace('purser.lock', 'purser.db');
  const second = `${database}.second`;
  const open = (name: string) => {
    const client = new Client(name);
    client.pragma('journal_mode = WAL');
    client.prepare('select count(*) from sqlite_schema').get();
    return client;
  };
  open(database).close();
  linkSync(database, second);
  await refuseOtherName(database);
  const reader = open(database);
  await refuseOtherName(database);
  reader.close();
  const other = open(second);
  await assert.rejects(refuseOtherName(database), (error: Error) => {
    assert(error instanceof LockedError);
    assert.match(error.message, new RegExp(`in use by process ${process.pid} on ${hostname()}\\. Only one`));
    return true;
  });
  other.close();
  await refuseOtherName(database);
});
