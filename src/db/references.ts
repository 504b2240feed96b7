import type { Database as Client } from 'better-sqlite3';
import { getTableName, is } from 'drizzle-orm';
import { SQLiteTable } from 'drizzle-orm/sqlite-core';
import * as schema from './schema.ts';

const TABLES = JSON.stringify(Object.values(schema).flatMap((it) => (is(it, SQLiteTable) ? [getTableName(it)] : [])));

/** A row that refers to one which is missing: `fkid` numbers the reference of its table. */
type BrokenReference = { table: string; rowid: bigint; parent: string; fkid: bigint };

/** Returns the rows of our tables that refer to a missing row. What tables of others refer to is their own affair. */
export const brokenReferences = (client: Client): BrokenReference[] =>
  client
    .prepare(
      `select broken."table", broken.rowid, broken.parent, broken.fkid
        from sqlite_schema as it cross join pragma_foreign_key_check(it.name) as broken
        where it.type = 'table' and it.name in (select value from json_each(?))`,
    )
    .all(TABLES) as BrokenReference[];
