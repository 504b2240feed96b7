import { statSync } from 'node:fs';

/**
 * Returns the mark of a file that no copy of it has: its inode, and the nanosecond at which that was made. A disk that is attached
 * to another machine, or is replicated block by block, keeps both. Null where the file system does not know the time.
 */
export function fileMark(file: string): string | null {
  const { ino, birthtimeNs } = statSync(file, { bigint: true });
  return birthtimeNs > 0n ? `${ino} ${birthtimeNs}` : null;
}
