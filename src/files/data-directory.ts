import { closeSync, existsSync, mkdirSync, openSync, statSync } from 'node:fs';
import { join } from 'node:path';

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

/** Returns the paths of the files in a data directory. */
export const files = (directory: string) => ({
  database: join(directory, 'purser.db'),
  head: join(directory, 'ledger.head'),
  tip: join(directory, 'ledger.tip'),
  reserve: join(directory, 'reserve'),
  lock: join(directory, 'purser.lock'),
  backupLock: join(directory, 'backup.lock'),
  lockHolder: join(directory, 'purser.lock.holder'),
  socket: join(directory, 'purser.sock'),
  leases: join(directory, 'leases'),
  sshHostKey: join(directory, 'ssh_host_key'),
});

/**
 * Checks that the data directory is a directory and belongs to this user. With `create` a missing one is made, mode 0700;
 * without it, throws NoDatabaseError if there is no database. Throws OtherOwnerError if it belongs to another user.
 */
export function prepareDirectory(directory: string, create: boolean): void {
  if (create && !existsSync(directory)) mkdirSync(directory, { recursive: true, mode: 0o700 });
  // Checked first: to another user the directory would look empty.
  if (existsSync(directory)) refuseOtherOwner(directory);
  if (!create && !existsSync(files(directory).database)) throw new NoDatabaseError(directory);
  if (!statSync(directory).isDirectory()) throw new Error(`${directory} is not a directory.`);
}

export const READ_ONLY = 'the file system of the data directory is read-only';

/**
 * Returns whether the file system has become read-only. One that was remounted after an I/O error still looks writable to
 * access(2) and statfs(2), so a file is opened for writing: the one that names the lock's holder, because it always exists
 * and closing it releases nothing (closing the database or the lock would release SQLite's locks).
 */
export function isReadOnly(directory: string): boolean {
  try {
    closeSync(openSync(files(directory).lockHolder, 'a', 0o600));
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EROFS';
  }
}

/** Throws OtherOwnerError unless this process runs as the owner of its data directory (design, section 4). */
function refuseOtherOwner(directory: string): void {
  const owner = statSync(directory).uid;
  const self = process.getuid?.();
  if (self !== undefined && self !== owner)
    throw new OtherOwnerError(
      `${directory} belongs to user ${owner}, this is user ${self}. Run Purser as the owner of its data directory.`,
    );
}
