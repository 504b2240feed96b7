import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import type { Database as Client } from 'better-sqlite3';
import { eq, sql } from 'drizzle-orm';
import { centsToNanos } from '../../src/base/money.ts';
import { prepare, type Reader } from '../../src/db/handle.ts';
import { plain } from '../../src/db/plain.ts';
import { wallets } from '../../src/db/schema.ts';
import { findWallet } from '../../src/ledger/wallet.ts';
import { openBooks } from '../ledger/books.ts';

/** Two databases with a wallet each, and what SQLite prepares in them from now on. */
async function openTwo(t: TestContext) {
  return [await openOne(t), await openOne(t)];
}
async function openOne(t: TestContext) {
  const books = await openBooks(t);
  const { id } = await books.wallet(await books.account(), { name: 'one' });
  const { client, read } = books.ledger;
  const sources: string[] = [];
  const prepareIn = client.prepare.bind(client);
  client.prepare = ((source: string) => {
    sources.push(source);
    return prepareIn(source);
  }) as Client['prepare'];
  return { read, id, sources };
}

test('a query is built once, and prepared once for each database, when it is first used', async (t) => {
  let builds = 0;
  const statements = prepare((read: Reader) => {
    builds++;
    const ids = () => read.select({ id: wallets.id }).from(wallets);
    return {
      all: ids().prepare(),
      one: ids()
        .where(eq(wallets.id, sql.placeholder('id')))
        .prepare(),
    };
  });
  const inPlainSql = plain({ all: 'select id from wallet', one: 'select id from wallet where id = ?' });
  const databases = await openTwo(t);
  for (const { read, id, sources } of databases) {
    statements(read);
    inPlainSql(read);
    assert.deepEqual(sources, []);
    for (let i = 0; i < 2; i++) {
      assert.deepEqual(statements(read).one.get({ id }), { id });
      assert.deepEqual(inPlainSql(read).one.get(id), [id]);
    }
    assert.equal(sources.length, 2);
    assert.deepEqual(statements(read).all.all(), [{ id }]);
    assert.deepEqual(inPlainSql(read).all.all(), [[id]]);
    assert.equal(sources.length, 4);
    assert.throws(() => statements(read).one.get({}), /No value for placeholder "id"/);
  }
  const [one, other] = databases.map(({ read, id }) => ({ on: statements(read), id }));
  assert(one && other);
  assert.deepEqual([one.on.all.all(), other.on.all.all()], [[{ id: one.id }], [{ id: other.id }]]);
  assert.deepEqual([one.on.one.get({ id: other.id }), other.on.one.get({ id: other.id })?.id], [undefined, other.id]);
  assert.equal(builds, 1);
});

test('plain SQL: whole numbers are read as bigint, what is not there is undefined, and run tells how many rows it changed', async (t) => {
  const { read, id } = await openOne(t);
  const { budget, none, hold } = plain({
    budget: 'select budget_nanos, expires_at, token_hash from wallet where id = ?',
    none: 'select id from wallet where id = ?',
    hold: 'update balance set held_nanos = held_nanos + ? where number = (select number from wallet where id = ?)',
  })(read);
  const [nanos, expiresAt, hash] = budget.get(id) ?? [];
  assert.deepEqual([nanos, expiresAt, Buffer.isBuffer(hash)], [centsToNanos(1000), null, true]);
  assert.equal(none.get('wal_x'), undefined);
  assert.deepEqual(none.all('wal_x'), []);
  assert.deepEqual([hold.run(7n, id), hold.run(7, id), hold.run(7n, 'wal_x')], [1, 1, 0]);
  assert.equal(findWallet(read, id)?.held, 14n);
  assert.throws(() => hold.run(0.5, id), /cannot store REAL value in INTEGER column/);
});
