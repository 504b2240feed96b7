import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, copyFileSync, mkdirSync, rmSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { files } from '../../src/files/data-directory.ts';
import { EXECUTABLE, type Installation, installation, run, type Serving } from '../helper/executable.ts';
import { openUpstream } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { end, litestreamFor, startBeside } from './litestream.ts';

const DRILL = join(import.meta.dirname, '../../docs/restore-drill.sh');

/** A Purser under load with a Litestream beside it, which replicates into a directory. */
async function openReplicated(t: TestContext) {
  const litestream = litestreamFor(t);
  if (!litestream) return undefined;
  let stream: ChildProcess | undefined;
  t.after(() => stream && end(stream)); // First: it would make its directory beside the database again.
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream });
  const server = await purser.serve();
  const account = (await purser.json('account', 'list')).accounts[0].id as string;
  await purser.json('account', 'credit', account, '100000000c');
  const { key } = await purser.json('key', 'create', '--account', account, '--name', 'load');
  const replica = `file://${temporaryDirectory(t)}/replica`;
  const { database } = files(purser.directory);
  stream = startBeside(t, [litestream, 'replicate', database, replica]);
  await until('Litestream has begun', async () => hasLitestreamTables(database));
  return { purser, server, key: key as string, replica, stream, litestream };
}

function hasLitestreamTables(database: string): boolean {
  const client = new Client(database, { readonly: true });
  try {
    return (
      client
        .prepare(`select count(*) from sqlite_schema where name like '\\_litestream%' escape '\\'`)
        .pluck()
        .get() === 2
    );
  } finally {
    client.close();
  }
}

/** The number of the newest entry in a file. */
function newestIn(file: string): number {
  const client = new Client(file, { readonly: true });
  try {
    return client.prepare('select coalesce(max(seq), 0) from entry').pluck().get() as number;
  } finally {
    client.close();
  }
}

/** Opens wallets until it is told to end or the server is gone; `opened` are those that were acknowledged. */
function load(server: Serving, key: string) {
  let running = true;
  const opened: string[] = [];
  const body = { name: 'w', budget_cents: 100, expires_in_seconds: 0 };
  const done = (async () => {
    while (running) {
      const asked = { token: key, key: randomUUID(), body };
      const answer = await server.ask('POST', '/v1/wallets', asked).catch(() => undefined);
      if (!answer) return;
      assert.equal(answer.status, 201, answer.text);
      opened.push(answer.body.id);
    }
  })();
  done.catch(() => {}); // Whoever ends it hears of it.
  return {
    opened,
    async end() {
      running = false;
      await done;
    },
  };
}

/** Runs the drill of docs/recovery.md as it is printed, with what it needs in the PATH. */
function drill(litestream: string, source: string, purser: Installation) {
  const PATH = [dirname(EXECUTABLE), dirname(litestream), process.env.PATH].join(delimiter);
  const masterKey = join(purser.directory, 'master.key');
  return run([DRILL, source, masterKey], { command: ['sh'], env: { PATH } });
}

test('beside Litestream everything goes on: load, verify, backup, a rotation, a restart', async (t) => {
  const open = await openReplicated(t);
  if (!open) return;
  const { purser, server, key } = open;
  const clients = load(server, key);
  await until('there is load', async () => clients.opened.length > 100);
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
  await purser.json('master-key', 'rotate');
  const backup = join(temporaryDirectory(t), 'backup.db');
  const { counts } = await purser.json('backup', backup);
  assert.equal(
    Object.keys(counts).some((name) => name.includes('litestream')),
    false,
  );
  await clients.end();
  assert.equal((await server.ask('GET', '/readyz')).status, 200);
  await server.stop();
  const refused = await purser.cli('restore', backup);
  assert.equal(refused.code, 4, refused.stdout + refused.stderr);
  assert.match(refused.stderr, /Another process has .* open: Litestream/);
  const again = await purser.serve();
  assert.equal((await again.ask('GET', '/readyz')).status, 200);
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
  await again.stop();
});

test('after the machine is lost, the replica restores all but the last moments, and says so', async (t) => {
  const open = await openReplicated(t);
  if (!open) return;
  const { purser, server, key, replica, stream, litestream } = open;
  const clients = load(server, key);
  await until('there is load', async () => clients.opened.length > 100);
  const { seq: early } = await purser.json('ledger', 'head');
  const found = join(temporaryDirectory(t), 'replica.db');
  const replicated = async () => {
    rmSync(found, { force: true });
    const { code } = await run(['restore', '-o', found, replica], { command: [litestream] });
    return code === 0 && newestIn(found) >= early;
  };
  await until('the first hundred are in the replica', replicated);
  // The machine is gone: both die at once, in the middle of their work.
  server.kill('SIGKILL');
  stream.kill('SIGKILL');
  await Promise.all([server.ended, once(stream, 'exit')]); // Whoever still had it open would keep the log from being recovered.
  await clients.end();
  const known = newestIn(files(purser.directory).database);

  const said = await drill(litestream, replica, purser);
  assert.equal(said.code, 0, said.stderr);
  assert.match(said.stdout, /entries, every balance agrees/);

  // In earnest: on a new machine that has the master key, and on the old one, which knows what is missing.
  rmSync(found);
  assert.equal((await run(['restore', '-o', found, replica], { command: [litestream] })).code, 0);
  const fresh = join(temporaryDirectory(t), 'data');
  mkdirSync(fresh, { mode: 0o700 });
  copyFileSync(join(purser.directory, 'master.key'), join(fresh, 'master.key'));
  chmodSync(join(fresh, 'master.key'), 0o600);
  const onNew = await run(['--data', fresh, '--json', 'restore', '--force', found]);
  assert.equal(onNew.code, 0, onNew.stderr);
  const restored = JSON.parse(onNew.stdout);
  assert.deepEqual([restored.head.epoch, restored.kept, restored.manifest], [2, null, null]);
  const lost = known - restored.head.seq;
  t.diagnostic(`${lost} of ${known} entries were not yet in the replica`);
  assert(lost >= 0 && restored.head.seq >= early, `${restored.head.seq} of ${known} entries`);
  const onOld = await purser.json('restore', '--force', found);
  assert.equal(onOld.lost_to_seq, lost ? known : null);
  const wallets = new Set(clients.opened);
  const { wallets: latest } = await purser.json('wallet', 'list');
  const unknown = (latest as { id: string }[]).filter(({ id }) => !wallets.has(id));
  assert(unknown.length <= 1, 'what was never asked for is not there; the last answer may have been cut off');
});

test('the drill that is printed proves a backup, and fails on a damaged one', async (t) => {
  const purser = installation(t, {});
  const server = await purser.serve();
  const account = (await purser.json('account', 'list')).accounts[0].id as string;
  await purser.json('account', 'credit', account, '500c');
  const backup = join(temporaryDirectory(t), 'backup.db');
  await purser.json('backup', backup);
  const said = await drill('/nowhere/litestream', backup, purser);
  assert.equal(said.code, 0, said.stderr);
  assert.match(said.stdout, new RegExp(`${account} +default +5\\.00 `));
  assert.equal((await server.ask('GET', '/readyz')).status, 200, 'what is served has not felt it');
  const client = new Client(backup);
  client.exec('update account set available_cents = 501');
  client.close();
  assert.equal((await drill('/nowhere/litestream', backup, purser)).code, 4);
});
