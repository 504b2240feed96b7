import { existsSync, mkdirSync, statSync } from 'node:fs';
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

/** Purser runs as the owner of its data directory and as nobody else (design, section 4). Throws OtherOwnerError. */
function refuseOtherOwner(directory: string): void {
  const owner = statSync(directory).uid;
  const self = process.getuid?.();
  if (self !== undefined && self !== owner)
    throw new OtherOwnerError(
      `${directory} belongs to user ${owner}, this is user ${self}. Run Purser as the owner of its data directory.`,
    );
}
