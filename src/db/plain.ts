import type { Database as Client } from 'better-sqlite3';
import { type Column, type GetColumnData, getTableName } from 'drizzle-orm';
import { onceFor, preparedLate, type Reader } from './handle.ts';

type SqlValue = string | number | bigint | Buffer | null;

/** A statement whose values are bound by position, and whose rows are lists of columns. */
type PlainStatement = {
  /** Returns the number of rows that the statement itself has changed. */
  run(...values: SqlValue[]): number;
  /** Runs an INSERT of one row, and returns its rowid. */
  insert(...values: SqlValue[]): number;
  get<Row extends unknown[]>(...values: SqlValue[]): Row | undefined;
  all<Row extends unknown[]>(...values: SqlValue[]): Row[];
};

/**
 * Declares statements in plain SQL by name: those that run for every chat, and those that read thousands of rows. Their callers
 * bind values and read columns themselves, in half the time of drizzle's queries. A bound LIMIT would make SQLite compile a
 * statement each time.
 */
export function plain<Name extends string>(
  texts: Readonly<Record<Name, string>>,
): (handle: Reader) => Readonly<Record<Name, PlainStatement>> {
  return onceFor((client) => {
    const statements = Object.entries<string>(texts).map(([name, sql]) => [name, statementOf(client, sql)]);
    return Object.fromEntries(statements) as Record<Name, PlainStatement>;
  });
}

/**
 * Returns the list of a SELECT of these columns, and a function that makes an object of a row of it, as drizzle's queries do with a
 * quarter of their garbage.
 */
export function recordOf<Columns extends Record<string, Column>>(columns: Columns) {
  type PlainRow = { [Name in keyof Columns]: GetColumnData<Columns[Name]> };
  const each = Object.entries(columns);
  const empty = Object.fromEntries(each.map(([name]) => [name, null]));
  return {
    list: each.map(([, { table, name }]) => `${getTableName(table)}.${name}`).join(', '),
    from(values: readonly unknown[]): PlainRow {
      const row: Record<string, unknown> = { ...empty }; // Has its final size, as members are not added one by one.
      let i = 0;
      for (const [name, column] of each) {
        const value = values[i++];
        if (value !== null) row[name] = column.mapFromDriverValue(value);
      }
      return row as PlainRow;
    },
  };
}

function statementOf(client: Client, sql: string): PlainStatement {
  const statement = preparedLate(client, sql);
  return {
    run: (...values) => statement().run(...values).changes,
    insert: (...values) => Number(statement().run(...values).lastInsertRowid),
    get: <Row extends unknown[]>(...values: SqlValue[]) =>
      statement()
        .raw()
        .get(...values) as Row | undefined,
    all: <Row extends unknown[]>(...values: SqlValue[]) =>
      statement()
        .raw()
        .all(...values) as Row[],
  };
}
