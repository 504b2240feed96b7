import * as v from 'valibot';
import { parseJson } from '../base/parse-json.ts';
import type { Reader } from '../db/handle.ts';
import type { Database } from '../db/open.ts';
import { headOf } from '../ledger/head.ts';
import { installationOf } from '../ledger/installation.ts';

type DatabaseClient = Database['client'];

/** The description of a backup, in a table of its own. */
const Manifest = v.strictObject({
  /** The version of Purser that made it. */
  version: v.string(),
  /** Unix seconds. */
  created_at: v.number(),
  installation_id: v.string(),
  /** The fingerprint of the master key, which is not in the backup. */
  master_key_id: v.string(),
  head: v.strictObject({ seq: v.number(), hash: v.string(), epoch: v.number() }),
  /** Rows by table. */
  counts: v.record(v.string(), v.number()),
});
export type Manifest = v.InferOutput<typeof Manifest>;

const TABLE = 'purser_backup';

/** Describes these books: version, installation, key, head, and the rows of each table. `createdAt` is in Unix seconds. */
export function manifestOf(client: DatabaseClient, read: Reader, version: string, createdAt: number): Manifest {
  const { installationId, masterKeyId } = installationOf(read);
  const { seq, hash, epoch } = headOf(read);
  return {
    version,
    created_at: createdAt,
    installation_id: installationId,
    master_key_id: masterKeyId,
    head: { seq, hash, epoch },
    counts: countsOf(client),
  };
}

/** Writes the manifest into a backup, in a table of its own. A file put in place by hand still has its old one. */
export function writeManifest(client: DatabaseClient, manifest: Manifest): void {
  client.exec(`drop table if exists ${TABLE}`);
  client.exec(`create table ${TABLE} (one integer primary key check (one = 1), manifest text not null) strict`);
  client.prepare(`insert into ${TABLE} values (1, ?)`).run(JSON.stringify(manifest));
}

/** Returns the manifest of a backup. Undefined when it has none; throws when it is damaged. */
export function readManifest(client: DatabaseClient): Manifest | undefined {
  const isThere = client.prepare('select 1 from sqlite_schema where name = ?').get(TABLE);
  if (!isThere) return undefined;
  const text = client.prepare(`select manifest from ${TABLE}`).pluck().get() as string;
  try {
    return v.parse(Manifest, parseJson(text));
  } catch {
    throw new Error('its manifest is damaged');
  }
}

/** Removes the manifest from a backup and returns it. Undefined when it has none; throws when it is damaged. */
export function takeManifest(client: DatabaseClient): Manifest | undefined {
  const manifest = readManifest(client);
  if (manifest) client.exec(`drop table ${TABLE}`);
  return manifest;
}

/**
 * Throws when the database does not match its manifest. Uses plain SQL, because the database may be older than this
 * program.
 */
export function compareWithManifest(client: DatabaseClient, manifest: Manifest): void {
  const head = client.prepare('select seq, lower(hex(hash)) as hash from entry order by seq desc limit 1').get() as
    | { seq: bigint; hash: string }
    | undefined;
  const { seq, hash } = manifest.head;
  if (Number(head?.seq ?? 0) !== seq || (head && head.hash !== hash))
    throw new Error(`its newest entry is ${head?.seq ?? 0}, not the one in its manifest`);
  const counts = countsOf(client);
  for (const [table, count] of Object.entries(manifest.counts))
    if (counts[table] !== count)
      throw new Error(`it has ${counts[table] ?? 0} rows of ${table}, its manifest ${count}`);
}

/** Returns the names of tables that match a LIKE pattern. */
function tablesOf(client: DatabaseClient, like: string): string[] {
  return client
    .prepare(`select name from sqlite_schema where type = 'table' and name like ? escape '\\' order by name`)
    .pluck()
    .all(like) as string[];
}

function countsOf(client: DatabaseClient): Record<string, number> {
  const foreign = new Set([...tablesOf(client, 'sqlite\\_%'), ...tablesOf(client, LITESTREAM), TABLE]);
  const own = tablesOf(client, '%').filter((name) => !foreign.has(name));
  return Object.fromEntries(
    own.map((name) => [name, Number(client.prepare(`select count(*) from "${name}"`).pluck().get())]),
  );
}

const LITESTREAM = '\\_litestream\\_%';

/** Deletes Litestream's tables. They name the replica of a file; a copy has none. */
export function dropLitestream(client: DatabaseClient): void {
  for (const name of tablesOf(client, LITESTREAM)) client.exec(`drop table "${name}"`);
}
