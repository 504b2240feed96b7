import { statfsSync } from 'node:fs';
import { Refusal } from '../base/refusal.ts';

/** SQLite makes its shared memory in steps of 32 KiB, and calls a disk without room for one an I/O error. */
const SHARED_MEMORY_BYTES = 32 * 1024;

/** Returns the refusal, with its remedy, for an error that means that the disk of `directory` is full; undefined for another error. */
export function fullDisk(error: unknown, directory: string): Refusal | undefined {
  const { code = '' } = error as { code?: string };
  const isFull =
    ['ENOSPC', 'EDQUOT', 'SQLITE_FULL'].includes(code) || (code.startsWith('SQLITE_IOERR') && !hasRoom(directory));
  return isFull
    ? new Refusal('read_only', `The disk of ${directory} is full: free some space there.`, { cause: error })
    : undefined;
}

function hasRoom(directory: string): boolean {
  const { bavail, bsize } = statfsSync(directory);
  return bavail * bsize >= SHARED_MEMORY_BYTES;
}
