import assert from 'node:assert/strict';
import { chmodSync, cpSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { build } from 'esbuild';
import { auditFiles } from '../../src/books/examine.ts';
import { knownMigrations, pendingMigrations } from '../../src/db/migrate.ts';
import { openDatabase } from '../../src/db/open.ts';
import { files } from '../../src/files/data-directory.ts';
import { audit } from '../../src/ledger/audit.ts';
import { atEveryMoment, dieAt, momentsOf } from '../executable/steps.ts';
import { layFixture } from '../fixtures/dump.ts';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { installation } from '../helper/executable.ts';
import { openUpstream } from '../helper/upstream.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const FOLDER = join(import.meta.dirname, '../fixtures');
/** The database of every release, as it left one. */
const FIXTURES = readdirSync(FOLDER).filter((name) => name.endsWith('.sql'));

function layDirectory(t: TestContext, fixture: string) {
  const directory = temporaryDirectory(t);
  chmodSync(directory, 0o700);
  return { directory, notes: layFixture(join(FOLDER, fixture), directory) };
}

/** Every row that a release wrote, by the columns that it knew. */
function rowsOf(client: Client.Database, columns?: Map<string, string[]>): [Map<string, string[]>, string] {
  const tables = client.prepare(`select name from sqlite_schema where type = 'table' order by name`).pluck().all();
  const known =
    columns ??
    new Map(
      (tables as string[])
        .filter((name) => name !== 'migration')
        .map((name) => [name, client.prepare('select name from pragma_table_info(?)').pluck().all(name) as string[]]),
    );
  const rows = [...known].map(([name, list]) => [
    name,
    client
      .prepare(`select ${list.join(', ')} from ${name} order by rowid`)
      .raw()
      .safeIntegers()
      .all(),
  ]);
  return [known, JSON.stringify(rows, (_, value) => (typeof value === 'bigint' ? `${value}n` : value))];
}

function query<T>(file: string, read: (client: Client.Database) => T): T {
  const client = new Client(file, { readonly: true });
  try {
    return read(client);
  } finally {
    client.close();
  }
}

test('there is a fixture', () => assert(FIXTURES.length > 0));

for (const fixture of FIXTURES) {
  test(`what ${fixture} left is opened: every row as it was, and a copy of before beside it`, (t) => {
    const { directory } = layDirectory(t, fixture);
    const { database } = files(directory);
    const [columns, before] = query(database, (client) => rowsOf(client));
    const { client } = openDatabase(database, { migrate: true });
    t.after(() => client.close());
    assert.equal(rowsOf(client, columns)[1], before);
    assert.deepEqual(audit(client).problems, []);
    const copies = readdirSync(directory).filter((name) => name.includes('before'));
    const pending = knownMigrations().filter(({ name }) => name > fixture);
    assert.equal(copies.length, pending.length ? 1 : 0);
    for (const copy of copies) assert.equal(query(join(directory, copy), (it) => rowsOf(it))[1], before);
  });

  test(`what ${fixture} left is opened beside Litestream's tables`, async (t) => {
    const { directory } = layDirectory(t, fixture);
    const { database } = files(directory);
    const client = new Client(database);
    client.exec(
      'create table _litestream_seq (id integer primary key, seq integer); create table _litestream_lock (id integer); insert into _litestream_seq values (1, 4)',
    );
    client.close();
    openDatabase(database, { migrate: true }).client.close();
    assert.deepEqual((await auditFiles(files(directory))).problems, []);
    assert.equal(
      query(database, (it) => it.prepare('select seq from _litestream_seq').pluck().get()),
      4,
    );
  });

  test(`what ${fixture} left is served by the executable: its tokens open it, and it goes on`, async (t) => {
    const { directory, notes } = layDirectory(t, fixture);
    const upstream = await openUpstream(t);
    const purser = installation(t, { directory, upstream });
    const server = await purser.serve();
    const { token, wallet, account_key: accountKey, operator_key: operatorKey } = notes;
    assert.equal((await purser.json('wallet', 'token', wallet as string)).agent_token, token);
    for (const key of [accountKey, operatorKey])
      assert.equal((await server.ask('GET', '/v1/account', { token: key as string })).status, 200);
    const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 10 };
    const chat = await server.ask('POST', '/v1/chat/completions', { token: token as string, key: 'new', body });
    assert.equal(chat.status, 200, chat.text);
    assert.equal((await server.ask('GET', '/readyz')).status, 200);
    await server.stop();
    assert.equal((await purser.json('ledger', 'verify')).ok, true);
  });
}

/** The way of the oldest goes through every migration of the others. */
const OLDEST = FIXTURES.sort()[0] as string;

/** The child in one file: from its sources it takes ten times as long to start, and it is started some fifty times. */
async function bundle(directory: string): Promise<string> {
  const outfile = join(directory, 'migrate-child.mjs');
  await build({
    entryPoints: [join(import.meta.dirname, 'migrate-child.ts')],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    external: ['better-sqlite3'],
    define: { 'import.meta.url': JSON.stringify(new URL('../../src/files/asset.ts', import.meta.url).href) },
  });
  symlinkSync(join(import.meta.dirname, '../../node_modules'), join(directory, 'node_modules'));
  return outfile;
}

test(`a start that dies while it brings ${OLDEST} up to date leaves before or after`, async (t) => {
  if (!hasComponent(t, 'strace', () => hasProgram('strace'))) return;
  const { directory } = layDirectory(t, OLDEST);
  const copies = temporaryDirectory(t);
  const copy = () => {
    const to = mkdtempSync(join(copies, 'data-'));
    cpSync(directory, to, { recursive: true });
    return to;
  };
  const [columns, before] = query(files(directory).database, (client) => rowsOf(client));
  const program = await bundle(temporaryDirectory(t));
  const start = (to: string) => [program, files(to).database];
  const moments = await momentsOf(start(copy()), {}, process.execPath);
  const died = await atEveryMoment(moments, async (moment) => {
    const to = copy();
    const said = await dieAt(moment, start(to), {}, process.execPath);
    const { client } = openDatabase(files(to).database, { migrate: true }); // The next start needs nobody's help.
    assert.equal(rowsOf(client, columns)[1], before);
    assert.deepEqual(audit(client).problems, []);
    client.close();
    assert.deepEqual(
      readdirSync(to).filter((name) => name.endsWith('.part')),
      [],
    );
    rmSync(to, { recursive: true });
    return said;
  });
  t.diagnostic(`${died} kills while ${OLDEST} was brought up to date`);
});

test('a database of this Purser is refused by every one before it, with a sentence', (t) => {
  const file = join(temporaryDirectory(t), 'purser.db');
  openDatabase(file, { migrate: true }).client.close();
  const all = knownMigrations();
  query(file, (client) => {
    for (let count = 0; count < all.length; count++)
      assert.throws(
        () => pendingMigrations(client, all.slice(0, count)),
        RegExp(
          `written by a newer Purser: it has ${all[count]?.name}, which this one does not know. Use the newer version`,
        ),
      );
  });
});
