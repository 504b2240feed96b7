import { chmodSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { layFixture } from '../fixtures/dump.ts';
import { temporaryDirectory } from '../ledger/books.ts';

export const FOLDER = join(import.meta.dirname, '../fixtures');

/** The database of every release, as it left one. */
export const FIXTURES = readdirSync(FOLDER).filter((name) => name.endsWith('.sql'));

export function layDirectory(t: TestContext, fixture: string) {
  const directory = temporaryDirectory(t);
  chmodSync(directory, 0o700);
  return { directory, notes: layFixture(join(FOLDER, fixture), directory) };
}

/** Tables whose columns later releases keep in two. */
const PARTED: Readonly<Record<string, string>> = { wallet: 'wallet join balance using (number)' };

/** Every row that a release wrote, by the columns that it knew. */
export function rowsOf(client: Client.Database, columns?: Map<string, string[]>): [Map<string, string[]>, string] {
  const tables = client.prepare(`select name from sqlite_schema where type = 'table' order by name`).pluck().all();
  const known =
    columns ??
    new Map(
      (tables as string[])
        .filter((name) => name !== 'migration')
        .map((name) => [name, client.prepare('select name from pragma_table_info(?)').pluck().all(name) as string[]]),
    );
  const rows = [...known].map(([name, list]) => [
    name,
    client
      .prepare(`select ${list.join(', ')} from ${(columns && PARTED[name]) ?? name} order by ${name}.rowid`)
      .raw()
      .safeIntegers()
      .all(),
  ]);
  return [known, JSON.stringify(rows, (_, value) => (typeof value === 'bigint' ? `${value}n` : value))];
}

export function query<T>(file: string, read: (client: Client.Database) => T): T {
  const client = new Client(file, { readonly: true });
  try {
    return read(client);
  } finally {
    client.close();
  }
}
