import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { auditFiles } from '../../src/books/examine.ts';
import { knownMigrations, pendingMigrations } from '../../src/db/migrate.ts';
import { openDatabase } from '../../src/db/open.ts';
import { files } from '../../src/files/data-directory.ts';
import { audit } from '../../src/ledger/audit.ts';
import { installation } from '../helper/executable.ts';
import { openUpstream } from '../helper/upstream.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { FIXTURES, layDirectory, query, rowsOf } from './upgrade-shared.ts';

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
