import type { Database as Client } from 'better-sqlite3';
import { getTableColumns, getTableName, is } from 'drizzle-orm';
import { SQLiteTable } from 'drizzle-orm/sqlite-core';
import { knownSchema, schemaOf } from './known-schema.ts';
import * as schema from './schema.ts';

/** Limit of the faults that SQLite reports for one file. */
const FAULT_COUNT_MAX = 100;

/**
 * Reports what SQLite's integrity check finds (pages, indexes against their tables, CHECKs), and what `findChangedSchema`
 * does.
 */
export function findDamage(client: Client, fault: (text: string) => void): void {
  for (const found of client.prepare(`pragma integrity_check(${FAULT_COUNT_MAX})`).pluck().iterate())
    if (found !== 'ok') fault(`the file is damaged: ${found}`);
  findChangedSchema(client, fault);
}

/**
 * Reports any of our tables, indexes or triggers that is missing or changed, in less than a millisecond. Foreign objects, such
 * as Litestream's tables, are no fault, except a trigger on one of our tables: it would write what no command of ours wrote.
 */
export function findChangedSchema(client: Client, fault: (text: string) => void): void {
  const there = schemaOf(client);
  const known = knownSchema();
  const triggers = client.prepare('select name, tbl_name as "table" from sqlite_schema where type = \'trigger\'').all();
  for (const { name, table } of triggers as { name: string; table: string }[])
    if (!known.has(`trigger ${name}`) && known.has(`table ${table}`))
      fault(`the trigger ${name} on ${table} is not ours`);
  for (const [name, sql] of known)
    if (there.get(name) !== sql) fault(`the ${name} ${there.has(name) ? 'was changed' : 'is missing'}`);
}

/**
 * Returns which of our tables or columns is not there, if any. Whatever needs it would fail in the middle of its work, so no
 * accepted loss makes up for it.
 */
export function missingPart(client: Client): string | undefined {
  const columns = client.prepare('select name from pragma_table_info(?)').pluck();
  for (const table of Object.values(schema)) {
    if (!is(table, SQLiteTable)) continue;
    const there = new Set(columns.all(getTableName(table)));
    if (!there.size) return `the table ${getTableName(table)} is missing`;
    const missing = Object.values(getTableColumns(table)).find(({ name }) => !there.has(name));
    if (missing) return `the table ${getTableName(table)} has no column ${missing.name}`;
  }
  return undefined;
}
