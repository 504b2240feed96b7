import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { auditFiles } from '../../src/books/examine.ts';
import { files } from '../../src/files/data-directory.ts';
import { audit } from '../../src/ledger/audit.ts';
import { dropAnswer, keepAnswer, pruneAnswers, resolveOperation } from '../../src/ledger/operation.ts';
import { EVENT_KEPT_SECONDS, pruneEvents, recordTest } from '../../src/ledger/outbox.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { done, openBooks } from './books.ts';
import { NOTES, openStory } from './story.ts';

/** Rows that may go without anybody noticing, and why. */
const MAY_GO: Record<string, string> = {
  browser_session: 'a session of the page may end at any time: its holder signs in again',
};
/** Of these a deletion or a change is seen as the file is opened, before anything is verified. */
const SEEN_EARLIER = ['migration'];

/** The columns that tell one kind of row of a table from another. */
const KINDS = ['kind', 'status', 'state', 'outcome', 'type', 'end_reason', 'close_reason', 'table_name'];

type Row = Record<string, unknown> & { rowid: bigint };

/** The closed books of the story, opened by a second program that keeps to no rule. */
async function openPast(t: TestContext) {
  const { closed } = await openStory(t);
  const client = new Client(files(closed).database);
  t.after(() => client.close());
  client.defaultSafeIntegers(true);
  client.pragma('foreign_keys = OFF');
  client.pragma('ignore_check_constraints = ON');
  const refusing = client.prepare(
    "select name, sql from sqlite_schema where type = 'trigger' and sql like '%RAISE%' and tbl_name = ?",
  ) as Client.Statement<[string], { name: string; sql: string }>;
  const tables = client
    .prepare("select name from sqlite_schema where type = 'table' order by name")
    .pluck()
    .all() as string[];

  /** Returns what `judge` says of the books after this statement on a table, which is undone. No trigger is in its way. */
  function after<T>(table: string, statement: string, value: unknown, judge: (client: Client.Database) => T): T {
    const triggers = refusing.all(table);
    client.exec('begin');
    try {
      for (const { name } of triggers) client.exec(`drop trigger ${name}`);
      assert.equal(client.prepare(statement).run(value).changes, 1, statement);
      for (const { sql } of triggers) client.exec(sql);
      return judge(client);
    } finally {
      client.exec('rollback');
    }
  }

  /** One row of each kind of a table. */
  function kindsOf(table: string): Row[] {
    const kinds = columnsOf(table).filter(({ name }) => KINDS.includes(name));
    const by = kinds.length ? ` group by ${kinds.map(({ name }) => name).join(', ')}` : ' order by rowid desc limit 1';
    const rows = client.prepare(`select rowid as rowid, * from ${table}${by}`).all() as Row[];
    assert(rows.length > 0, `${table} has no row`);
    return rows;
  }
  const columnsOf = (table: string) =>
    client.prepare('select name, type from pragma_table_info(?)').all(table) as { name: string; type: string }[];
  return { directory: closed, client, tables, after, kindsOf, columnsOf };
}

/** A row in a list of what was not seen. */
const nameOf = (table: string, row: Row) =>
  [table, row.id ?? row.rowid, ...KINDS.map((kind) => row[kind]).filter(Boolean)].join(' ');

test('a row of any kind that is deleted past Purser is missed, and named by its table or its own name', async (t) => {
  const { tables, after, kindsOf, client } = await openPast(t);
  assert.deepEqual(audit(client).problems, []);
  const unseen: string[] = [];
  let count = 0;
  for (const table of tables.filter((name) => !(name in MAY_GO) && !SEEN_EARLIER.includes(name))) {
    for (const row of kindsOf(table)) {
      count++;
      const { problems } = after(table, `delete from ${table} where rowid = ?`, row.rowid, audit);
      const names = [
        table === 'entry' ? 'journal' : table,
        row.id,
        row.table_name,
        row.operation_id,
        row.wallet_id,
      ].filter(Boolean);
      const isNamed = problems.some((problem) => names.some((name) => problem.includes(String(name))));
      if (!isNamed) unseen.push(`${nameOf(table, row)}: ${problems[0] ?? 'ok'}`);
    }
  }
  t.diagnostic(`${count} kinds of rows of ${tables.length} tables`);
  assert.deepEqual(unseen, []);
});

test('a column of any kind of row that is changed alone is seen, unless it promises nothing', async (t) => {
  const { tables, after, kindsOf, columnsOf } = await openPast(t);
  const unseen: string[] = [];
  let count = 0;
  for (const table of tables.filter((name) => !SEEN_EARLIER.includes(name))) {
    for (const row of kindsOf(table)) {
      for (const { name: column, type } of columnsOf(table)) {
        if (NOTES[table]?.includes(column)) continue;
        count++;
        const other = { INTEGER: `coalesce(${column}, 0) + 1000`, BLOB: 'zeroblob(32)', TEXT: `'7'` }[
          type.toUpperCase()
        ];
        const { ok } = after(
          table,
          `update ${table} set ${column} = ${other} where rowid = ?`,
          row.rowid,
          verifyLedger,
        );
        if (ok) unseen.push(`${nameOf(table, row)}: ${column}`);
      }
    }
  }
  t.diagnostic(`${count} columns`);
  assert.deepEqual(unseen, []);
});

test('a migration that is gone or another is seen as the file is opened', async (t) => {
  const { directory, client } = await openPast(t);
  const change = async (statement: string) => {
    const kept = client.prepare('select * from migration order by name desc limit 1').get() as Record<string, unknown>;
    client.exec(statement);
    await assert.rejects(auditFiles(files(directory)), /database (is older|was migrated|was written)/, statement);
    client.prepare('delete from migration where name = ? or name = ?').run(kept.name, 'x');
    client.prepare('insert into migration values (?, ?, ?)').run(kept.name, kept.sha256, kept.at);
  };
  const newest = 'where name = (select max(name) from migration)';
  await change(`delete from migration ${newest}`);
  await change(`update migration set sha256 = 'x' ${newest}`);
  await change(`update migration set name = 'x' ${newest}`);
  assert.deepEqual((await auditFiles(files(directory))).problems, []);
});

test('a chat writes no count beside its wallet, and what is deleted when its time is over is not missed', async (t) => {
  const { ledger, ...books } = await openBooks(t);
  const tally = () => ledger.client.prepare('select * from tally order by table_name').all();
  const { id: walletId } = await books.wallet(await books.account());
  const before = tally();
  const operations = [await books.hold(walletId, 5n), await books.hold(walletId, 0n), await books.hold(walletId, 5n)];
  const [kept, free, late] = operations.map(({ id }) => id) as [string, string, string];
  await books.settle(kept, done(5n));
  await books.settle(free, done(0n));
  await ledger.write((tx) => resolveOperation(tx, late, 'charge', 'policy', 'nobody knows', 1));
  assert.deepEqual(tally(), before);
  await ledger.write(keepAnswer, { id: late, body: Buffer.from('{}'), keptUntil: 10 });
  const answers = () => ledger.client.prepare('select count(*) from answer').pluck().get();
  assert.deepEqual([answers(), verifyLedger(ledger.client).problems], [3n, []]);
  await ledger.write(dropAnswer, { id: late });
  await ledger.write(dropAnswer, { id: late }); // There is none any more.
  assert.deepEqual([answers(), verifyLedger(ledger.client).problems], [2n, []]);
  await ledger.write(recordTest, { now: 1 });
  const later = { now: 1 + EVENT_KEPT_SECONDS };
  const pruned = await ledger.write((tx) => [
    pruneAnswers.run(tx, later),
    pruneEvents.run(tx, later),
    pruneEvents.run(tx, later),
  ]);
  assert.deepEqual(pruned, [2, 1, 0]);
  assert.deepEqual([answers(), verifyLedger(ledger.client).problems], [0n, []]);
});
