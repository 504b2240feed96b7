import { existsSync, renameSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import type Client from 'better-sqlite3';
import { drizzle } from 'drizzle-orm/better-sqlite3';
import { removeDatabase } from '../files/database-files.ts';
import { syncDirectory } from '../files/durable-file.ts';
import { connect } from './addon.ts';
import { isSmallDisk } from './disk-reserve.ts';
import type { Reader, Tx } from './handle.ts';
import { knownSchema } from './known-schema.ts';
import { createSchema, migrate, pendingMigrations } from './migrate.ts';
import { holdSnapshots } from './snapshots.ts';

/** Litestream asks for at least five seconds; a checkpoint by another process takes far less. */
const BUSY_MILLISECONDS = 5000;
const WAL_BYTES_KEPT = 64 * 1024 * 1024;
/**
 * The size of pages in a new file, and in every copy that SQLite makes; a file with other pages keeps them. A commit writes each
 * changed page as a whole: with SQLite's own 4 KiB the log of a chat is half as long again.
 */
const PAGE_BYTES = 2048;
/**
 * The length of the log from which a commit writes its pages to the database. Pages change repeatedly, and each write-back costs
 * two more fsyncs, for which all writes wait: at SQLite's 4 MB, five times a second under load.
 */
const LOG_BYTES = 16 * 1024 * 1024;
/**
 * The same on a small disk. Its reserve for settlements is small as well, and the growth of the file by a write-back has to fit in
 * it.
 */
const LOG_BYTES_SMALL = 4 * 1024 * 1024;
/**
 * SQLite's own page cache in KiB; the operating system caches the rest of the file. More would cost more than it saves: a
 * commit that has split a page looks through all of it.
 */
const PAGE_CACHE_KIB = 4 * 1024;

export type Database = {
  client: Client.Database;
  read: Reader;
  /** Only the writer passes it on (docs/decisions/0002). */
  tx: Tx;
};

type OpenOptions = {
  migrate: boolean;
  readonly?: boolean;
  migrated?: ((names: string[], copy: string) => void) | undefined;
};

/**
 * Opens the one SQLite file with WAL, synchronous=FULL, foreign keys and safe integers. With `migrate`, a missing file is created,
 * and before an older one is migrated a verified copy is saved beside it (`<file>.before-<migration>`), whose path is passed to
 * `migrated`. Throws when the file is missing (without `migrate`, or beside a log of its own), newer than this program, damaged, or
 * not durable.
 */
export function openDatabase(file: string, options: OpenOptions): Database {
  const client = connectTo(file, options);
  const db = drizzle(client);
  return { client, read: db, tx: db as unknown as Tx };
}

function connectTo(file: string, options: OpenOptions): Client.Database {
  if (options.migrate && !existsSync(file) && sizeOf(`${file}-wal`))
    throw new Error(
      `${file} is gone, but its write-ahead log is there and may hold the newest of it. Put the database back beside its log, or restore a backup: \`purser restore\` keeps the log under another name.`,
    );
  const client = connect(file, {
    fileMustExist: !options.migrate,
    readonly: options.readonly ?? false,
    timeout: BUSY_MILLISECONDS,
  });
  try {
    client.defaultSafeIntegers(true);
    client.pragma(`page_size = ${PAGE_BYTES}`);
    if (!options.readonly) client.pragma('journal_mode = WAL');
    client.pragma('synchronous = FULL');
    client.pragma('foreign_keys = ON');
    client.pragma('trusted_schema = OFF');
    client.pragma(`journal_size_limit = ${WAL_BYTES_KEPT}`);
    client.pragma(`cache_size = ${-PAGE_CACHE_KIB}`);
    // better-sqlite3 is compiled to fall back to NORMAL in WAL mode, and reports it only after the first statement.
    client.prepare('select count(*) from sqlite_schema').get();
    assertDurable(client, options.readonly ?? false);
    limitLog(client, isSmallDisk(dirname(file)) ? LOG_BYTES_SMALL : LOG_BYTES);

    const pending = pendingMigrations(client);
    if (pending.length && !options.migrate)
      throw new Error('The database is older than this Purser. Start `purser serve` once to migrate it.');
    if (pending.length) {
      const isNew = client.prepare("select count(*) = 0 from sqlite_schema where name = 'migration'").pluck().get();
      if (isNew) createSchema(client, knownSchema().values(), pending);
      else {
        const copy = copyBefore(client, file, pending[0]?.name ?? '');
        migrate(client, pending);
        options.migrated?.(
          pending.map(({ name }) => name),
          copy,
        );
      }
    }
    return client;
  } catch (error) {
    client.close();
    throw error;
  }
}

/**
 * Opens the file for reading beside the thread that writes it. `renew` ends the snapshot of this turn of the event loop, so that
 * the next reads see the current rows. Throws as `openDatabase` does.
 */
export function openReader(file: string): Pick<Database, 'client' | 'read'> & { renew(): void } {
  const client = connectTo(file, { migrate: false, readonly: true });
  const renew = holdSnapshots(client);
  return { client, read: drizzle(client), renew };
}

const sizeOf = (file: string) => statSync(file, { throwIfNoEntry: false })?.size ?? 0;

/** Sets the length of the log from which a commit writes it back. SQLite counts in pages of the file. */
function limitLog(client: Client.Database, bytes: number): void {
  const pageBytes = Number(client.pragma('page_size', { simple: true }));
  client.pragma(`wal_autocheckpoint = ${bytes / pageBytes}`);
}

function assertDurable(client: Client.Database, readonly: boolean): void {
  const mode = client.pragma('journal_mode', { simple: true });
  if (mode !== 'wal' && !readonly)
    throw new Error(`The file system of the data directory cannot hold a write-ahead log (journal_mode is ${mode}).`);
  if (client.pragma('synchronous', { simple: true }) !== 2n)
    throw new Error('SQLite does not accept synchronous=FULL: a 200 would not mean that it is on disk.');
}

/**
 * Saves a verified copy before a migration and returns its path: the way back if the migration turns out wrong. Replaces the
 * copy of an earlier attempt, because the database may have been used since. Leaves nothing where that fails: on a full disk the
 * rest would take the space of the version that is started again.
 */
function copyBefore(client: Client.Database, file: string, migration: string): string {
  const copy = `${file}.before-${migration.replace(/\.sql$/, '')}`;
  const part = `${copy}.part`;
  removeDatabase(part);
  try {
    client.prepare('vacuum into ?').run(part);
    const check = connect(part, { readonly: true });
    try {
      if (check.pragma('integrity_check', { simple: true }) !== 'ok') throw new Error(`The copy ${part} is damaged.`);
    } finally {
      check.close();
    }
  } catch (error) {
    removeDatabase(part);
    throw error;
  }
  renameSync(part, copy);
  syncDirectory(dirname(copy));
  return copy;
}
