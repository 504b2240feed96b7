import sea from 'node:sea';
import type { Database as Client } from 'better-sqlite3';
import { assetText } from '../files/asset.ts';
import { connect } from './addon.ts';
import { knownMigrations, migrate } from './migrate.ts';

/** The SQL of every table, index and trigger, by its type and name. */
export type KnownSchema = ReadonlyMap<string, string>;

/** Returns the schema of `client`, without the objects that SQLite makes by itself. */
export function schemaOf(client: Client): KnownSchema {
  const rows = client.prepare('select type, name, sql from sqlite_schema where sql is not null').all() as {
    type: string;
    name: string;
    sql: string;
  }[];
  return new Map(rows.map(({ type, name, sql }) => [`${type} ${name}`, sql]));
}

let known: KnownSchema | undefined;

/** Returns the schema that all migrations make. In the executable it was computed by the build, which saves each start some 30 ms. */
export function knownSchema(): KnownSchema {
  known ??= sea.isSea() ? new Map(JSON.parse(assetText('schema.json')) as [string, string][]) : migratedSchema();
  return known;
}

/** Runs migrations in memory, by default all, and returns the schema that they make. */
export function migratedSchema(migrations = knownMigrations()): KnownSchema {
  const client = connect(':memory:');
  try {
    migrate(client, migrations);
    return schemaOf(client);
  } finally {
    client.close();
  }
}
