import { existsSync, realpathSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { type Keyring, openKeyring } from '../access/keyring.ts';
import { readMasterKey } from '../access/master-key.ts';
import { type Clock, createClock, type KnownTime, type TimeSource } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { MasterKeySource } from '../config/config.ts';
import type { Reader } from '../db/handle.ts';
import { type LockPatience, refuseOtherName, takeLock } from '../db/lock.ts';
import { openDatabase } from '../db/open.ts';
import { type Files, files, prepareDirectory, readOnlyDisk } from '../files/data-directory.ts';
import { fullDisk } from '../files/full-disk.ts';
import { newestTime } from '../ledger/accepted-clock.ts';
import { type Ledger, type LedgerOptions, openLedger } from '../ledger/ledger.ts';
import { readSighting } from './clock-watch.ts';

/** A caller's needs of a data directory, which in any case must belong to this user. */
type DirectoryNeeds = {
  /** Creates the directory when it is missing. Without it there must be a database. */
  create?: boolean;
  /** The lock to hold, by default none. `lock` keeps other writers out, `backupLock` only other backups. */
  lock?: { file: 'lock' | 'backupLock'; who: string; patience?: LockPatience };
};

/**
 * Enters a data directory: checks its owner and takes the lock that the caller needs. Returns the paths of its files; disposing
 * them releases the lock. Throws NoDatabaseError, OtherOwnerError, LockedError, and `read_only` for an unwritable or full disk.
 */
export async function enterDirectory(
  directory: string,
  { create = false, lock }: DirectoryNeeds = {},
): Promise<Files & Disposable> {
  prepareDirectory(directory, create);
  const at = files(directory);
  try {
    const taken = lock && (await takeLock(besideDatabase(at.database, at[lock.file]), lock.who, lock.patience));
    try {
      if (lock?.file === 'lock' && existsSync(at.database)) await refuseOtherName(at.database);
    } catch (error) {
      taken?.release();
      throw error;
    }
    return { ...at, [Symbol.dispose]: () => taken?.release() };
  } catch (error) {
    throw fullDisk(error, directory) ?? error;
  }
}

/** Returns the lock file of books: where `purser.db` is a symbolic link, the one beside the file that it leads to. */
const besideDatabase = (database: string, lock: string) =>
  existsSync(database) ? join(dirname(realpathSync(database)), basename(lock)) : lock;

/** Books opened to be read. Disposing them closes the file. */
export type ReadableBooks = Pick<Ledger, 'client' | 'read'> & Disposable;
/** Books opened by their one writer. Disposing them waits for the last batch and closes the file. */
export type WritableBooks = Ledger & AsyncDisposable;

/**
 * Opens a database file as books. `read` may run beside a server and needs no lock: it writes nothing and migrates nothing. `write`
 * opens the ledger with its writer, and needs the lock of the directory. Throws when the file is missing, older (without `migrate`)
 * or newer than this program, or too damaged for SQLite to open it, and `read_only` where the disk has no room for SQLite's files
 * beside it, or has become read-only.
 */
export function openBooks(file: string, needs: { access: 'read' }): ReadableBooks;
export function openBooks(file: string, needs: { access: 'write' } & LedgerOptions): WritableBooks;
export function openBooks(
  file: string,
  needs: { access: 'read' } | ({ access: 'write' } & LedgerOptions),
): ReadableBooks | WritableBooks {
  try {
    if (needs.access === 'write') {
      const ledger = openLedger(file, needs);
      return { ...ledger, [Symbol.asyncDispose]: ledger.close };
    }
    const { client, read } = openDatabase(file, { migrate: false, readonly: true });
    return { client, read, [Symbol.dispose]: () => void client.close() };
  } catch (error) {
    throw fullDisk(error, dirname(file)) ?? unopened(error, dirname(file)) ?? error;
  }
}

/** Returns the refusal for an error of SQLite that cannot make its files beside the database, as the disk is read-only. */
const unopened = (error: unknown, directory: string) =>
  /^SQLITE_(CANTOPEN|READONLY)/.test((error as { code?: string }).code ?? '')
    ? readOnlyDisk(directory, { cause: error })
    : undefined;

/**
 * Opens the keyring of these books with the configured master key. Creates no key. Throws when the key is missing or malformed, or
 * does not belong to these books.
 */
export const keyringOf = (read: Reader, source: MasterKeySource): Keyring =>
  openKeyring(read, readMasterKey(source, { create: false }));

/**
 * Returns the times that these books know: their newest, and the time at which they were last served, by the file of their
 * directory.
 */
export function knownTimeOf(read: Reader, at: Pick<Files, 'clock'>): KnownTime {
  const sighting = readSighting(at.clock);
  return { at: Math.max(newestTime(read), Math.floor(sighting?.at ?? 0)), sighting };
}

/** Creates the clock of these books. */
export const clockOf = (read: Reader, at: Pick<Files, 'clock'>, log: Log, time: TimeSource): Clock =>
  createClock(time, knownTimeOf(read, at), log);
