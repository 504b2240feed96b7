import type { BetterSQLite3Database } from 'drizzle-orm/better-sqlite3';
import type * as schema from './schema.ts';
import { quicken } from './statement.ts';

type Drizzle = BetterSQLite3Database<typeof schema>;
declare const writing: unique symbol;

/** Whoever holds a Reader may read committed rows. */
export type Reader = Pick<Drizzle, 'select'>;

/** Whoever holds a Tx is inside a write: only the writer can make one, so holding it is the proof. Every Tx is a Reader. */
export type Tx = Reader & Pick<Drizzle, 'insert' | 'update' | 'delete'> & { readonly [writing]: true };

/**
 * Statements prepared once for each open database. A drizzle query built on every call costs twenty times the raw
 * statement; so each file keeps its statements at its top and asks for them by handle.
 */
export function prepare<H extends Reader, S extends Record<string, object>>(build: (handle: H) => S): (handle: H) => S {
  const made = new WeakMap<object, S>();
  return (handle) => {
    let statements = made.get(handle);
    if (!statements) {
      statements = build(handle);
      for (const statement of Object.values(statements)) quicken(statement);
      made.set(handle, statements);
    }
    return statements;
  };
}
