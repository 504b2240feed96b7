/** The part of the tar format (POSIX.1-1988, ustar) that an engine's archive calls need. */

const BLOCK_BYTES = 512;
const CHECKSUM = { at: 148, length: 8 };
const FILE = new Set(['0', '\0']);

const field = (value: number, length: number) => `${value.toString(8).padStart(length - 1, '0')}\0`;

/** A file, or a directory where it has no content. `name` has at most 98 bytes, and no slash at its beginning. */
type TarEntry = { name: string; content?: Buffer; mode: number; owner: number };

/** Returns an archive. */
export const pack = (...entries: TarEntry[]): Buffer =>
  Buffer.concat([...entries.flatMap(packOne), Buffer.alloc(2 * BLOCK_BYTES)]);

function packOne({ name, content, mode, owner }: TarEntry): Buffer[] {
  const bytes = content ?? Buffer.alloc(0);
  const head = Buffer.alloc(BLOCK_BYTES);
  head.write(content ? name : `${name}/`, 0);
  head.write(field(mode, 8), 100);
  head.write(field(owner, 8), 108);
  head.write(field(owner, 8), 116);
  head.write(field(bytes.length, 12), 124);
  head.write(field(0, 12), 136); // Changed at.
  head.write(content ? '0' : '5', 156);
  head.write('ustar\x0000', 257);
  head.fill(' ', CHECKSUM.at, CHECKSUM.at + CHECKSUM.length);
  const sum = head.reduce((total, byte) => total + byte, 0);
  head.write(`${sum.toString(8).padStart(6, '0')}\0 `, CHECKSUM.at);
  return [head, bytes, Buffer.alloc(-bytes.length & (BLOCK_BYTES - 1))];
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
