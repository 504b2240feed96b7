import { closeSync, existsSync, mkdirSync, openSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Refusal } from '../base/refusal.ts';
import { fullDisk } from './full-disk.ts';

/** Thrown when there is no database. Only `serve`, `demo` and `restore` create one (design, section 4). */
export class NoDatabaseError extends Error {
  constructor(directory: string) {
    super(`There is no database in ${directory}. \`purser serve\` creates one on its first start.`);
  }
}

/** Thrown when another process holds the lock of the data directory. */
export class LockedError extends Error {}

/** Thrown when the data directory belongs to another user. */
export class OtherOwnerError extends Error {}

/** The paths of the files in a data directory. */
export type Files = ReturnType<typeof files>;

/** Returns the paths of the files in a data directory. */
export const files = (directory: string) => ({
  database: join(directory, 'purser.db'),
  head: join(directory, 'ledger.head'),
  tip: join(directory, 'ledger.tip'),
  clock: join(directory, 'ledger.clock'),
  reserve: join(directory, 'reserve'),
  lock: join(directory, 'purser.lock'),
  lastBackup: join(directory, 'last-backup.json'),
  /** Leads a browser to a link of `purser ui`; removed within a minute. */
  signIn: join(directory, 'sign-in.html'),
  backupLock: join(directory, 'backup.lock'),
  lockHolder: join(directory, 'purser.lock.holder'),
  socket: join(directory, 'purser.sock'),
  leases: join(directory, 'leases'),
  /** The ids of warm machines, which no row knows. */
  warm: join(directory, 'warm.json'),
  sshHostKey: join(directory, 'ssh_host_key'),
});

/**
 * Checks that the data directory exists, as a directory of this user. With `create` makes a missing one, mode 0700; without it,
 * throws NoDatabaseError if there is no database. Throws OtherOwnerError for another owner, and `read_only` on a full disk.
 */
export function prepareDirectory(directory: string, create: boolean): void {
  if (create && !existsSync(directory)) {
    try {
      makeDirectories(directory);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw (
        fullDisk(error, directory) ??
        new Error(
          `The data directory ${directory} cannot be made (${code}). Choose another with --data or PURSER_DATA.`,
        )
      );
    }
  }
  // Checked first: to another user the directory would look empty.
  if (existsSync(directory)) refuseOtherOwner(directory);
  if (!create && !existsSync(files(directory).database)) throw new NoDatabaseError(directory);
  if (!statSync(directory).isDirectory()) throw new Error(`${directory} is not a directory.`);
}

/** Makes a directory and those above it that are missing. Node's own `recursive` never ends below /proc. */
function makeDirectories(directory: string): void {
  if (existsSync(directory)) return;
  makeDirectories(dirname(directory));
  try {
    mkdirSync(directory, { mode: 0o700 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error; // Another process was first.
  }
}

/** Returns the refusal, with its remedy, where the file system has become read-only; undefined where it has not. */
export function readOnlyDisk(directory: string, options?: ErrorOptions): Refusal | undefined {
  if (!isReadOnly(directory)) return undefined;
  const message = `The file system of ${directory} is read-only: nothing can be written there. The system's log says why (dmesg). Check and mount it again.`;
  return new Refusal('read_only', message, options);
}

/**
 * Returns whether the file system has become read-only. One that was remounted after an I/O error still looks writable to access(2)
 * and statfs(2), so a file is opened for writing: the one that names the lock's holder, because it always exists and closing it
 * releases nothing (closing the database or the lock would release SQLite's locks).
 */
function isReadOnly(directory: string): boolean {
  try {
    closeSync(openSync(files(directory).lockHolder, 'a', 0o600));
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EROFS';
  }
}

/** Throws OtherOwnerError unless this process runs as the owner of its data directory (design, section 4). */
export function refuseOtherOwner(directory: string): void {
  const owner = statSync(directory).uid;
  const self = process.getuid?.();
  if (self !== undefined && self !== owner)
    throw new OtherOwnerError(
      `${directory} belongs to user ${owner}, this is user ${self}. Run Purser as the owner of its data directory.`,
    );
}
