import type { Memory } from './memory.ts';
import type { Listing } from './sftp-entry.ts';
import { SftpFault } from './sftp-fault.ts';
import type { File } from './sftp-file.ts';
import { DESCRIPTORS } from './sftp-script.ts';
import { STATUS } from './sftp-wire.ts';

const DIRECTORY_COUNT_MAX = 16;
/** About 150,000 names, over all directories that a client has open. */
const LISTING_BYTES_MAX = 16 * 1024 * 1024;

type Handle = File | Listing;
const isFile = (handle: Handle): handle is File => 'descriptor' in handle;

/**
 * What a client has open. Whatever it names that is not open, or not of that kind, is an SftpFault. What is read ahead of
 * its files is counted in `memory`.
 */
export function createHandles(memory: Memory) {
  const open = new Map<number, Handle>();
  let last = 0;
  let aheadBytes = 0;
  const files = () => [...open.values()].filter(isFile);
  const listings = () => [...open.values()].filter((it): it is Listing => !isFile(it));
  /** Whatever was read ahead of any file may be another by now. */
  function forget() {
    for (const file of files()) file.ahead = undefined;
  }
  function find(id: number): Handle {
    const handle = open.get(id);
    if (!handle) throw new SftpFault(STATUS.failure, 'there is no such handle');
    return handle;
  }
  return {
    keep(handle: Handle): Buffer {
      last += 1;
      open.set(last, handle);
      const name = Buffer.alloc(4);
      name.writeUInt32BE(last);
      return name;
    },
    file(id: number): File {
      const handle = find(id);
      if (!isFile(handle)) throw new SftpFault(STATUS.failure, 'the handle is a directory');
      return handle;
    },
    listing(id: number): Listing {
      const handle = find(id);
      if (isFile(handle)) throw new SftpFault(STATUS.failure, 'the handle is a file');
      return handle;
    },
    /** Lets go of it, and answers the descriptor that has to be closed. */
    drop(id: number): number | undefined {
      const handle = find(id);
      open.delete(id);
      if (isFile(handle)) return handle.descriptor;
      memory.release(handle.bytes);
      return undefined;
    },
    freeDescriptor(): number {
      const taken = new Set(files().map((it) => it.descriptor));
      const free = DESCRIPTORS.find((it) => !taken.has(it));
      if (free === undefined)
        throw new SftpFault(STATUS.failure, `at most ${DESCRIPTORS.length} files can be open at a time`);
      return free;
    },
    /** How many bytes one more directory may have. */
    listingBytesLeft(): number {
      const left = LISTING_BYTES_MAX - listings().reduce((sum, it) => sum + it.bytes, 0);
      if (left <= 0 || listings().length >= DIRECTORY_COUNT_MAX)
        throw new SftpFault(STATUS.failure, 'too many directories are open');
      return left;
    },
    forget,
    /** Counts what has been read ahead; where there is no room for it, it is forgotten. */
    countAhead() {
      memory.release(aheadBytes);
      aheadBytes = files().reduce((sum, it) => sum + (it.ahead?.bytes.length ?? 0), 0);
      if (memory.tryTake(aheadBytes)) return;
      aheadBytes = 0;
      forget();
    },
  };
}

/** The handle that a client names; 0 is none. */
export const handleId = (name: Buffer) => (name.length === 4 ? name.readUInt32BE() : 0);
