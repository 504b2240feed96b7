import type { Ref } from '../../backend.ts';
import type { LxdApi } from './api.ts';
import { type DiskEntry, type DiskReader, readDisk } from './sftp.ts';

/** A disk keeps whole blocks, and for the smallest file its name and attributes. */
const BLOCK_BYTES = 4096;
/** A file has up to 65,535 names, each of which the disk keeps as well. */
const NAME_BYTES = 1024;
/** The directories that are read at once. */
const READERS = 16;
/** The directories that are known and wait to be read. */
const WAITING_MAX = 100_000;
const COUNT_MILLISECONDS = 200_000;

/**
 * Returns the bytes of all files of a stopped instance, up to a little above `bytesMax`. The storage drivers each count something
 * else, of a copy on btrfs nothing. Follows no link. Throws where they cannot be counted.
 */
export const diskSize = (lxd: LxdApi, ref: Ref, bytesMax: number): Promise<number> =>
  readDisk(lxd, ref, COUNT_MILLISECONDS, (disk) => countAll(disk, bytesMax));

async function countAll(disk: DiskReader, bytesMax: number): Promise<number> {
  const waiting = ['/'];
  let bytes = 0;
  async function count(directory: string): Promise<void> {
    for await (const entries of disk.entriesOf(directory)) {
      for (const entry of entries) {
        bytes += bytesOf(entry);
        if (entry.isDirectory) waiting.push(`${directory}${entry.name}/`);
      }
      if (waiting.length > WAITING_MAX) throw new Error(`more than ${WAITING_MAX} directories are to be read`);
      if (bytes > bytesMax) return;
    }
  }
  while (waiting.length > 0 && bytes <= bytesMax) await Promise.all(waiting.splice(-READERS).map(count));
  return Math.round(bytes);
}

/** Returns the part of a name in what is kept: a file with several names counts once. */
const bytesOf = ({ size, links }: DiskEntry): number =>
  Math.max(NAME_BYTES, (Math.max(1, Math.ceil(size / BLOCK_BYTES)) * BLOCK_BYTES) / links);
