import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { desc, eq, gt, sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/better-sqlite3';
import { blob, sqliteTable, text } from 'drizzle-orm/sqlite-core';
import { Nanos } from '../../src/base/money.ts';
import { prepare, type Reader } from '../../src/db/handle.ts';
import { count, entries, nanos, wallets } from '../../src/db/schema.ts';
import { compileQuery } from '../../src/db/statement.ts';
import { findWallet } from '../../src/ledger/wallet.ts';
import { openBooks } from '../ledger/books.ts';

// What compileQuery reads of a prepared query is not in drizzle's types: another version may keep it elsewhere.

/** The same statement as drizzle runs it, and as we do. */
function twice<S extends object>(db: object, slow: S): { slow: S; quick: S } {
  return { slow, quick: compileQuery(slow)(clientOf(db)) as S };
}

const clientOf = (db: object) => (db as { $client: Client.Database }).$client;

/** The database of a handle, which notes what is prepared. */
const preparing = (db: object, sources: string[]): Pick<Client.Database, 'prepare'> => ({
  prepare(sql: string) {
    sources.push(sql);
    return clientOf(db).prepare(sql) as never;
  },
});

async function openFull(t: TestContext) {
  const books = await openBooks(t);
  const account = await books.account(100_000);
  await books.wallet(account, { name: 'never expires', expiresInSeconds: 0 });
  await books.wallet(account, { name: 'expires', expiresInSeconds: 60 });
  return books.ledger.read;
}

test('every kind of column is read as drizzle reads it', async (t) => {
  const read = await openFull(t);
  const { slow, quick } = twice(read, read.select().from(wallets).orderBy(desc(wallets.id)).prepare());
  const rows = quick.all();
  assert.equal(rows.length, 2);
  assert.deepEqual(rows, slow.all());
  assert.deepEqual(quick.get(), slow.get());
  const [row] = rows;
  assert.deepEqual(
    [typeof row?.budget, typeof row?.createdAt, row?.expiresAt === null, Buffer.isBuffer(row?.tokenHash)],
    ['bigint', 'number', false, true],
  );
});

test('what is computed is read as drizzle reads it, and what is not there is undefined', async (t) => {
  const read = await openFull(t);
  const { slow, quick } = twice(
    read,
    read
      .select({
        count: sql`count(*)`.mapWith(Number),
        budget: sql`sum(${wallets.budget})`.mapWith(wallets.budget),
        plain: sql<bigint>`max(${wallets.createdAt})`.as('plain'),
      })
      .from(wallets)
      .where(gt(wallets.id, sql.placeholder('after')))
      .prepare(),
  );
  for (const after of ['', 'wal_', 'x']) assert.deepEqual(quick.get({ after }), slow.get({ after }));
  const none = twice(
    read,
    read
      .select()
      .from(entries)
      .where(eq(entries.seq, sql.placeholder('seq')))
      .prepare(),
  );
  assert.equal(none.quick.get({ seq: 999 }), undefined);
  assert.throws(() => none.quick.get({}), /no value for the placeholder seq/);
  assert.throws(() => none.quick.get(), /no value for the placeholder seq/);
});

test('a join of whole tables stays as drizzle makes it', async (t) => {
  const read = await openFull(t);
  const { slow, quick } = twice(
    read,
    read.select().from(wallets).leftJoin(entries, eq(entries.causeId, wallets.id)).limit(1).prepare(),
  );
  assert.deepEqual(quick.all(), slow.all());
});

test('values are written as drizzle writes them: encoded by their column, refused where they are of another kind', () => {
  const sample = sqliteTable('sample', {
    id: text().primaryKey(),
    at: count().notNull(),
    end: count(),
    amount: nanos().notNull(),
    hash: blob({ mode: 'buffer' }).notNull(),
  });
  const client = new Client(':memory:');
  client.defaultSafeIntegers(true);
  client.exec(
    'create table sample (id text primary key, at integer not null, end integer, amount integer not null, hash blob not null) strict',
  );
  const db = drizzle(client);
  const built = db
    .insert(sample)
    .values({
      id: sql.placeholder('id'),
      at: 7,
      end: sql.placeholder('end'),
      amount: sql.placeholder('amount'),
      hash: sql.placeholder('hash'),
    })
    .prepare();
  const insert = twice(db, built).quick;
  const row = { id: 'one', end: null, amount: Nanos(2n ** 62n + 1n), hash: Buffer.alloc(32, 1) };
  assert.equal(insert.run(row).changes, 1);
  assert.deepEqual(db.select().from(sample).all(), [{ ...row, at: 7 }]);
  assert.throws(() => insert.run({ ...row, id: 'two', amount: 5 }), /a bigint is expected/);
  assert.throws(() => insert.run({ ...row, id: 'two', end: 1.5 }), /a whole number is expected/);
});

test('a limit is a part of the statement, so that SQLite does not compile it anew each time', async (t) => {
  const read = await openFull(t);
  const first = read.select({ id: wallets.id }).from(wallets).orderBy(wallets.id).limit(1).prepare();
  const sources: string[] = [];
  const { slow, quick } = twice({ $client: preparing(read, sources) }, first);
  assert.deepEqual(quick.all(), slow.all());
  assert.match(sources.join(), /^select .* limit 1$/);
});

test('a statement is prepared once for each database, when it is first used', async (t) => {
  const handles = [await openFull(t), await openFull(t)];
  let built = 0;
  const statements = prepare((read: Reader) => {
    built++;
    const ids = () => read.select({ id: wallets.id }).from(wallets).orderBy(wallets.id);
    return { all: ids().prepare(), first: ids().limit(1).prepare() };
  });
  for (const read of handles) {
    const sources: string[] = [];
    const handle = { $client: preparing(read, sources) } as unknown as Reader;
    const { all, first } = statements(handle);
    assert.deepEqual(sources, []);
    for (let i = 0; i < 2; i++) assert.deepEqual(first.get(), all.all()[0]);
    assert.equal(findWallet(read, first.get()?.id as string)?.id, first.get()?.id);
    assert.equal(sources.length, 2);
    assert.equal(statements(handle), statements(handle));
  }
  assert.equal(built, 1);
});
