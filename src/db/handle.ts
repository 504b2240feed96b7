import type { Database as Client, Statement } from 'better-sqlite3';
import { type BetterSQLite3Database, drizzle } from 'drizzle-orm/better-sqlite3';

type Drizzle = BetterSQLite3Database;
declare const writing: unique symbol;

/** A handle that may read committed rows. */
export type Reader = Pick<Drizzle, 'select'>;

/** A handle for use inside a write. Only the writer creates one, so having it is the proof. Every Tx is a Reader. */
export type Tx = Reader & Pick<Drizzle, 'insert' | 'update' | 'delete'> & { readonly [writing]: true };

/** The methods of drizzle's prepared queries that statements have here. */
type Statements<S> = { [Name in keyof S]: Pick<S[Name], Extract<keyof S[Name], 'get' | 'all' | 'run'>> };

/**
 * Declares the statements of one source file; the function returned gives them for a handle. drizzle builds each query once for a
 * process: on every call that would cost twenty times the raw statement. Queries of every chat, and those of thousands of rows, are
 * in plain SQL instead (`plain.ts`).
 */
export function prepare<H extends Reader, S extends Record<string, object>>(
  build: (handle: H) => S,
): (handle: H) => Statements<S> {
  const shared = sharedClient();
  let queries: [string, Query][] | undefined;
  return onceFor((client) => {
    queries ??= Object.entries(build(drizzle(shared.client) as unknown as H)) as [string, Query][];
    const on = (method: keyof Query, query: Query) => (values?: object) => {
      shared.use(client);
      return query[method](values);
    };
    const bound = queries.map(([name, it]) => [name, { get: on('get', it), all: on('all', it), run: on('run', it) }]);
    return Object.fromEntries(bound) as Statements<S>;
  });
}

type Query = Record<'get' | 'all' | 'run', (values?: object) => unknown>;

/**
 * Returns what drizzle needs of a database to prepare queries for every database of the process. A query runs on the one that was
 * named last; as nothing waits between the two, it is the caller's. SQLite prepares a statement when it is first used there: most
 * threads and commands use few of the statements that they load.
 */
function sharedClient(): { client: Client; use: (client: Client) => void } {
  let used: Client;
  const prepare = (sql: string): Pick<Statement, 'run' | 'get' | 'all' | 'raw'> => {
    const prepared = new WeakMap<Client, Statement>();
    const statement = (): Statement => {
      let made = prepared.get(used);
      if (!made) {
        made = used.prepare(sql);
        prepared.set(used, made);
      }
      return made;
    };
    return {
      run: (...values) => statement().run(...values),
      get: (...values) => statement().get(...values),
      all: (...values) => statement().all(...values),
      raw: () => statement().raw(),
    };
  };
  return {
    client: { prepare } as Client,
    use: (client) => {
      used = client;
    },
  };
}

/** Returns a function that makes something of the database of a handle, once. */
export function onceFor<Made>(make: (client: Client) => Made): (handle: Reader) => Made {
  const made = new WeakMap<object, { it: Made }>();
  return (handle) => {
    let found = made.get(handle);
    if (!found) {
      found = { it: make((handle as unknown as { $client: Client }).$client) };
      made.set(handle, found);
    }
    return found.it;
  };
}

/** Returns a function that returns a statement, which SQLite prepares at the first call. */
export function preparedLate(client: Client, sql: string): () => Statement {
  let statement: Statement | undefined;
  return () => {
    statement ??= client.prepare(sql);
    return statement;
  };
}
