import { closeSync, existsSync, openSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { Refusal } from '../base/refusal.ts';
import { damageOf, gapOf, type Marks, readMarks } from '../books/examine.ts';
import { enterDirectory, openBooks, type ReadableBooks } from '../books/open.ts';
import { dropForeignTables } from '../db/damage.ts';
import { spareBytes } from '../db/disk-reserve.ts';
import { openDatabase } from '../db/open.ts';
import type { Files } from '../files/data-directory.ts';
import { giveName, removeDatabase } from '../files/database-files.ts';
import { type Manifest, manifestOf, writeManifest } from './manifest.ts';

type Backup = Manifest & { file: string; bytes: number };

/**
 * Writes a complete copy of the books of a data directory to `file` while the server runs: one snapshot, read by this process, so
 * that the server does not wait for it. The copy gets its name only once it is verified; on failure no file of that name remains.
 * `now` is in Unix seconds. Throws `conflict` when the file exists, `not_found` when its directory does not, NoDatabaseError,
 * LockedError while another backup is being made (both would write the same unfinished file), and an error when the books are
 * damaged or behind their head file.
 */
export async function backUp(directory: string, file: string, version: string, now: number): Promise<Backup> {
  const taken = () =>
    new Refusal('conflict', `${file} already exists. A backup never overwrites a file. Name another file.`);
  if (existsSync(file)) throw taken();
  if (!statSync(dirname(file), { throwIfNoEntry: false })?.isDirectory())
    throw new Refusal('not_found', `There is no directory ${dirname(file)}. Make it, or mount it, first.`);
  using at = await enterDirectory(directory, { lock: { file: 'backupLock', who: 'purser backup' } });
  const part = `${file}.part`;
  try {
    if (existsSync(file)) throw taken(); // Made by the backup that this one waited for.
    removeDatabase(part); // Remains of a backup that was killed.
    const marks = await readMarks(at); // Read before the copy, so that the copy is never older.
    closeSync(openSync(part, 'wx', 0o600));
    copy(at, part);
    const manifest = finish(part, version, now);
    check(part, marks);
    giveName(part, file);
    note(at, file, now);
    return { ...manifest, file, bytes: statSync(file).size };
  } catch (error) {
    removeDatabase(part);
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST') throw taken();
    if (code === 'ENOSPC' || code === 'EDQUOT' || code === 'SQLITE_FULL')
      throw new Refusal('read_only', `Nothing was backed up: there is no room for it in ${dirname(file)}.`, {
        cause: error,
      });
    const isOfSystem = code !== undefined && !(error instanceof Refusal);
    throw isOfSystem ? new Error(`Nothing was backed up to ${file}: ${message}.`, { cause: error }) : error;
  }
}

/** Notes for `purser status` when and where the last backup was made. The backup is complete without the note. */
function note({ lastBackup }: Files, file: string, at: number): void {
  try {
    writeFileSync(`${lastBackup}.new`, JSON.stringify({ at, file }), { mode: 0o600 });
    renameSync(`${lastBackup}.new`, lastBackup);
  } catch {} // A full or read-only disk.
}

function copy({ database }: Files, part: string): void {
  using books = openBooks(database, { access: 'read' });
  refuseWithoutRoom(database, books, dirname(part));
  books.client.prepare('vacuum into ?').run(part);
}

/**
 * Throws where there is no room for the copy: beside the books it would take the space of new work until the disk is found
 * full, or for good.
 */
function refuseWithoutRoom(database: string, { client }: ReadableBooks, directory: string): void {
  const [pages = 0, free = 0, bytes = 0] = ['page_count', 'freelist_count', 'page_size'].map((name) =>
    Number(client.pragma(name, { simple: true })),
  );
  if (statSync(database).dev === statSync(directory).dev && (pages - free) * bytes > spareBytes(directory))
    throw Object.assign(new Error('the books need the rest of their disk'), { code: 'ENOSPC' });
}

/** Turns the copy into a backup: without foreign tables and views, with its manifest, and in one file. */
function finish(part: string, version: string, now: number): Manifest {
  const { client, read } = openDatabase(part, { migrate: false });
  try {
    client.pragma('foreign_keys = OFF'); // Inside the transaction SQLite would ignore it.
    const write = client.transaction(() => {
      dropForeignTables(client);
      const manifest = manifestOf(client, read, version, now);
      writeManifest(client, manifest);
      return manifest;
    });
    const manifest = write.immediate();
    client.pragma('journal_mode = DELETE'); // Leaves no other file beside it.
    return manifest;
  } finally {
    client.close();
  }
}

/** Checks the finished backup as a restore would, and that it contains everything that was on disk before the copy. */
function check(part: string, marks: Marks): void {
  using books = openBooks(part, { access: 'read' });
  const fault = damageOf(books) ?? gapOf(books, marks);
  if (fault)
    throw new Error(`Nothing was backed up: ${fault}. \`purser ledger verify\` and \`purser doctor\` say more.`);
}
