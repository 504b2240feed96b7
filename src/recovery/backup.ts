import { closeSync, existsSync, openSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { takeLock } from '../db/lock.ts';
import { openDatabase } from '../db/open.ts';
import { giveName, removeDatabase } from '../files/database-files.ts';
import { audit, newFault } from '../ledger/audit.ts';
import { type CommitMark, findGap, readHeadFile, readTip } from '../ledger/head.ts';
import { Refusal } from '../refusal.ts';
import { dropLitestream, type Manifest, manifestOf, writeManifest } from './manifest.ts';

export type Backup = Manifest & { file: string; bytes: number };

/**
 * Writes a complete copy of the books to `file` while the server runs: one snapshot, read by this process, so that
 * nothing waits for it. The copy gets its name only once it is verified; on failure nothing is left under that name.
 * Throws `conflict` when the file exists, `not_found` when its directory does not, LockedError while another backup is
 * being made (both would write the same unfinished file), and an error when the books are damaged or behind their head
 * file.
 */
export async function backUp(
  at: { database: string; head: string; tip: string; backupLock: string },
  file: string,
  version: string,
  now: number,
): Promise<Backup> {
  const taken = () => new Refusal('conflict', `${file} already exists. A backup never overwrites a file.`);
  if (existsSync(file)) throw taken();
  if (!statSync(dirname(file), { throwIfNoEntry: false })?.isDirectory())
    throw new Refusal('not_found', `There is no directory ${dirname(file)}.`);
  await using opening = new AsyncDisposableStack();
  opening.adopt(await takeLock(at.backupLock, 'purser backup'), (it) => it.release());
  const part = `${file}.part`;
  try {
    if (existsSync(file)) throw taken(); // Made by the backup that this one waited for.
    removeDatabase(part); // Left by a backup that was killed.
    const marks = { tip: readTip(at.tip), head: await readHeadFile(at.head) }; // Before the copy, so that the copy is never older.
    closeSync(openSync(part, 'wx', 0o600));
    copy(at.database, part);
    const manifest = finish(part, version, now);
    check(part, marks);
    giveName(part, file);
    return { ...manifest, file, bytes: statSync(file).size };
  } catch (error) {
    removeDatabase(part);
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST') throw taken();
    if (code === 'ENOSPC' || code === 'EDQUOT' || code === 'SQLITE_FULL')
      throw new Error(`Nothing was backed up: there is no room for it in ${dirname(file)}.`, { cause: error });
    const isOfSystem = code !== undefined && !(error instanceof Refusal);
    throw isOfSystem ? new Error(`Nothing was backed up to ${file}: ${message}.`, { cause: error }) : error;
  }
}

function copy(database: string, part: string): void {
  const { client } = openDatabase(database, { migrate: false, readonly: true });
  try {
    client.prepare('vacuum into ?').run(part);
  } finally {
    client.close();
  }
}

/** Turns the copy into a backup: without Litestream's tables, with its manifest, and in one file. */
function finish(part: string, version: string, now: number): Manifest {
  const { client, read } = openDatabase(part, { migrate: false });
  try {
    const write = client.transaction(() => {
      dropLitestream(client);
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

/** Checks the finished backup as a restore would. */
function check(part: string, marks: { head: CommitMark | undefined; tip: CommitMark | undefined }): void {
  const { client, read } = openDatabase(part, { migrate: false, readonly: true });
  try {
    const fault = newFault(read, audit(client).problems) ?? findGap(read, marks.head, marks.tip);
    if (fault)
      throw new Error(`Nothing was backed up: ${fault}. \`purser ledger verify\` and \`purser doctor\` say more.`);
  } finally {
    client.close();
  }
}
