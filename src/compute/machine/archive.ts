import { visible } from '../../base/visible.ts';
import { createLinkTree } from './link-tree.ts';
import { KEPT_OUT_PATH } from './shell.ts';

/**
 * Reads a tar archive as it comes (POSIX.1-2017, pax; the long names of GNU), checks every entry before it is passed on, and writes
 * it again in one plain form: so the tar that unpacks it, and how that reads unusual archives, do not matter.
 */

const BLOCK_BYTES = 512;
/** The most bytes of a long name or of the extended header of an entry. */
const META_BYTES_MAX = 64 * 1024;
const NAME_BYTES_MAX = 4096;
const PART_BYTES_MAX = 255;
const SHOWN_CHARACTERS_MAX = 200;
const OCTAL_MAX = 0o77777777777;
const PERMISSION_BITS = 0o7777;
const [SETUID, SETGID] = [0o4000, 0o2000];
/** A directory that its owner cannot write would refuse the entries in it. */
const DIRECTORY_BITS = 0o700;

const ZERO = Buffer.alloc(BLOCK_BYTES);
/** The end of an archive. */
const END = Buffer.alloc(2 * BLOCK_BYTES);

const TYPE_NAMES: Record<string, string> = {
  '3': 'a device',
  '4': 'a device',
  '6': 'a named pipe',
  S: 'a sparse file in the form of GNU tar: make the archive without --sparse',
  M: 'a part of an archive of several volumes',
};

/** A fault of the archive, as a sentence without its subject. */
export class ArchiveFault extends Error {}

/** The machine that unpacks the archive. */
type Destination = {
  /** The absolute path of the directory, in which no part is a symbolic link. */
  directory: string;
  /** The user and the group of its commands, if it names them. */
  owner: { user: number; group: number } | undefined;
  /** The symbolic links that are in the directory already, relative to it, in Latin-1. */
  links: Iterable<string>;
  /** Counts memory. Returns false where none is left. */
  take(bytes: number): boolean;
};

type Header = {
  name: string;
  linkName: string;
  type: string;
  mode: number;
  user: number;
  group: number;
  size: number;
  modified: number;
};

/** The values of an extended header that replace those of the next entry. */
type ExtendedHeader = Partial<Pick<Header, 'name' | 'linkName' | 'size' | 'modified' | 'user' | 'group'>>;

/** Reads the headers without an entry of their own: long names, and extended headers of the next entry or of all. */
function createMetaHeaders() {
  let extended: ExtendedHeader = {};
  let current: { type: string; size: number; pieces: Buffer[] } | undefined;

  function end(): void {
    if (!current) return;
    const { type, size, pieces } = current;
    current = undefined;
    Object.assign(extended, valuesOf(type, Buffer.concat(pieces).subarray(0, size)));
  }
  return {
    isReading: () => current !== undefined,
    begin({ type, size }: Header): void {
      if (size > META_BYTES_MAX) throw new ArchiveFault(`has a name or a header of more than ${META_BYTES_MAX} bytes`);
      current = { type, size, pieces: [] };
    },
    take: (part: Buffer) => void current?.pieces.push(Buffer.from(part)),
    end,
    /** Returns the header of an entry with the values that were read for it. */
    apply(header: Header): Header {
      const entry = { ...header, ...extended };
      extended = {};
      return entry;
    },
  };
}

/** Returns what the content of a header states about the next entry. */
function valuesOf(type: string, content: Buffer): ExtendedHeader {
  if (type === 'x') return parseExtended(content);
  if (type !== 'g') return { [type === 'L' ? 'name' : 'linkName']: textOf(content) };
  // What holds for all entries: git writes its commit there. A name or a size for all would be nonsense.
  const { modified: _, user: __, group: ___, ...others } = parseExtended(content);
  if (Object.keys(others).length) throw new ArchiveFault('has a name or a size for all of its entries');
  return {};
}

type ArchiveReader = {
  /** Takes a piece of the archive. Returns what is to be unpacked of it, before the fault if it has one. */
  push(piece: Buffer): { pieces: Buffer[]; fault?: ArchiveFault };
  /** Called at the end of the archive. Throws an ArchiveFault where it is cut. */
  finish(): void;
  /** The progress so far: the number of whole entries, the name of the last one, and that of one of which a part is missing. */
  passed(): { entries: number; last: string | undefined; begun: string | undefined };
};

/** Returns one more entry: an empty file. */
export const emptyFile = (name: string): Buffer =>
  headerOf({ name, linkName: '', type: '0', mode: 0o600, user: 0, group: 0, size: 0, modified: 0 });
export const endOfArchive = (): Buffer => END;

/** Creates a reader of one archive. */
export function readArchive(destination: Destination): ArchiveReader {
  const check = checkFor(destination);
  const [blocks, meta, progress] = [createBlocks(), createMetaHeaders(), createProgress()];
  /** The content that is expected: of an entry, of a long name or extended header, and the padding after either. */
  let remainingBytes = 0;
  let zeros = 0;
  let bytes = 0;

  /** Takes one block that is no content. */
  function header(block: Buffer, out: Buffer[]): void {
    const at = bytes;
    bytes += BLOCK_BYTES;
    if (block.equals(ZERO)) {
      zeros += 1;
      return;
    }
    if (zeros === 1) throw new ArchiveFault('goes on after a block of zeros');
    if (zeros > 1) throw new ArchiveFault('goes on after its end');
    const parsed = parseHeader(block, at);
    if ('LKxg'.includes(parsed.type)) {
      meta.begin(parsed);
      remainingBytes = padded(parsed.size);
      if (remainingBytes === 0) meta.end();
      return;
    }
    const entry = meta.apply(parsed);
    const checked = check(entry);
    remainingBytes = isFile(entry) ? padded(entry.size) : 0;
    if (!checked) {
      if (remainingBytes) throw new ArchiveFault('has content for its own directory');
      return;
    }
    progress.begin(checked.name);
    out.push(headerOf(checked));
    if (remainingBytes === 0) progress.end();
  }

  /** Takes a part of the content that is expected. */
  function content(part: Buffer, out: Buffer[]): void {
    bytes += part.length;
    remainingBytes -= part.length;
    const isMeta = meta.isReading();
    if (isMeta) meta.take(part);
    else out.push(part);
    if (remainingBytes === 0) (isMeta ? meta : progress).end();
  }

  function read(piece: Buffer, out: Buffer[]): void {
    for (let at = 0; at < piece.length; ) {
      const part = piece.subarray(at, at + (remainingBytes || blocks.missing()));
      at += part.length;
      if (remainingBytes > 0) content(part, out);
      else blocks.add(part, (block) => header(block, out));
    }
  }

  return {
    push(piece) {
      const pieces: Buffer[] = [];
      try {
        read(piece, pieces);
        return { pieces };
      } catch (fault) {
        if (!(fault instanceof ArchiveFault)) throw fault;
        return { pieces, fault };
      }
    },
    finish() {
      const { begun } = progress.passed();
      if (begun !== undefined) throw new ArchiveFault(`is cut: the rest of ${begun} is missing`);
      if (bytes === 0) refuseCompressed(blocks.held());
      if (zeros < 2 || blocks.held().length) throw new ArchiveFault('is cut: its end is missing');
    },
    passed: progress.passed,
  };
}

/** Gathers blocks from the pieces of an archive. */
function createBlocks() {
  let held: Buffer = Buffer.alloc(0);
  return {
    held: () => held,
    missing: () => BLOCK_BYTES - held.length,
    /** Adds what comes next, no more than is missing. Calls `take` when that makes a block whole. */
    add(part: Buffer, take: (block: Buffer) => void): void {
      const block = held.length ? Buffer.concat([held, part]) : part;
      const isWhole = block.length === BLOCK_BYTES;
      held = isWhole ? Buffer.alloc(0) : Buffer.from(block); // The piece may be given back.
      if (isWhole) take(block);
    },
  };
}

/** Notes how far the entries of an archive have been read. */
function createProgress() {
  let entries = 0;
  let last: string | undefined;
  let begun: string | undefined;
  return {
    begin(name: string): void {
      begun = name;
    },
    end(): void {
      if (begun === undefined) return;
      entries += 1;
      last = begun;
      begun = undefined;
    },
    passed: () => ({
      entries,
      last: last === undefined ? undefined : shownName(last),
      begun: begun === undefined ? undefined : shownName(begun),
    }),
  };
}

/**
 * Creates the check of the entries of one archive, in their order. It refuses an entry that must not be unpacked, and returns it in
 * its plain form; undefined for the directory itself.
 */
function checkFor({ directory, owner, links: known, take }: Destination): (it: Header) => Header | undefined {
  const links = createLinkTree(take);
  const mark = (name: string) => {
    if (!links.add(name)) throw new ArchiveFault('has more symbolic links than there is memory for');
  };
  for (const name of known) mark(name);
  return (it) => {
    const shown = shownName(it.name);
    const fault = (words: string) => new ArchiveFault(`${shown} ${words}`);
    const name = plainName(it.name, fault);
    const type = typeOf(it);
    if (!'0125'.includes(type)) {
      const known = TYPE_NAMES[type];
      throw fault(known ? `is ${known}` : `has the type ${JSON.stringify(type)}, which cannot be unpacked`);
    }
    if (name === '') {
      if (type === '5') return undefined;
      throw fault('is no name');
    }
    const link = links.find(name);
    if (link !== undefined && link !== name) throw fault(`leads through the symbolic link ${shownName(link)}`);
    if (KEPT_OUT_PATH.test(`${directory}/${name}`)) throw fault('lies in /proc, /sys, /dev or /run/purser');
    if (it.mode & SETUID && it.user !== owner?.user) throw fault(`has the setuid bit of another user (${it.user})`);
    if (it.mode & SETGID && it.group !== owner?.group) throw fault(`has the setgid bit of another group (${it.group})`);
    let linkName = '';
    if (type === '1') {
      linkName = plainName(it.linkName, (words) =>
        fault(`is a hard link to ${shownName(it.linkName)}, which ${words}`),
      );
      if (linkName === '' || links.find(linkName) !== undefined)
        throw fault(`is a hard link to ${shownName(it.linkName)}, which is no file of the archive`);
    } else if (type === '2') {
      linkName = it.linkName;
      if (linkName === '') throw fault('is a symbolic link to nothing');
      if (Buffer.byteLength(linkName, 'latin1') > NAME_BYTES_MAX)
        throw fault('is a symbolic link to a name that is too long');
      mark(name);
    } else if (type === '5') {
      if (link !== undefined) throw fault('is a directory, and a symbolic link is in its place');
    } else links.remove(name); // Every tar removes a link before it writes a file in its place.
    const mode = (it.mode & PERMISSION_BITS) | (type === '5' ? DIRECTORY_BITS : 0);
    const { user = 0, group = 0 } = owner ?? {};
    return { ...it, name, linkName, type, mode, user, group, size: isFile(it) ? it.size : 0 };
  };
}

const padded = (size: number) => Math.ceil(size / BLOCK_BYTES) * BLOCK_BYTES;

/** Names are read as Latin-1: they are bytes, and need not be UTF-8. */
const shownName = (name: string): string => {
  const text = Buffer.from(name, 'latin1').toString('utf8');
  return visible(JSON.stringify(text.length > SHOWN_CHARACTERS_MAX ? `${text.slice(0, SHOWN_CHARACTERS_MAX)}…` : text));
};

/** Returns whether a name has a byte below the space, or DEL. */
function hasControl(name: string): boolean {
  for (let at = 0; at < name.length; at++) {
    const code = name.charCodeAt(at);
    if (code < 0x20 || code === 0x7f) return true;
  }
  return false;
}

/** Returns a name without empty parts and those that are a point. Throws for one that leaves the directory. */
function plainName(name: string, fault: (words: string) => ArchiveFault): string {
  if (name.length > NAME_BYTES_MAX) throw fault(`is longer than ${NAME_BYTES_MAX} bytes`);
  if (hasControl(name)) throw fault('has a control character in its name');
  if (name.startsWith('/')) throw fault('is absolute, and would leave the directory');
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  if (parts.includes('..')) throw fault('would leave the directory');
  if (parts.some((part) => part.length > PART_BYTES_MAX))
    throw fault(`has a part of more than ${PART_BYTES_MAX} bytes`);
  return parts.join('/');
}

/** Old archives have no type for a file, and name a directory with a slash at its end. */
function typeOf({ type, name }: Header): string {
  if (type !== '\0' && type !== '0' && type !== '7') return type;
  return name.endsWith('/') ? '5' : '0';
}
const isFile = (it: Header) => typeOf(it) === '0';

const textOf = (field: Buffer): string => {
  const end = field.indexOf(0);
  return field.toString('latin1', 0, end < 0 ? field.length : end);
};

/** Reads a number: octal digits, or GNU's binary form for large ones. */
function numberOf(field: Buffer, what: string, at: number): number {
  const fault = () => new ArchiveFault(`is no tar archive: at byte ${at}, the ${what} cannot be read`);
  const [first = 0] = field;
  if (first & 0x80) {
    const value = field.reduce((sum, byte, index) => sum * 256 + (index ? byte : byte & 0x7f), 0);
    if (first & 0x40 || !Number.isSafeInteger(value)) throw fault();
    return value;
  }
  const text = textOf(field).trim();
  if (!/^[0-7]*$/.test(text)) throw fault();
  return text === '' ? 0 : Number.parseInt(text, 8);
}

/** The first bytes of what gzip, bzip2, xz and zstd write. */
const COMPRESSED = ['\x1f\x8b', 'BZh', '\xfd7zXZ', '\x28\xb5\x2f\xfd'];
function refuseCompressed(beginning: Buffer): void {
  const text = beginning.toString('latin1', 0, 8);
  if (COMPRESSED.some((it) => text.startsWith(it))) throw new ArchiveFault('is compressed: send it plain');
}

function parseHeader(block: Buffer, at: number): Header {
  const sum = checksumOf(block);
  const field = (from: number, to: number) => block.subarray(from, to);
  if (at === 0) refuseCompressed(block);
  if (numberOf(field(148, 156), 'checksum', at) !== sum)
    throw new ArchiveFault(`is no tar archive: the checksum at byte ${at} is wrong`);
  const prefix = block.toString('latin1', 257, 263) === 'ustar\0' ? textOf(field(345, 500)) : '';
  const name = textOf(field(0, 100));
  const times = block[136] === 0xff ? 0 : numberOf(field(136, 148), 'time', at); // Before 1970, in GNU's form.
  return {
    name: prefix === '' ? name : `${prefix}/${name}`,
    mode: numberOf(field(100, 108), 'mode', at),
    user: numberOf(field(108, 116), 'user', at),
    group: numberOf(field(116, 124), 'group', at),
    size: numberOf(field(124, 136), 'size', at),
    modified: times,
    type: String.fromCharCode(block[156] as number),
    linkName: textOf(field(157, 257)),
  };
}

/** The sum of all bytes of a header, in which the checksum itself counts as spaces. */
function checksumOf(block: Buffer): number {
  let sum = 8 * 0x20;
  for (let at = 0; at < BLOCK_BYTES; at++) if (at < 148 || at >= 156) sum += block[at] as number;
  return sum;
}

/** Reads an extended header: lines of a length, a space, a keyword, an equals sign and a value. */
function parseExtended(content: Buffer): ExtendedHeader {
  const values: ExtendedHeader = {};
  for (let at = 0; at < content.length; ) {
    const space = content.indexOf(0x20, at);
    const digits = content.toString('latin1', at, space);
    const end = at + Number(digits);
    const equals = content.indexOf(0x3d, space);
    if (
      space < 0 ||
      !/^\d{1,6}$/.test(digits) ||
      end > content.length ||
      equals < 0 ||
      equals >= end ||
      content[end - 1] !== 0x0a
    )
      throw new ArchiveFault('has an extended header that cannot be read');
    const key = content.toString('latin1', space + 1, equals);
    const value = content.toString('latin1', equals + 1, end - 1);
    const number = () => {
      if (/^-\d+(\.\d+)?$/.test(value)) return 0;
      if (!/^\d{1,15}(\.\d+)?$/.test(value))
        throw new ArchiveFault(`has an extended header whose ${key} cannot be read`);
      return Math.floor(Number(value));
    };
    if (key.startsWith('GNU.sparse.')) throw new ArchiveFault(`has ${TYPE_NAMES.S}`);
    if (key === 'path') values.name = value;
    else if (key === 'linkpath') values.linkName = value;
    else if (key === 'size') values.size = number();
    else if (key === 'mtime') values.modified = number();
    else if (key === 'uid') values.user = number();
    else if (key === 'gid') values.group = number();
    at = end;
  }
  return values;
}

/** Writes the header of an entry, after the entries for names that do not fit it. */
function headerOf(it: Header): Buffer {
  const [name, linkName] = [it.name, it.linkName].map((text) => Buffer.from(text, 'latin1')) as [Buffer, Buffer];
  const long = [
    ...(linkName.length > 100 ? [longName('K', linkName)] : []),
    ...(name.length > 100 ? [longName('L', name)] : []),
  ];
  const block = Buffer.alloc(BLOCK_BYTES);
  name.copy(block, 0, 0, 100);
  linkName.copy(block, 157, 0, 100);
  for (const [value, from, to] of [
    [it.mode, 100, 108],
    [it.user, 108, 116],
    [it.group, 116, 124],
    [it.size, 124, 136],
    [it.modified, 136, 148],
  ] as const)
    writeNumber(block, value, from, to);
  block.write(it.type, 156, 'latin1');
  block.write('ustar\x0000', 257, 'latin1');
  block.write(`${checksumOf(block).toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return long.length ? Buffer.concat([...long, block]) : block;
}

function writeNumber(block: Buffer, value: number, from: number, to: number): void {
  const digits = to - from - 1;
  const text = value.toString(8).padStart(digits, '0');
  if (text.length <= digits && value <= OCTAL_MAX) return void block.write(text, from, 'latin1');
  for (let at = to - 1, rest = value; at > from; at--, rest = Math.floor(rest / 256)) block[at] = rest % 256;
  block[from] = 0x80;
}

function longName(type: 'L' | 'K', name: Buffer): Buffer {
  const size = name.length + 1;
  const header = headerOf({
    name: '././@LongLink',
    linkName: '',
    type,
    mode: 0o644,
    ...{ user: 0, group: 0, size, modified: 0 },
  });
  return Buffer.concat([header, name, Buffer.alloc(padded(size) - name.length)]);
}
