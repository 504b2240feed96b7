import type { BetterSQLite3Database } from 'drizzle-orm/better-sqlite3';
import type * as schema from './schema.ts';
import { precompile } from './statement.ts';

type Drizzle = BetterSQLite3Database<typeof schema>;
declare const writing: unique symbol;

/** A handle that may read committed rows. */
export type Reader = Pick<Drizzle, 'select'>;

/** A handle for use inside a write. Only the writer creates one, so having it is the proof. Every Tx is a Reader. */
export type Tx = Reader & Pick<Drizzle, 'insert' | 'update' | 'delete'> & { readonly [writing]: true };

/**
 * Prepares statements once per open database. Building a drizzle query on every call costs twenty times the raw
 * statement, so each file declares its statements at the top and gets them by handle.
 */
export function prepare<H extends Reader, S extends Record<string, object>>(build: (handle: H) => S): (handle: H) => S {
  const made = new WeakMap<object, S>();
  return (handle) => {
    let statements = made.get(handle);
    if (!statements) {
      statements = build(handle);
      for (const statement of Object.values(statements)) precompile(statement);
      made.set(handle, statements);
    }
    return statements;
  };
}
