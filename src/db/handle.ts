import type { Database as Client } from 'better-sqlite3';
import { type BetterSQLite3Database, drizzle } from 'drizzle-orm/better-sqlite3';
import { type CompiledQuery, compileQuery } from './statement.ts';

type Drizzle = BetterSQLite3Database;
declare const writing: unique symbol;

/** A handle that may read committed rows. */
export type Reader = Pick<Drizzle, 'select'>;

/** A handle for use inside a write. Only the writer creates one, so having it is the proof. Every Tx is a Reader. */
export type Tx = Reader & Pick<Drizzle, 'insert' | 'update' | 'delete'> & { readonly [writing]: true };

/** A drizzle database without a file: its prepared queries are compiled, and then instantiated for each open database. */
const withoutFile = drizzle({ prepare: () => undefined } as unknown as Client);

/** The methods of drizzle's prepared queries that statements have here. */
type Statements<S> = { [Name in keyof S]: Pick<S[Name], Extract<keyof S[Name], 'get' | 'all' | 'run'>> };

/**
 * Declares the statements of one source file; the function returned gives them for a handle. drizzle builds each query once
 * per thread; building it on every call would cost twenty times the raw statement.
 */
export function prepare<H extends Reader, S extends Record<string, object>>(
  build: (handle: H) => S,
): (handle: H) => Statements<S> {
  const made = new WeakMap<object, Statements<S>>();
  let compiled: [name: string, CompiledQuery][] | undefined;
  return (handle) => {
    let statements = made.get(handle);
    if (!statements) {
      compiled ??= Object.entries(build(withoutFile as unknown as H)).map(([name, it]) => [name, compileQuery(it)]);
      const { $client } = handle as unknown as { $client: Client };
      statements = Object.fromEntries(compiled.map(([name, it]) => [name, it($client)])) as Statements<S>;
      made.set(handle, statements);
    }
    return statements;
  };
}
