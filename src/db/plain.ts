import type { Database as Client, Statement } from 'better-sqlite3';
import type { Reader } from './handle.ts';

type Bound = string | number | bigint | Buffer | null;

/** A statement whose values are bound by position, and whose rows are lists of their columns. */
export type PlainStatement = {
  /** Returns the number of rows that were changed, not counting those of triggers. */
  run(...values: Bound[]): number;
  get<Row extends unknown[]>(...values: Bound[]): Row | undefined;
  all<Row extends unknown[]>(...values: Bound[]): Row[];
};

/**
 * Declares statements in plain SQL, for the hot path and for long lists: their callers bind values and read columns themselves,
 * which takes half the time of drizzle's queries. SQLite prepares a statement when it is first used.
 */
export function plain<Name extends string>(
  texts: Readonly<Record<Name, string>>,
): (handle: Reader) => Readonly<Record<Name, PlainStatement>> {
  const made = new WeakMap<object, Record<Name, PlainStatement>>();
  return (handle) => {
    let statements = made.get(handle);
    if (!statements) {
      const { $client } = handle as unknown as { $client: Client };
      const all = Object.entries<string>(texts).map(([name, sql]) => [name, statementOf($client, sql)]);
      statements = Object.fromEntries(all) as Record<Name, PlainStatement>;
      made.set(handle, statements);
    }
    return statements;
  };
}

function statementOf(client: Client, sql: string): PlainStatement {
  let made: Statement<Bound[]> | undefined;
  const prepared = () => {
    if (made) return made;
    made = client.prepare<Bound[]>(sql);
    if (made.reader) made.raw();
    return made;
  };
  return {
    run: (...values) => prepared().run(...values).changes,
    get: <Row extends unknown[]>(...values: Bound[]) => prepared().get(...values) as Row | undefined,
    all: <Row extends unknown[]>(...values: Bound[]) => prepared().all(...values) as Row[],
  };
}
