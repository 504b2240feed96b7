import { closeSync, existsSync, mkdirSync, openSync, statSync } from 'node:fs';
import { join } from 'node:path';

/** There is nothing to work on: only `serve`, `demo` and `restore` create a database (design, section 4). */
export class NoDatabaseError extends Error {
  constructor(directory: string) {
    super(`There is no database in ${directory}. \`purser serve\` creates one on its first start.`);
  }
}

/** Another process keeps the data directory. */
export class LockedError extends Error {}

export class OtherOwnerError extends Error {}

/** What is where in a data directory. */
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
 * Makes sure that the data directory is one, and ours. With `create` a missing one is made, for its owner alone.
 * Throws NoDatabaseError without a database to open, and OtherOwnerError.
 */
export function prepareDirectory(directory: string, create: boolean): void {
  if (create && !existsSync(directory)) mkdirSync(directory, { recursive: true, mode: 0o700 });
  // First: to anybody else it looks as if nothing were in it.
  if (existsSync(directory)) refuseOtherOwner(directory);
  if (!create && !existsSync(files(directory).database)) throw new NoDatabaseError(directory);
  if (!statSync(directory).isDirectory()) throw new Error(`${directory} is not a directory.`);
}

export const READ_ONLY = 'the file system of the data directory is read-only';

/**
 * Whether the file system takes no writes any more. One that turned read-only after an error of its own still looks
 * writable to access(2) and statfs(2), so a file is opened to be written: the one that says who holds the lock, because it
 * is always there and closing it gives up nothing (to close the database or the lock would give up SQLite's locks).
 */
export function isReadOnly(directory: string): boolean {
  try {
    closeSync(openSync(files(directory).lockHolder, 'a', 0o600));
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EROFS';
  }
}

/** Purser runs as the owner of its data directory and as nobody else (design, section 4). Throws OtherOwnerError. */
function refuseOtherOwner(directory: string): void {
  const owner = statSync(directory).uid;
  const self = process.getuid?.();
  if (self !== undefined && self !== owner)
    throw new OtherOwnerError(
      `${directory} belongs to user ${owner}, this is user ${self}. Run Purser as the owner of its data directory.`,
    );
}
