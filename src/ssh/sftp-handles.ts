import { SftpFault, STATUS } from '../compute/machine/sftp-fault.ts';
import { DESCRIPTORS } from '../compute/machine/sftp-script.ts';
import type { MemoryShare } from './memory.ts';
import type { Listing } from './sftp-entry.ts';
import type { File } from './sftp-file.ts';

const DIRECTORY_COUNT_MAX = 16;
/** The most bytes of listings over all open directories of a client: about 150,000 names. */
const LISTING_BYTES_MAX = 16 * 1024 * 1024;

type Handle = File | Listing;
const isFile = (handle: Handle): handle is File => 'descriptor' in handle;

/**
 * Keeps the open handles of a client. Throws SftpFault for a handle that is unknown or of the wrong kind. Data read ahead of
 * files is counted in `memory`.
 */
export function createHandles(memory: MemoryShare) {
  const open = new Map<number, Handle>();
  let last = 0;
  let aheadBytes = 0;
  const files = () => [...open.values()].filter(isFile);
  const listings = () => [...open.values()].filter((it): it is Listing => !isFile(it));
  /** Drops all data that was read ahead, as a change may have made it stale, and the sizes of files other than `changed`. */
  function forget(changed?: File) {
    for (const file of files()) {
      file.ahead = undefined;
      if (file !== changed) file.size = undefined;
    }
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
    /** Removes a handle; returns the file to close if it is one. */
    drop(id: number): File | undefined {
      const handle = find(id);
      open.delete(id);
      if (isFile(handle)) return handle;
      memory.release(handle.bytes);
      return undefined;
    },
    freeDescriptor(): number {
      const used = new Set(files().map((it) => it.descriptor));
      const free = DESCRIPTORS.find((it) => !used.has(it));
      if (free === undefined)
        throw new SftpFault(STATUS.failure, `at most ${DESCRIPTORS.length} files can be open at a time`);
      return free;
    },
    /** Returns how many bytes another listing may have. Throws SftpFault at the limits. */
    freeListingBytes(): number {
      const free = LISTING_BYTES_MAX - listings().reduce((sum, it) => sum + it.bytes, 0);
      if (free <= 0 || listings().length >= DIRECTORY_COUNT_MAX)
        throw new SftpFault(STATUS.failure, 'too many directories are open');
      return free;
    },
    forget,
    /** Counts the data read ahead, or drops it when it exceeds the quota. */
    countAhead() {
      memory.release(aheadBytes);
      aheadBytes = files().reduce((sum, it) => sum + (it.ahead?.bytes.length ?? 0), 0);
      if (memory.tryTake(aheadBytes)) return;
      aheadBytes = 0;
      for (const file of files()) file.ahead = undefined;
    },
  };
}

/** Parses a client's handle; 0 is invalid. */
export const handleId = (name: Buffer) => (name.length === 4 ? name.readUInt32BE() : 0);
