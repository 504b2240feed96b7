import assert from 'node:assert/strict';
import { chmodSync, chownSync, mkdtempSync, readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { installation } from '../helper/executable.ts';
import { waitFor } from '../helper/waiting.ts';
import { STRANGER } from './data-directory-shared.ts';

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
  const { child, output, ended } = purser.launch('account', 'credit', accounts[0].id, '500c', '--reason', 'once');
  // It tries ten times a second; at the second time it has been refused once.
  for (const isTrying of [true, false, true])
    await waitFor(
      'the command tries to take the lock',
      seen(() => hasOpen(child.pid as number, 'purser.lock') === isTrying),
    );
  lock.close();
  assert.equal((await ended).code, 0, output.stderr);
  const after = await purser.json('account', 'list');
  assert.equal(after.accounts[0].available_cents, accounts[0].available_cents + 500);
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
