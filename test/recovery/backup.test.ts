import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { auditFiles } from '../../src/books/examine.ts';
import { files } from '../../src/files/data-directory.ts';
import { exportEntries } from '../../src/ledger/export.ts';
import { headOf } from '../../src/ledger/head.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { openTestServer, type TestServer, UPSTREAM_KEY } from '../helper/server.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const NOW = 1_790_000_000;
const backUpServer = (purser: TestServer, file: string) => backUp(purser.directory, file, '1.2.3', NOW);
const newFile = (t: TestContext) => join(temporaryDirectory(t), 'backup.db');

function read<T>(file: string, query: (client: Client.Database) => T): T {
  const client = new Client(file, { readonly: true });
  try {
    return query(client);
  } finally {
    client.close();
  }
}

test('a backup is one private file with its manifest, made while the server serves', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await purser.chat(token);
  const file = newFile(t);
  const { bytes, counts, ...manifest } = await backUpServer(purser, file);
  const { seq, hash, epoch } = headOf(purser.app.ledger.read);
  assert.deepEqual(manifest, {
    file,
    version: '1.2.3',
    created_at: NOW,
    installation_id: purser.app.installationId,
    master_key_id: purser.app.keyring.current.id,
    head: { seq, hash, epoch },
  });
  assert.deepEqual(
    [counts.entry, counts.wallet, counts.operation, counts.key, counts.account, counts.purser_backup],
    [seq, 1, 1, 2, 1, undefined],
  );
  assert.deepEqual(readdirSync(join(file, '..')), ['backup.db'], 'nothing lies beside it');
  assert.deepEqual([statSync(file).mode & 0o777, statSync(file).size], [0o600, bytes]);
  assert.equal(
    read(file, (client) => client.pragma('journal_mode', { simple: true })),
    'delete',
  );
  assert.equal((await purser.chat(token)).status, 200, 'and the server goes on');
});

test('books with pages of another size are served as they are, and their backup has pages of ours', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const pageBytes = (it: Client.Database) => Number(it.pragma('page_size', { simple: true }));
  const ours = pageBytes(purser.app.ledger.client);
  await purser.reopen(() => {
    const client = new Client(files(purser.directory).database);
    client.pragma('journal_mode = DELETE');
    client.exec(`pragma page_size = ${2 * ours}; vacuum`);
    client.close();
  });
  assert.equal((await purser.chat(token)).status, 200);
  assert.equal(pageBytes(purser.app.ledger.client), 2 * ours);
  const file = newFile(t);
  await backUpServer(purser, file);
  assert.equal(read(file, pageBytes), ours);
});

test('books that are a backup put in place by hand are backed up like any other', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const [first, second] = [newFile(t), newFile(t)];
  await backUpServer(purser, first);
  await purser.chat(token);
  await purser.reopen(() => copyFileSync(first, files(purser.directory).database), { acceptLoss: true });
  const { counts, head } = await backUpServer(purser, second);
  assert.deepEqual([counts.purser_backup, head.epoch], [undefined, 2]);
});

test('a backup under load is a prefix of the journal', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 10_000 });
  let running = true;
  const load = Array.from({ length: 8 }, async () => {
    while (running) assert.equal((await purser.chat(token)).status, 200);
  });
  const taken = [];
  for (let i = 0; i < 5; i++) {
    const file = newFile(t);
    taken.push(await backUpServer(purser, file));
  }
  running = false;
  await Promise.all(load);
  const journal = [...exportEntries(purser.app.ledger.read, 'jsonl')];
  assert((taken.at(-1)?.head.seq as number) > (taken[0]?.head.seq as number), 'there was load');
  for (const { file, head } of taken) {
    assert.equal((JSON.parse(journal[head.seq - 1] as string) as { hash: string }).hash, head.hash);
    assert.equal(
      read(file, (client) => client.prepare('select count(*) from entry').pluck().get()),
      head.seq,
    );
  }
});

test('no token is in a backup, and no key', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const gateway = (await purser.ask('POST', '/v1/router/key', { token, key: randomUUID(), body: {} })).body.api_key;
  await purser.chat(token);
  const old = readFileSync(join(purser.directory, 'master.key'), 'utf8').trim();
  await purser.run('master-key.rotate', {});
  const file = newFile(t);
  await backUpServer(purser, file);
  const bytes = readFileSync(file);
  const current = readFileSync(join(purser.directory, 'master.key'), 'utf8').trim();
  const secrets = [token, gateway, purser.accountKey, purser.operatorKey, UPSTREAM_KEY, old, current];
  for (const secret of secrets) assert.equal(bytes.includes(secret), false, secret);
  for (const key of [old, current]) assert.equal(bytes.includes(Buffer.from(key, 'hex')), false);
});

test('what is there is never overwritten, not even a name that leads nowhere', async (t) => {
  const purser = await openTestServer(t);
  const file = newFile(t);
  writeFileSync(file, 'the only other copy');
  await assert.rejects(backUpServer(purser, file), { code: 'conflict', message: /already exists/ });
  assert.equal(readFileSync(file, 'utf8'), 'the only other copy');
  rmSync(file);
  symlinkSync('/nowhere/at/all', file);
  await assert.rejects(backUpServer(purser, file), { code: 'conflict', message: /already exists/ });
  assert.deepEqual(readdirSync(join(file, '..')), ['backup.db']);
});

test('a directory that is not there is said', async (t) => {
  const purser = await openTestServer(t);
  await assert.rejects(backUpServer(purser, join(newFile(t), 'in', 'it.db')), { code: 'not_found' });
});

test('what a killed backup left behind is in nobody’s way', async (t) => {
  const purser = await openTestServer(t);
  const file = newFile(t);
  for (const suffix of ['.part', '.part-wal', '.part-shm', '.part-journal']) writeFileSync(file + suffix, 'half');
  await backUpServer(purser, file);
  assert.deepEqual(readdirSync(join(file, '..')), ['backup.db']);
});

test('damaged books are not backed up, and nothing is left under the name', async (t) => {
  const purser = await openTestServer(t);
  await purser.openWallet();
  purser.tamper(`update wallet set name = 'somebody else'`);
  const file = newFile(t);
  await assert.rejects(
    backUpServer(purser, file),
    /Nothing was backed up: the books are damaged .*wallet wal_\w+ was changed/,
  );
  assert.deepEqual(readdirSync(join(file, '..')), []);
});

test('books that are behind what was acknowledged are not backed up', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await purser.chat(token);
  await purser.close();
  const { head, tip } = files(purser.directory);
  const [seq, ...rest] = readFileSync(head, 'utf8').split(' ');
  writeFileSync(head, [Number(seq) + 4, ...rest].join(' '));
  rmSync(tip);
  const file = newFile(t);
  await assert.rejects(backUpServer(purser, file), /Nothing was backed up: the journal ends at entry \d+, but entry/);
  assert.equal(existsSync(file), false);
});

for (const [what, sql] of Object.entries({
  'that refer to each other':
    'create table one (id integer primary key); create table two (id references one); insert into one values (1); insert into two values (1)',
  'that refer to ours': 'create table one (id references wallet(id)); insert into one select id from wallet',
  'for a search':
    "create virtual table one using fts5(text); insert into one values ('a'); create view two as select * from one",
}))
  test(`tables of an operator’s own ${what} are no damage, and stay out of the backup`, async (t) => {
    const purser = await openTestServer(t);
    await purser.openWallet();
    purser.tamper(sql);
    assert.deepEqual((await auditFiles(files(purser.directory))).problems, []);
    const file = newFile(t);
    await backUpServer(purser, file);
    const names = (client: Client.Database) =>
      client.prepare("select name from sqlite_schema where name like 'one%' or name like 'two%'").pluck().all();
    assert.deepEqual(read(file, names), []);
    assert.notDeepEqual(names(purser.app.ledger.client), []);
  });

test('what tables of an operator’s own refer to is no damage', async (t) => {
  const purser = await openTestServer(t);
  purser.tamper(`create table one (id references wallet(id)); create table two (name references account(welcome_credit_cents));
    pragma foreign_keys = off; insert into one values ('wal_gone'); insert into two values ('gone')`);
  assert.deepEqual((await auditFiles(files(purser.directory))).problems, []);
});

test('the tables of Litestream stay in the database and are not in its backup', async (t) => {
  const purser = await openTestServer(t);
  purser.tamper(
    'create table _litestream_seq (id integer primary key, seq integer); create table _litestream_lock (id integer); insert into _litestream_seq values (1, 7)',
  );
  const file = newFile(t);
  const { counts } = await backUpServer(purser, file);
  const names = (client: Client.Database) =>
    client.prepare(`select name from sqlite_schema where name like '%litestream%'`).pluck().all();
  assert.deepEqual(read(file, names), []);
  assert.equal(
    Object.keys(counts).some((name) => name.includes('litestream')),
    false,
  );
  assert.deepEqual(names(purser.app.ledger.client), ['_litestream_seq', '_litestream_lock']);
});
