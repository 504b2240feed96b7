import type { Database as Client } from 'better-sqlite3';
import { getTableName, type SQL, sql } from 'drizzle-orm';
import type { SQLiteTable } from 'drizzle-orm/sqlite-core';
import { CHECKED_TABLES, type CheckedTable } from './checksum.ts';
import type { Tx } from './handle.ts';
import { answers, browserSessions, operations, tallies } from './schema.ts';

/**
 * The tables whose rows are not counted so that a lost row is noticed (docs/decisions/0013): operations and most answers are
 * counted on their wallets, and sessions of the page may end at any time. Entries, which carry no checksum either, are numbered and
 * chained. A trigger of every other table counts the added rows.
 */
const UNCOUNTED_TABLES: ReadonlySet<CheckedTable> = new Set([operations, answers, browserSessions]);
type CountedTable = Exclude<CheckedTable, typeof operations | typeof browserSessions>;

/** Deletes rows of a table and subtracts them from its count. Returns how many there were. */
export function deleteRows(tx: Tx, table: CountedTable, where: SQL): number {
  const { changes } = tx.delete(table).where(where).run();
  if (changes) count(tx, table, -changes);
  return changes;
}

/** Counts an answer that was added other than by the settlement of its operation. */
export const countAnswer = (tx: Tx): void => count(tx, answers, 1);

function count(tx: Tx, table: SQLiteTable, rows: number): void {
  tx.insert(tallies)
    .values({ table: getTableName(table), rows })
    .onConflictDoUpdate({ target: tallies.table, set: { rows: sql`${tallies.rows} + ${rows}` } })
    .run();
}

/** Compares the rows of each table with its count, but for operations (`verifyOperations`). Reads rows and writes nothing. */
export function findMissingRows(client: Client, fault: (text: string) => void): void {
  const tally = client.prepare('select row_count from tally where table_name = ?').pluck();
  const rowsOf = (table: string) => client.prepare(`select count(*) from ${table}`).pluck().get() as bigint;
  const compare = (table: string, counted: bigint) => {
    const rows = rowsOf(table);
    if (rows < counted) fault(`${counted - rows} of ${counted} rows of ${table} are missing`);
    else if (rows > counted) fault(`there are ${rows} rows of ${table}, but ${counted} were counted`);
  };
  const counted = (table: string) => (tally.get(table) as bigint | undefined) ?? 0n;
  for (const table of CHECKED_TABLES.filter((it) => !UNCOUNTED_TABLES.has(it)).map(getTableName))
    compare(table, counted(table));
  const settled = client.prepare('select coalesce(sum(answer_count), 0) from balance').pluck().get() as bigint;
  compare('answer', settled + counted('answer'));
}
