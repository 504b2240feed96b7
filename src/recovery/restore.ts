import { chmodSync, copyFileSync, existsSync, linkSync, realpathSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { NoMasterKeyError } from '../access/master-key.ts';
import { systemTime } from '../base/clock.ts';
import { Refusal } from '../base/refusal.ts';
import { damageOf, newestOf, readMarks } from '../books/examine.ts';
import { enterDirectory, keyringOf, openBooks, type WritableBooks } from '../books/open.ts';
import type { Config, MasterKeySource } from '../config/config.ts';
import { connect } from '../db/addon.ts';
import { findForeignObject } from '../db/damage.ts';
import { migrate, pendingMigrations } from '../db/migrate.ts';
import type { Files } from '../files/data-directory.ts';
import { endingsBeside, removeDatabase } from '../files/database-files.ts';
import { syncDirectory } from '../files/durable-file.ts';
import { fullDisk } from '../files/full-disk.ts';
import { newestTime } from '../ledger/accepted-clock.ts';
import { type CommitMark, headOf, writeHeadFile } from '../ledger/head.ts';
import { currentEpoch, installationOf } from '../ledger/installation.ts';
import { compareWithManifest, dropLitestream, type Manifest, takeManifest } from './manifest.ts';
import { type KeptRestrictions, type Restrictions, readRestrictions } from './restrictions.ts';
import { beginRestored } from './writes.ts';

/** Milliseconds to wait for other processes that have the database open, for example a command that reads. */
const OTHERS_MILLISECONDS = 5000;

export type Restored = {
  file: string;
  manifest: Manifest | null;
  installation_id: string;
  head: { seq: number; hash: string; epoch: number };
  /** The new name of the database that was replaced, if any. */
  kept: string | null;
  /** The newest entry that was known here and is missing in the restored books. */
  lost_to_seq: number | null;
  /** Restrictions carried over from the replaced books; null where those could not be read, or belonged to another installation. */
  carried_over: KeptRestrictions | null;
};

/**
 * Replaces the database with a backup (docs/decisions/0010). All work is done on a copy beside it; the replacement is one rename.
 * The restored books begin a new epoch and are report-only until `resource reconcile --apply`. `withoutKey` restores books whose
 * master key is lost, which must get another before they are served. Throws `not_found` when there is no such file; `conflict` for
 * another master key, a newer or damaged file, a database in use, and, without `force`, a file without a manifest or books of
 * another installation; LockedError while a server runs.
 */
export async function restore(
  config: Config,
  options: { file: string; force: boolean; withoutKey?: boolean },
): Promise<Restored> {
  const { file, force } = options;
  if (!existsSync(file)) throw new Refusal('not_found', `There is no file ${file}.`);
  if (!statSync(file).isFile()) throw refused(file, 'it is not a file');
  if (existsSync(`${file}-wal`) && statSync(`${file}-wal`).size)
    throw refused(
      file,
      'there is a write-ahead log beside it: it is a database in use, or a copy of one. Use `purser backup`',
    );
  using at = await enterDirectory(config.dataDirectory, {
    create: true,
    lock: { file: 'lock', who: 'purser restore' },
  });
  // A link leads to the disk where the operator wants the books.
  const database = existsSync(at.database) ? realpathSync(at.database) : at.database;
  const fresh = `${database}.restored`;
  if (existsSync(fresh) && realpathSync(file) === realpathSync(fresh))
    throw refused(
      file,
      `a restore makes its own copy under that name, and would remove it. Give it another name first`,
    );
  removeDatabase(fresh); // Remains of a restore that was killed.
  using leaving = new DisposableStack();
  leaving.defer(() => removeDatabase(fresh));
  copyBeside(file, fresh);
  chmodSync(fresh, 0o600);
  const manifest = bringUpToDate(file, fresh, force);
  const before = await remember(at);
  const head = await begin(fresh, before, config.masterKey, manifest, options);
  if (endingsBeside(fresh).length)
    throw new Error(
      `Nothing was restored: the write-ahead log of ${fresh} could not be written back. Look for a full or failing disk.`,
    );
  const kept = setAside(database);
  renameSync(fresh, database);
  syncDirectory(dirname(database));
  await writeHeadFile(at.head, head);

  const { quietCommits: _, installationId, restrictions, ...rest } = head;
  return {
    file,
    manifest: manifest ?? null,
    installation_id: installationId,
    head: rest,
    kept,
    lost_to_seq: before.seq > head.seq ? before.seq : null,
    carried_over: restrictions,
  };
}

function copyBeside(file: string, fresh: string): void {
  try {
    copyFileSync(file, fresh);
  } catch (error) {
    if (!fullDisk(error, dirname(fresh))) throw error;
    throw new Refusal(
      'read_only',
      `Nothing was restored: ${dirname(fresh)} has no room for a copy of ${file} (${statSync(file).size} bytes). The database is as it was.`,
      { cause: error },
    );
  }
}

const refused = (file: string, why: string) => new Refusal('conflict', `${file} is not restored: ${why}.`);

/** Checks the copy against its manifest and migrates it. Returns the manifest, which is removed from the copy. */
function bringUpToDate(file: string, fresh: string, force: boolean): Manifest | undefined {
  const client = connect(fresh);
  try {
    client.pragma('synchronous = FULL');
    const fault = client.prepare('pragma integrity_check(1)').pluck().get();
    if (fault !== 'ok') throw new Error(`it is damaged: ${fault}`);
    if (!client.prepare("select 1 from sqlite_schema where name = 'migration'").get())
      throw new Error('it is not a Purser database');
    const pending = pendingMigrations(client);
    const manifest = takeManifest(client);
    if (!manifest && !force)
      throw new Error(
        'it has no manifest, so `purser backup` did not make it. Use --force if it is a complete database, for example one that Litestream restored',
      );
    if (manifest) compareWithManifest(client, manifest);
    dropLitestream(client);
    const foreign = findForeignObject(client, pending);
    if (foreign) throw new Error(`${foreign} is not ours. Drop it in a copy of the file, if you know what made it`);
    migrate(client, pending);
    return manifest;
  } catch (error) {
    throw fullDisk(error, dirname(fresh)) ?? refused(file, (error as Error).message.replace(/\.$/, ''));
  } finally {
    client.close();
  }
}

const KNOWN = `select installation_id as id, (select max(number) from epoch) as epoch,
  (select coalesce(max(seq), 0) from entry) as seq from installation`;

type EarlierBooks = {
  installationId: string | undefined;
  epoch: number;
  seq: number;
  restrictions: Restrictions | undefined;
};

/** Returns the facts about the books to be replaced: from the files beside them, and from the database if it can be read. */
async function remember(at: Files): Promise<EarlierBooks> {
  const { epoch, seq } = newestOf(await readMarks(at));
  let known: { id: string; epoch: number; seq: number } | undefined;
  let restrictions: Restrictions | undefined;
  if (existsSync(at.database)) {
    try {
      const client = connect(at.database, { readonly: true });
      try {
        known = client.prepare(KNOWN).get() as typeof known;
        restrictions = readRestrictions(client);
      } finally {
        client.close();
      }
    } catch {} // It is being replaced because it cannot be read: the files beside it have to suffice.
  }
  return {
    installationId: known?.id,
    epoch: Math.max(known?.epoch ?? 0, epoch),
    seq: Math.max(known?.seq ?? 0, seq),
    restrictions,
  };
}

/** Verifies the copy as a start would, and begins its new epoch. */
async function begin(
  fresh: string,
  before: EarlierBooks,
  masterKey: MasterKeySource,
  manifest: Manifest | undefined,
  { file, force, withoutKey }: { file: string; force: boolean; withoutKey?: boolean },
): Promise<CommitMark & { installationId: string; restrictions: KeptRestrictions | null }> {
  const failed = Promise.withResolvers<never>();
  await using books = readable(file, () =>
    openBooks(fresh, { access: 'write', migrate: false, writesHere: true, fatal: failed.reject }),
  );
  const fault = readable(file, () => damageOf(books));
  if (fault) throw refused(file, fault);
  if (!withoutKey) refuseOtherKey(books, masterKey, file);
  const { installationId } = installationOf(books.read);
  if (!force && before.installationId !== undefined && before.installationId !== installationId)
    throw refused(
      file,
      `it belongs to the installation ${installationId}, and the books here to ${before.installationId}. With --force it replaces them anyway`,
    );
  const now = Math.max(newestTime(books.read), Math.floor(systemTime.wall() / 1000));
  const made = manifest ? `a backup of ${new Date(manifest.created_at * 1000).toISOString()}` : basename(file);
  const reason = `the books were restored from ${made}`;
  const { acceptedFaults } = currentEpoch(books.read);
  const earlier = before.installationId === installationId ? before.restrictions : undefined;
  const begun = books.write(beginRestored, { reason, acceptedFaults, above: before.epoch, restrictions: earlier, now });
  const restrictions = await Promise.race([begun, failed.promise]);
  return { ...headOf(books.read), installationId, restrictions };
}

/** Runs `read`. Throws `conflict` when SQLite cannot read the copy, for example after a bit flip in its schema. */
function readable<T>(file: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw refused(file, `it is damaged: ${(error as Error).message}`);
  }
}

const WHERE_KEY =
  'The key before a rotation is kept as master.key.before-<time> beside the new one; if nobody has it any more, restore with --without-key';

/** Throws `conflict` when the configured master key does not fit these books: every wallet would lose its token. */
function refuseOtherKey({ read }: WritableBooks, masterKey: MasterKeySource, file: string): void {
  try {
    keyringOf(read, masterKey);
  } catch (error) {
    const { masterKeyId } = installationOf(read);
    const fault = error instanceof NoMasterKeyError ? error.fault : (error as Error).message.replace(/\.$/, '');
    throw refused(file, `it needs the master key ${masterKeyId}. ${fault}. ${WHERE_KEY}`);
  }
}

/**
 * Links the old database under another name, so that the rename which replaces it is the only step that counts. Its write-ahead log
 * is checkpointed first: otherwise it would be taken for the new database's. If it cannot be checkpointed, the log is renamed as
 * well; so is that of a missing database, because it may hold all that is left. Returns the path of the kept database, or null when
 * there was none.
 */
function setAside(database: string): string | null {
  const isThere = existsSync(database);
  const isFolded = isThere && foldLog(database);
  const beside = endingsBeside(database);
  if (!isThere && !beside.length) return null;
  const stamp = new Date().toISOString().replace(/[-:]|\.\d+/g, '');
  let kept = `${database}.before-restore-${stamp}`;
  for (let i = 2; existsSync(kept) || endingsBeside(kept).length; i++)
    kept = `${database}.before-restore-${stamp}-${i}`;
  if (isThere) {
    try {
      linkSync(database, kept);
    } catch {
      copyFileSync(database, kept);
    }
  }
  for (const ending of beside) {
    if (isFolded) rmSync(database + ending);
    else renameSync(database + ending, kept + ending);
  }
  syncDirectory(dirname(database)); // Without this, a power cut might keep the coming rename and the old log beside the new database.
  return isThere ? kept : `${kept}${beside[0]}`;
}

/**
 * Checkpoints the write-ahead log into the database. Returns false if the database is too damaged to be opened; its log then stays
 * beside it. Throws `conflict` while another process has the database open, even between transactions: Litestream would continue
 * with the old file's pages and the new file's log.
 */
function foldLog(database: string): boolean {
  try {
    const client = connect(database, { timeout: OTHERS_MILLISECONDS });
    try {
      client.pragma('locking_mode = EXCLUSIVE');
      client.pragma('wal_checkpoint(truncate)');
      return true;
    } finally {
      client.close();
    }
  } catch (cause) {
    if (!String((cause as { code?: string }).code).startsWith('SQLITE_BUSY')) return false;
    throw new Refusal(
      'conflict',
      `Another process has ${database} open: Litestream, or a copy that is being made. Stop it first.`,
      { cause },
    );
  }
}
