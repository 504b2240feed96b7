import type { Database as Client } from 'better-sqlite3';
import { getTableColumns, getTableName, is } from 'drizzle-orm';
import { SQLiteTable } from 'drizzle-orm/sqlite-core';
import { type KnownSchema, knownSchema, migratedSchema, schemaOf } from './known-schema.ts';
import { knownMigrations, type Migration } from './migrate.ts';
import { brokenReferences } from './references.ts';
import * as schema from './schema.ts';

/** Limit of the faults that SQLite reports for one file. */
const FAULT_COUNT_MAX = 100;

/**
 * Reports the findings of SQLite's integrity check (pages, indexes against their tables, CHECKs), missing rows that others refer
 * to, and the findings of `findChangedSchema`.
 */
export function findDamage(client: Client, fault: (text: string) => void): void {
  for (const line of client.prepare(`pragma integrity_check(${FAULT_COUNT_MAX})`).pluck().iterate())
    if (line !== 'ok') fault(`the file is damaged: ${line}`);
  findMissingParents(client, fault);
  findChangedSchema(client, fault);
}

/** Reports each missing row that others refer to, once. */
function findMissingParents(client: Client, fault: (text: string) => void): void {
  const column = client.prepare('select "from" from pragma_foreign_key_list(?) where id = ?').pluck();
  const missing = new Map<string, { by: string; rows: number }>();
  for (const { table, rowid, parent, fkid } of brokenReferences(client)) {
    const id = client
      .prepare(`select "${column.get(table, fkid)}" from "${table}" where rowid = ?`)
      .pluck()
      .get(rowid);
    const name = `${parent} ${id}`;
    const seen = missing.get(name);
    if (seen) seen.rows++;
    else missing.set(name, { by: table, rows: 1 });
  }
  for (const [name, { by, rows }] of missing)
    fault(`${name} is missing: ${rows} ${rows === 1 ? 'row refers' : 'rows refer'} to it, the first of ${by}`);
}

type SchemaObject = { type: string; name: string; table: string; isVirtual: bigint };

/** Returns the objects of a schema that are not in `known`, without those that SQLite makes by itself. */
function foreignObjects(client: Client, known: KnownSchema): SchemaObject[] {
  const rows = client
    .prepare(
      `select type, name, tbl_name as "table", sql like 'create virtual table%' as isVirtual
        from sqlite_schema where sql is not null`,
    )
    .all() as SchemaObject[];
  return rows.filter(({ type, name }) => !known.has(`${type} ${name}`) && !(type === 'table' && OF_SQLITE.test(name)));
}

/** Tables of SQLite itself, such as those of ANALYZE. */
const OF_SQLITE = /^sqlite_(sequence|stat\d)$/;

/**
 * Reports any of our tables, indexes or triggers that is missing or changed, in less than a millisecond. Foreign tables and views,
 * such as Litestream's, are no fault; an index or a trigger on our tables is: it acts on our writes.
 */
export function findChangedSchema(client: Client, fault: (text: string) => void): void {
  const there = schemaOf(client);
  const known = knownSchema();
  for (const { type, name, table } of foreignObjects(client, known))
    if (known.has(`table ${table}`)) fault(`the ${type} ${name} on ${table} is not ours`);
  for (const [name, sql] of known)
    if (there.get(name) !== sql) fault(`the ${name} ${there.has(name) ? 'was changed' : 'is missing'}`);
}

/** Returns the first object that migrations before `pending` did not make, such as `view x`; undefined when there is none. */
export function findForeignObject(client: Client, pending: readonly Migration[]): string | undefined {
  const all = knownMigrations();
  const known = pending.length ? migratedSchema(all.slice(0, all.length - pending.length)) : knownSchema();
  const [first] = foreignObjects(client, known);
  return first && `the ${first.type} ${first.name}`;
}

/**
 * Deletes the tables and views that are not ours, with their indexes and triggers. Virtual tables come first, and take the tables
 * with them that hold their rows. The tables may refer to each other, so the connection must not check references.
 */
export function dropForeignTables(client: Client): void {
  const foreign = foreignObjects(client, knownSchema()).filter(({ type }) => type === 'table' || type === 'view');
  for (const { type, name } of foreign.sort((a, b) => Number(b.isVirtual) - Number(a.isVirtual)))
    client.exec(`drop ${type} if exists "${name.replaceAll('"', '""')}"`);
}

/**
 * Returns a table or column of ours that is missing, if any. Code that needs it would fail in the middle of its work, so no
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
