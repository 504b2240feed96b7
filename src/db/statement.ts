import assert from 'node:assert/strict';
import type { Database as Client } from 'better-sqlite3';
import { Column, is, Param, Placeholder, SQL } from 'drizzle-orm';

type Values = Record<string, unknown>;
type Codec = { mapToDriverValue(value: unknown): unknown; mapFromDriverValue(value: unknown): unknown };

/**
 * The private fields of a query that drizzle-orm 0.45 has prepared. They are not in its types: test/db/statement.test.ts
 * checks them.
 */
type Prepared = {
  query: { sql: string; params: unknown[] };
  fields?: { path: string[]; field: unknown }[];
};

/** Returns a query as a statement of an open database, with drizzle's `get`, `all` and `run`. */
export type CompiledQuery = (client: Pick<Client, 'prepare'>) => object;

/**
 * Computes once what drizzle computes on each call of a prepared query: which parameter is a placeholder, which field is a column,
 * how each is encoded. The results are the same. SQLite prepares a statement only when it is first used: most threads and commands
 * use few of the statements they load.
 */
export function compileQuery(prepared: object): CompiledQuery {
  const { query, fields } = prepared as Prepared;
  if (fields?.some(({ path }) => path.length > 1)) return joinOf(prepared, query.sql);
  const { sql, params } = withLiteralLimit(query.sql, query.params);
  const bind = onceOf(() => binder(params));
  if (!fields)
    return (client) => {
      const statement = onceOf(() => client.prepare(sql));
      return { run: (values?: Values) => statement().run(bind()(values)) };
    };
  const toRow = onceOf(() => mapper(fields));
  return (client) => {
    const statement = onceOf(() => client.prepare(sql).raw());
    return {
      get(values?: Values) {
        const row = statement().get(bind()(values)) as unknown[] | undefined;
        return row && toRow()(row);
      },
      all: (values?: Values) => (statement().all(bind()(values)) as unknown[][]).map(toRow()),
    };
  };
}

/** Returns the statement of a join of whole tables, whose rows drizzle assembles. */
const joinOf =
  (prepared: object, sql: string): CompiledQuery =>
  (client) =>
    Object.create(prepared, { stmt: { get: onceOf(() => client.prepare(sql)) } });

/** Returns a function that calls `make` the first time and remembers its result. */
function onceOf<T extends object>(make: () => T): () => T {
  let made: T | undefined;
  return () => {
    made ??= make();
    return made;
  };
}

/**
 * Puts a bound LIMIT into the text as a literal. SQLite recompiles a statement whenever its LIMIT is bound, because the plan
 * depends on it; that costs ten times as much as reading one row.
 */
function withLiteralLimit(sql: string, params: readonly unknown[]): { sql: string; params: readonly unknown[] } {
  const limit = params.at(-1);
  if (typeof limit !== 'number' || !sql.endsWith(' limit ?')) return { sql, params };
  return { sql: `${sql.slice(0, -1)}${limit}`, params: params.slice(0, -1) };
}

/**
 * Returns a function that fills in a statement's parameters: constants, and values by placeholder name. It throws when a
 * value is missing.
 */
function binder(params: readonly unknown[]): (values: Values | undefined) => unknown[] {
  const slots = params.map((it) => {
    if (is(it, Placeholder)) return { name: it.name as string };
    if (is(it, Param) && is(it.value, Placeholder))
      return { name: it.value.name as string, encoder: it.encoder as Codec };
    return { constant: it };
  });
  const bound = slots.map(({ name, encoder }, i) => {
    if (name === undefined) return `slots[${i}].constant`;
    const value = `(values[${JSON.stringify(name)}] ?? absent(values, ${JSON.stringify(name)}))`;
    return encoder ? `slots[${i}].encoder.mapToDriverValue(${value})` : value;
  });
  return written(`(values = {}) => [${bound.join(', ')}]`, { slots, absent });
}

/** Returns a value that is null or undefined. Throws when it is not among the values. */
function absent(values: Values, name: string): unknown {
  const value = values[name];
  assert(value !== undefined || name in values, `no value for the placeholder ${name}`);
  return value;
}

function mapper(fields: NonNullable<Prepared['fields']>): (row: unknown[]) => Values {
  const codecs = fields.map(
    ({ field }) =>
      (is(field, Column) ? field : is(field, SQL) ? decoderOf(field) : decoderOf((field as { sql: SQL }).sql)) as Codec,
  );
  const members = fields.map(({ path: [name] }, i) => {
    // Most columns are texts and blobs, which need no decoding.
    const isAsIs = codecs[i]?.mapFromDriverValue === Column.prototype.mapFromDriverValue;
    const value = isAsIs ? `row[${i}]` : `row[${i}] === null ? null : codecs[${i}].mapFromDriverValue(row[${i}])`;
    return `${JSON.stringify(name)}: ${value}`;
  });
  return written(`(row) => ({ ${members.join(', ')} })`, { codecs });
}

/**
 * Returns the function whose text is `source`, with `scope` in scope. Only column and placeholder names vary in a source. One loop
 * for all queries would look each member up by its name: V8 optimises a function for the shapes that it sees.
 */
function written<F>(source: string, scope: Record<string, unknown>): F {
  return new Function(...Object.keys(scope), `return ${source};`)(...Object.values(scope)) as F;
}

const decoderOf = (it: SQL) => (it as unknown as { decoder: Codec }).decoder;
