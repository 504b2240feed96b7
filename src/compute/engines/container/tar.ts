/** The part of the tar format (POSIX.1-1988, ustar) that an engine's archive calls need: one file. */

const BLOCK_BYTES = 512;
const CHECKSUM = { at: 148, length: 8 };
const FILE = new Set(['0', '\0']);

const field = (value: number, length: number) => `${value.toString(8).padStart(length - 1, '0')}\0`;

/** Returns an archive of one file. `name` has at most 99 bytes. */
export function packFile(name: string, content: Buffer, { mode, owner }: { mode: number; owner: number }): Buffer {
  const head = Buffer.alloc(BLOCK_BYTES);
  head.write(name, 0);
  head.write(field(mode, 8), 100);
  head.write(field(owner, 8), 108);
  head.write(field(owner, 8), 116);
  head.write(field(content.length, 12), 124);
  head.write(field(0, 12), 136); // Changed at.
  head.write('0', 156);
  head.write('ustar\x0000', 257);
  head.fill(' ', CHECKSUM.at, CHECKSUM.at + CHECKSUM.length);
  const sum = head.reduce((total, byte) => total + byte, 0);
  head.write(`${sum.toString(8).padStart(6, '0')}\0 `, CHECKSUM.at);
  const filling = Buffer.alloc(-content.length & (BLOCK_BYTES - 1));
  return Buffer.concat([head, content, filling, Buffer.alloc(2 * BLOCK_BYTES)]);
}

/** Returns the content of the first plain file in an archive, or undefined if there is none. */
export function unpackFile(archive: Buffer): Buffer | undefined {
  for (let at = 0; at + BLOCK_BYTES <= archive.length && archive[at] !== 0; ) {
    const size = Number.parseInt(archive.toString('latin1', at + 124, at + 136), 8);
    const begin = at + BLOCK_BYTES;
    if (!Number.isSafeInteger(size)) return undefined;
    if (FILE.has(archive.toString('latin1', at + 156, at + 157))) return archive.subarray(begin, begin + size);
    at = begin + Math.ceil(size / BLOCK_BYTES) * BLOCK_BYTES;
  }
  return undefined;
}
