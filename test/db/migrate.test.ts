import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join, relative } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import Client from 'better-sqlite3';
import { getTableName, is } from 'drizzle-orm';
import { SQLiteTable } from 'drizzle-orm/sqlite-core';
import { schemaOf } from '../../src/db/known-schema.ts';
import { knownMigrations, migrate, pendingMigrations } from '../../src/db/migrate.ts';
import { openDatabase } from '../../src/db/open.ts';
import * as schema from '../../src/db/schema.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { insertInto, KEEP, prepareFor } from './defences-shared.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const ACCOUNT = `insert into account
  (id, name, available_cents, reserved_cents, spent_cents, welcome_credit_cents, owed_cents, created_at)
  values ('acct_1', 'old', 5, 0, 0, 0, 0, 1)`;

function openRaw(t: TestContext, file: string): Client.Database {
  const client = new Client(file);
  t.after(() => client.close());
  return client;
}
const newFile = (t: TestContext) => join(temporaryDirectory(t), 'purser.db');
const migrationsOf = (client: Client.Database) => client.prepare('select name from migration').pluck().all();

/** A database as the Purser before the newest migration left it, with an account in it. */
function olderDatabase(t: TestContext): string {
  const file = newFile(t);
  const client = openRaw(t, file);
  client.pragma('journal_mode = WAL');
  migrate(client, knownMigrations().slice(0, -1));
  client.exec(ACCOUNT);
  client.close();
  return file;
}
const copyOf = (file: string) => `${file}.before-${knownMigrations().at(-1)?.name.replace('.sql', '')}`;

test('a fresh database has every table of the schema, each of them STRICT', (t) => {
  const { client } = openDatabase(newFile(t), { migrate: true });
  t.after(() => client.close());
  const rows = client.pragma('table_list') as { schema: string; name: string; strict: bigint }[];
  const tables = rows.filter((it) => it.schema === 'main' && !it.name.startsWith('sqlite_'));
  const expected = Object.values(schema).flatMap((it) => (is(it, SQLiteTable) ? [getTableName(it)] : []));
  assert.deepEqual(tables.map((it) => it.name).sort(), [...expected, 'migration'].sort());
  for (const { name, strict } of tables) assert.equal(strict, 1n, `${name} is STRICT`);
});

test('a fresh database is what running all migrations makes', (t) => {
  const { client: fresh } = openDatabase(newFile(t), { migrate: true });
  const migrated = openRaw(t, newFile(t));
  migrate(migrated, knownMigrations());
  t.after(() => fresh.close());
  const contents = (client: Client.Database) => {
    const tables = client.prepare("select name from sqlite_schema where type = 'table' order by name").pluck().all();
    const rows = (tables as string[]).map((name) => [name, client.prepare(`select * from "${name}"`).all()]);
    return Object.fromEntries([...rows, ['migration', client.prepare('select name, sha256 from migration').all()]]);
  };
  assert.deepEqual([...schemaOf(fresh)], [...schemaOf(migrated)]);
  assert.deepEqual(contents(fresh), contents(migrated));
});

test('sessions of the page outlive the migration that makes their table again', (t) => {
  const client = openRaw(t, newFile(t));
  const migrations = knownMigrations();
  migrate(client, migrations.slice(0, 18));
  client.exec(ACCOUNT.replace('created_at)', 'created_at, seal)').replace('1)', '1, 0)'));
  const columns = 'id, kind, account_id, key_id, token_hash, created_at, expires_at, last_used_at, seal';
  client.exec(`insert into browser_session (${columns}) values
    ('ses_1', 'account', 'acct_1', null, x'01', 1, 2, 3, 4), ('ses_2', 'operator', null, null, x'02', 1, 2, 3, 4)`);
  const sessions = () => client.prepare(`select ${columns} from browser_session order by id`).all();
  const before = sessions();
  migrate(client, migrations.slice(18));
  assert.deepEqual(sessions(), before);
});

test('opening again changes nothing, and leaves no copy beside it', (t) => {
  const file = newFile(t);
  openDatabase(file, { migrate: true }).client.close();
  const { client } = openDatabase(file, { migrate: true });
  assert.deepEqual(
    migrationsOf(client),
    knownMigrations().map((it) => it.name),
  );
  client.close();
  assert.deepEqual(readdirSync(join(file, '..')), ['purser.db']);
});

test('only whoever may migrate creates a database', (t) => {
  const file = newFile(t);
  assert.throws(() => openDatabase(file, { migrate: false }));
  assert.equal(existsSync(file), false);
});

for (const options of [{ migrate: true }, { migrate: false }, { migrate: false, readonly: true }])
  test(`a database newer than this program is refused (${JSON.stringify(options)})`, (t) => {
    const file = newFile(t);
    const { client } = openDatabase(file, { migrate: true });
    client.exec(`insert into migration values ('9999_future.sql', 'abc', 1)`);
    client.close();
    const before = readFileSync(file);
    assert.throws(() => openDatabase(file, options), /newer Purser: it has 9999_future\.sql/);
    assert.deepEqual(readFileSync(file), before, 'nothing was touched');
  });

test('no database is made beside the log of one that is gone', (t) => {
  const file = newFile(t);
  const { client } = openDatabase(file, { migrate: true });
  copyFileSync(`${file}-wal`, `${file}.log`);
  client.close();
  rmSync(file);
  renameSync(`${file}.log`, `${file}-wal`);
  const before = readFileSync(`${file}-wal`);
  assert.throws(() => openDatabase(file, { migrate: true }), /purser\.db is gone, but its write-ahead log is there/);
  assert.deepEqual([existsSync(file), readFileSync(`${file}-wal`)], [false, before]);
  writeFileSync(`${file}-wal`, '');
  openDatabase(file, { migrate: true }).client.close();
});

test('a migration that was changed after it ran is refused', (t) => {
  const file = newFile(t);
  const { client } = openDatabase(file, { migrate: true });
  client.exec(`update migration set sha256 = '00' where name like '0000%'`);
  client.close();
  assert.throws(() => openDatabase(file, { migrate: true }), /migrated with another 0000_/);
});

test('an older database is refused to whoever may not migrate, and left as it is', (t) => {
  const file = olderDatabase(t);
  assert.throws(() => openDatabase(file, { migrate: false }), /older than this Purser/);
  assert.equal(migrationsOf(openRaw(t, file)).length, knownMigrations().length - 1);
});

test('before an older database is changed, a verified copy is laid beside it', (t) => {
  const file = olderDatabase(t);
  const { client } = openDatabase(file, { migrate: true });
  assert.equal(migrationsOf(client).length, knownMigrations().length);
  client.close();

  const copy = openRaw(t, copyOf(file));
  assert.equal(copy.pragma('integrity_check', { simple: true }), 'ok');
  assert.equal(migrationsOf(copy).length, knownMigrations().length - 1);
  assert.deepEqual(copy.prepare('select name, available_cents from account').raw().all(), [['old', 5]]);
  assert.deepEqual(
    readdirSync(join(file, '..')).filter((name) => name.endsWith('.part')),
    [],
  );
});

test('the copy is of what the database is now, not of an earlier attempt to migrate it', (t) => {
  const file = olderDatabase(t);
  writeFileSync(copyOf(file), 'left by a start that was given up; the older Purser served for a week since');
  openDatabase(file, { migrate: true }).client.close();
  const copy = openRaw(t, copyOf(file));
  assert.deepEqual(copy.prepare('select name from account').pluck().all(), ['old']);
});

test('what an interrupted copy left behind is in nobody’s way', (t) => {
  const file = olderDatabase(t);
  writeFileSync(`${copyOf(file)}.part`, 'half a copy');
  openDatabase(file, { migrate: true }).client.close();
  assert(existsSync(copyOf(file)));
  assert.equal(existsSync(`${copyOf(file)}.part`), false);
});

test('what stood in a table that a migration makes anew stands there still, with its triggers', (t) => {
  const client = openRaw(t, newFile(t));
  const all = knownMigrations();
  const before = all.findIndex((it) => it.sql.includes('__new_funding'));
  migrate(client, all.slice(0, before));
  client.exec(ACCOUNT);
  client.exec(`insert into funding values ('evt_1', 'acct_1', 'credit', 5, 'invoice', 'k', 1, 77)`);
  migrate(client, all.slice(before));
  assert.deepEqual(
    { ...(client.prepare('select * from funding').get() as object) },
    {
      id: 'evt_1',
      account_id: 'acct_1',
      kind: 'credit',
      amount_cents: 5,
      reason: 'invoice',
      key: 'k',
      session_id: null,
      created_at: 1,
      seal: 77,
    },
  );
  assert.throws(() => client.exec('delete from funding'), /fundings are kept/);
  assert.throws(() => client.exec('update funding set amount_cents = 6'), /fundings are final/);
});

test('keeps stand in their order, and are counted, after the migration that makes their table anew', (t) => {
  const client = openRaw(t, newFile(t));
  const all = knownMigrations();
  const before = all.findIndex((it) => it.sql.includes('__new_keep'));
  migrate(client, all.slice(0, before));
  const insert = insertInto(client);
  prepareFor('keep', insert);
  const ended = { ended_at: 2, end_reason: 'requested' };
  for (const [i, id] of ['keep_2', 'keep_1', 'keep_3'].entries())
    insert('keep', { ...KEEP, ...(i < 2 ? ended : {}), id, idempotency_key: id });
  const rows = () => client.prepare('select * from keep order by rowid').all();
  const old = rows();
  migrate(client, all.slice(before));
  assert.deepEqual(rows(), old);
  insert('keep', { ...KEEP, ...ended, id: 'keep_4', idempotency_key: 'end', extend_seconds: 0, max_seconds: 0 });
  assert.equal(client.prepare("select row_count from tally where table_name = 'keep'").pluck().get(), 4);
});

test('a migration that fails half-way leaves no change', (t) => {
  const client = openRaw(t, newFile(t));
  migrate(client, knownMigrations());
  client.exec(ACCOUNT);
  const before = client.prepare('select type, name, sql from sqlite_schema order by name').all();
  const broken = {
    name: '0002_broken.sql',
    sql: 'create table half (id integer) strict; update account set name = upper(name); select * from nowhere;',
  };
  assert.throws(() => migrate(client, [broken]), /no such table: nowhere/);
  assert.deepEqual(client.prepare('select type, name, sql from sqlite_schema order by name').all(), before);
  assert.equal(client.prepare('select name from account').pluck().get(), 'old');
  assert.deepEqual(pendingMigrations(client), []);
  assert.equal(client.pragma('foreign_keys', { simple: true }), 1, 'references are checked again');
});

test('of several migrations those before the one that fails stay', (t) => {
  const client = openRaw(t, newFile(t));
  const migrations = [
    { name: '0000_a.sql', sql: 'create table a (id integer) strict' },
    { name: '0001_b.sql', sql: 'create table b (id integer) strict; nonsense' },
    { name: '0002_c.sql', sql: 'create table c (id integer) strict' },
  ];
  assert.throws(() => migrate(client, migrations));
  assert.deepEqual(migrationsOf(client), ['0000_a.sql']);
  assert.deepEqual(
    pendingMigrations(client, migrations).map((it) => it.name),
    ['0001_b.sql', '0002_c.sql'],
  );
});

test('a migration that breaks a reference is undone', (t) => {
  const client = openRaw(t, newFile(t));
  migrate(client, knownMigrations());
  const sql = `insert into funding (id, account_id, kind, amount_cents, created_at, seal) values ('evt_1', 'acct_x', 'credit', 1, 1, 0)`;
  assert.throws(() => migrate(client, [{ name: '0002_x.sql', sql }]), /0002_x\.sql: a broken reference/);
  assert.equal(client.prepare('select count(*) from funding').pluck().get(), 0);
});

for (const [from, { name, sql }] of knownMigrations().entries())
  if (/rename to/i.test(sql))
    test(`views and tables of an operator’s own stay as they are where tables are made anew (${name})`, (t) => {
      const client = openRaw(t, newFile(t));
      migrate(client, knownMigrations().slice(0, from));
      client.pragma('foreign_keys = OFF');
      const own = [
        'CREATE VIEW seen AS SELECT account.id FROM account, wallet, operation, entry',
        'CREATE VIEW "seen ""again""" AS SELECT * FROM seen',
        'CREATE TRIGGER written INSTEAD OF INSERT ON seen BEGIN SELECT 1; END',
        'CREATE TABLE noted (id REFERENCES wallet(id), name REFERENCES account(welcome_credit_cents))',
      ];
      client.exec([...own, "INSERT INTO noted VALUES ('wal_gone', 1)"].join(';\n'));
      migrate(client, knownMigrations().slice(from));
      const there = new Set(schemaOf(client).values());
      assert.deepEqual(
        own.filter((it) => !there.has(it)),
        [],
      );
      assert.deepEqual(client.prepare('select id from noted').pluck().all(), ['wal_gone']);
    });

test('tables that Litestream keeps in the file are no reason to refuse it', (t) => {
  const file = newFile(t);
  const { client } = openDatabase(file, { migrate: true });
  client.exec(
    'create table _litestream_seq (id integer primary key, seq integer); create table _litestream_lock (id integer)',
  );
  client.close();
  openDatabase(file, { migrate: true }).client.close();
});

test('a file that is no database is refused and left as it is', (t) => {
  const file = newFile(t);
  writeFileSync(file, 'this is not a database, whatever its name says\n'.repeat(100));
  const before = readFileSync(file);
  assert.throws(() => openDatabase(file, { migrate: true }), /not a database/);
  assert.deepEqual(readFileSync(file), before);
});

test('the migrations are those that drizzle-kit makes of the schema', (t) => {
  const folder = join(temporaryDirectory(t), 'migrations');
  cpSync(join(ROOT, 'migrations'), folder, { recursive: true });
  const files = () => readdirSync(folder, { recursive: true }).sort();
  const before = files();
  const program = join(ROOT, 'node_modules/drizzle-kit/bin.cjs');
  const options = ['--dialect', 'sqlite', '--schema', 'src/db/schema.ts', '--out', relative(ROOT, folder)];
  const env = { ...process.env, TMPDIR: temporaryDirectory(t) }; // It leaves what it compiled.
  const output = execFileSync(process.execPath, [program, 'generate', ...options], {
    cwd: ROOT,
    env,
    encoding: 'utf8',
  });
  assert.deepEqual(files(), before, output);
  assert.match(output, /No schema changes/);
});

test('whoever migrates an older database is told what ran, and where the copy from before is', (t) => {
  const file = olderDatabase(t);
  const told: unknown[] = [];
  const migrated = (...it: unknown[]) => told.push(it);
  openDatabase(file, { migrate: true, migrated }).client.close();
  openDatabase(file, { migrate: true, migrated }).client.close();
  openDatabase(newFile(t), { migrate: true, migrated }).client.close();
  assert.deepEqual(told, [[[knownMigrations().at(-1)?.name], copyOf(file)]]);
});
