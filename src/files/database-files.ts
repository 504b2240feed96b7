import { existsSync, linkSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import { syncDirectory } from './durable-file.ts';

/** The errors with which file systems without hard links refuse link(2). */
const NO_LINKS = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK'];

/** Moves a finished file to its name atomically. If the name is taken, throws EEXIST and leaves both files alone. */
export function giveName(fresh: string, name: string): void {
  try {
    linkSync(fresh, name);
    rmSync(fresh);
  } catch (error) {
    if (!NO_LINKS.includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
    if (existsSync(name)) throw Object.assign(new Error(`${name} is there already`), { code: 'EEXIST' });
    renameSync(fresh, name);
  }
  syncDirectory(dirname(name));
}

/** The endings of the files that SQLite keeps beside a database. */
const BESIDE = ['-wal', '-shm', '-journal'];

/** Returns the endings of the files that exist beside a database, whether or not the database itself exists. */
export const endingsBeside = (file: string): string[] => BESIDE.filter((ending) => existsSync(file + ending));

/** Removes a database and the files that SQLite keeps beside it. */
export function removeDatabase(file: string): void {
  for (const ending of ['', ...BESIDE]) rmSync(file + ending, { force: true });
}
