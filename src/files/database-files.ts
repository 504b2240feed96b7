import { existsSync, linkSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import { syncDirectory } from './durable-file.ts';

/** File systems without hard links say so in one of these ways. */
const NO_LINKS = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK'];

/** Gives a finished file its name at once, unless something has that name: throws EEXIST, and touches neither. */
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

/** Removes a database and whatever SQLite laid beside it. */
export function removeDatabase(file: string): void {
  for (const suffix of ['', '-wal', '-shm', '-journal']) rmSync(file + suffix, { force: true });
}
