import { createHash } from 'node:crypto';
import sea from 'node:sea';
import type { Database as Client } from 'better-sqlite3';
import { assetText, sourceNames } from '../files/asset.ts';
import { addEveryChecksum } from './checksum.ts';
import { keyDigest } from './key-digest.ts';
import { brokenReferences } from './references.ts';

export type Migration = { name: string; sql: string };
/** Steps that SQL cannot express: run after the migration of that name, in the same transaction. */
const THEN: [name: RegExp, then: (client: Client) => void][] = [[/_seals\.sql$/, addEveryChecksum]];
const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

/**
 * Returns every migration that this program knows, in order: from an asset in the executable, from the folder
 * `migrations/` otherwise.
 */
export function knownMigrations(): Migration[] {
  if (sea.isSea()) return JSON.parse(assetText('migrations.json')) as Migration[];
  const names = sourceNames('migrations').filter((name) => name.endsWith('.sql'));
  return names.sort().map((name) => ({ name, sql: assetText(`migrations/${name}`) }));
}

/**
 * Returns the migrations that `client` still lacks. Throws, before changing anything, when the database was written by
 * a newer Purser or when a migration was changed after it ran.
 */
export function pendingMigrations(client: Client, all: readonly Migration[] = knownMigrations()): Migration[] {
  const exists = client.prepare("select 1 from sqlite_schema where type = 'table' and name = 'migration'").get();
  if (!exists) return [...all];
  const done = client.prepare('select name, sha256 from migration order by name').all() as {
    name: string;
    sha256: string;
  }[];
  done.forEach((ran, i) => {
    const known = all[i];
    if (known?.name !== ran.name)
      throw new Error(
        `The database was written by a newer Purser: it has ${ran.name}, which this one does not know. Use the newer version, or an earlier backup.`,
      );
    if (sha256(known.sql) !== ran.sha256)
      throw new Error(
        `The database was migrated with another ${ran.name} than this Purser has. Use the version that wrote it.`,
      );
  });
  return all.slice(done.length);
}

const note = (client: Client, { name, sql }: Migration) =>
  client.prepare('insert into migration values (?, ?, unixepoch())').run(name, sha256(sql));

/** Creates in a new file, in one transaction, the schema that `all` migrations make, at a sixth of the time of running them. */
export function createSchema(client: Client, schema: Iterable<string>, all: readonly Migration[]): void {
  client
    .transaction(() => {
      client.exec([...schema].join(';\n'));
      for (const migration of all) note(client, migration);
    })
    .exclusive();
}

/**
 * Drops the views, with their triggers, and returns a function that makes them again. None is ours: SQLite renames no table while a
 * view refers to one that is missing, as a table is while it is made anew.
 */
function setViewsAside(client: Client): () => void {
  const views = client
    .prepare(
      `select view.name, it.sql from sqlite_schema as view join sqlite_schema as it on it.tbl_name = view.name
        where view.type = 'view' order by it.type = 'trigger'`,
    )
    .all() as { name: string; sql: string }[];
  for (const { name } of views) client.exec(`drop view if exists "${name.replaceAll('"', '""')}"`);
  return () => {
    for (const { sql } of views) client.exec(sql);
  };
}

/**
 * Runs `pending` in order, each in its own transaction, so that an interruption leaves the state before or after one,
 * never between.
 */
export function migrate(client: Client, pending: readonly Migration[]): void {
  client.exec(
    'create table if not exists migration (name text primary key, sha256 text not null, at integer not null) strict',
  );
  client.function('key_digest', keyDigest);
  client.pragma('foreign_keys = OFF'); // Must be outside the transaction; inside, SQLite ignores it.
  try {
    for (const migration of pending) {
      const { name, sql } = migration;
      client
        .transaction(() => {
          const putBack = setViewsAside(client);
          client.exec(sql);
          putBack();
          for (const [ran, then] of THEN) if (ran.test(name)) then(client);
          if (brokenReferences(client).length) throw new Error(`${name}: a broken reference`);
          note(client, migration);
        })
        .exclusive();
    }
  } finally {
    client.pragma('foreign_keys = ON');
  }
}
