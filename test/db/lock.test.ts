import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { takeLock } from '../../src/db/lock.ts';
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
    assert.match(error.message, new RegExp(`in use by purser serve \\(process ${process.pid}\\)`));
    return true;
  });
  held.release();
});

test('a start waits for a command that took the lock after a server was killed, though the server’s name still stands there', async (t) => {
  const file = lockFile(t);
  const command = await takeLock(file, 'purser account credit');
  const { pid: dead } = spawnSync('true');
  // The command has the lock, and has not written its name yet.
  writeFileSync(`${file}.holder`, `purser serve (process ${dead})\n`);
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
  assert.equal(await said.promise, `purser resource.reconcile (process ${process.pid})`);
  command.release();
  (await starting).release();
});
