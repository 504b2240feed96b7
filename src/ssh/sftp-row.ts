import { type ScriptClient, wordOf } from '../compute/machine/sftp-client.ts';
import { SftpFault } from '../compute/machine/sftp-fault.ts';
import { SMALL_BYTES } from '../compute/machine/sftp-script.ts';
import { type NamedFile, OPEN } from '../compute/machine/sftp-wire.ts';
import type { MemoryShare } from './memory.ts';
import { type File, type OpenOrder, openFile, settle, unopened } from './sftp-file.ts';

/**
 * Files that a client opens one after another in a directory. It waits for each answer of the machine, which takes milliseconds: so
 * the second file of a row and later ones are opened together with their first write, or read several at a time.
 */

const FILE_COUNT_MAX = 64;
const BYTES_MAX = 1024 * 1024;
/** The maximum age of content that was read before its file was opened. */
const FRESH_MILLISECONDS = 300;
const NAME_COUNT_MAX = 10_000;
/** The memory of a name beside its bytes, roughly. */
const NAME_BYTES = 200;
const DIRECTORY_COUNT_MAX = 16;
const KIND_BITS = 0o170000;
const REGULAR = 0o100000;
const SLASH = '/'.charCodeAt(0);
/** The bytes of the line that `several` prints above a file, less its path. */
const LINE_BYTES = '\n==> / <==\n'.length;

/** The small files of a directory, as listed to its client, and the memory that they use. */
type Listed = { names: { name: Buffer; size: number }[]; next: number; bytes: number };
type Fetched = { content: Map<string, Buffer>; bytes: number; at: number; alone: number };

/** Paths are bytes, and need not be text. */
const keyOf = (path: Buffer) => path.toString('latin1');
function plainKeyOf(directory: Buffer): string {
  let end = directory.length;
  while (directory[end - 1] === SLASH) end -= 1;
  return keyOf(directory.subarray(0, end));
}
const directoryOf = (path: Buffer) => path.subarray(0, Math.max(path.lastIndexOf(SLASH), 0));
const writesAnew = ({ flags }: OpenOrder) => (flags & ~OPEN.truncate) === (OPEN.write | OPEN.create);

/** Keeps the names of directories that were listed to a client. Their memory is counted. */
function createNames(memory: MemoryShare) {
  const listed = new Map<string, Listed>();
  function forget(key: string): void {
    memory.release(listed.get(key)?.bytes ?? 0);
    listed.delete(key);
  }
  return {
    of: (directory: Buffer) => listed.get(keyOf(directory)),
    /** Notes names of a directory that its client was given. */
    list(directory: Buffer, names: readonly NamedFile[]): void {
      const key = plainKeyOf(directory);
      const row = listed.get(key) ?? { names: [], next: 0, bytes: 0 };
      listed.set(key, row);
      for (const { name, attributes } of names) {
        const size = Number(attributes.size);
        if (((attributes.mode ?? 0) & KIND_BITS) !== REGULAR || size >= SMALL_BYTES) continue;
        const bytes = NAME_BYTES + name.length;
        if (row.names.length === NAME_COUNT_MAX || !memory.tryTake(bytes)) break;
        row.names.push({ name: Buffer.from(name), size });
        row.bytes += bytes;
      }
    },
    /** Forgets the names of a directory that is listed again, and those of the oldest where there are too many. */
    unlist(directory: Buffer): void {
      forget(plainKeyOf(directory));
      if (listed.size >= DIRECTORY_COUNT_MAX) forget(listed.keys().next().value as string);
    },
  };
}

/** Creates the rows of files that are read. */
function createReadRows(script: ScriptClient, memory: MemoryShare, alone: () => number | undefined) {
  const { of: listedIn, list, unlist } = createNames(memory);
  let fetched: Fetched | undefined;

  function drop(): void {
    if (fetched) memory.release(fetched.bytes);
    fetched = undefined;
  }

  /** Takes a file that was read before it was opened. */
  function take(path: Buffer): Buffer | undefined {
    if (!fetched || script.milliseconds() - fetched.at > FRESH_MILLISECONDS || fetched.alone !== alone())
      return undefined;
    const key = keyOf(path);
    const content = fetched.content.get(key);
    fetched.content.delete(key);
    return content;
  }

  /** Reads the next files of a directory, of which the client has fetched two in a row. */
  async function readSeveral(directory: Buffer, { names, next }: Listed): Promise<void> {
    drop();
    const wanted: Listed['names'] = [];
    let bytes = 0;
    for (const it of names.slice(next, next + FILE_COUNT_MAX)) {
      bytes += it.size + directory.length + it.name.length + LINE_BYTES;
      if (bytes > BYTES_MAX) break;
      wanted.push(it);
    }
    const now = alone();
    if (now === undefined || wanted.length < 2 || !memory.tryTake(bytes)) return;
    fetched = { content: new Map(), bytes, at: script.milliseconds(), alone: now };
    try {
      const input = wanted.map(({ name }) => Buffer.from(`${wordOf(name)}\n`));
      const words = [directory, wanted.length];
      const { output } = await script.ask({ verb: 'several', words, input, answerBytesMax: bytes });
      fetched.content = contentsOf(output, directory, wanted);
      fetched.at = script.milliseconds();
    } catch (error) {
      drop();
      if (!(error instanceof SftpFault)) throw error;
    }
  }

  return {
    list,
    unlist,
    /** Forgets what was read of files that are not open: something may change. */
    drop,
    /** Opens a file to read it. Throws SftpFault. */
    async open(order: OpenOrder): Promise<File> {
      const directory = directoryOf(order.path);
      const row = listedIn(directory);
      const name = order.path.subarray(directory.length + 1);
      if (row?.names[row.next]?.name.equals(name)) {
        let bytes = take(order.path);
        if (!bytes && row.next > 0) {
          await readSeveral(directory, row);
          bytes = take(order.path);
        }
        row.next += 1;
        if (bytes) return unopened(order, { from: 0, bytes, isEnd: true, at: script.milliseconds() });
      }
      return openFile(script, order);
    },
  };
}

/**
 * Creates the rows of a client. `memory` counts the bytes read of files. `alone` returns a number as long as the client alone works
 * in the machine, and another later: what was read before that is not used.
 */
export function createRows(script: ScriptClient, memory: MemoryShare, alone: () => number | undefined) {
  const read = createReadRows(script, memory, alone);
  /** The file that was promised to its client, and is not open yet. */
  let promised: File | undefined;
  /** The directory in which the last file was made. */
  let madeIn: string | undefined;

  return {
    ...read,
    /** Opens a file; in a row of files that are written only once that is needed. Throws SftpFault. */
    async open(order: OpenOrder): Promise<File> {
      if (order.flags === OPEN.read) return read.open(order);
      read.drop();
      const directory = keyOf(directoryOf(order.path));
      if (writesAnew(order) && madeIn === directory) {
        promised = unopened(order);
        return promised;
      }
      madeIn = undefined;
      const file = await openFile(script, order);
      if (writesAnew(order)) madeIn = directory;
      return file;
    },

    /** Returns whether a file that its client takes for open is not open yet. */
    hasPromised: () => promised?.order !== undefined,
    /**
     * Opens the file that was promised before anything else is done than with `file`. The client gets a fault when it uses the
     * file.
     */
    async keepPromise(file?: File): Promise<void> {
      if (!promised || promised === file) return;
      const kept = promised;
      promised = undefined;
      await settle(script, kept).catch((error) => {
        if (!(error instanceof SftpFault)) throw error;
      });
      if (kept.fault) madeIn = undefined;
    },
  };
}

/** Reads the answer of `several`, by path. A file that has changed since it was listed ends what can be used. */
function contentsOf(output: Buffer, directory: Buffer, wanted: Listed['names']): Map<string, Buffer> {
  const contents = new Map<string, Buffer>();
  const paths = wanted.map(({ name }) => Buffer.concat([directory, Buffer.of(SLASH), name]));
  const isAt = (path: Buffer, at: number) => {
    const line = Buffer.concat([Buffer.from(at === 0 ? '==> ' : '\n==> '), path, Buffer.from(' <==\n')]);
    return output.subarray(at, at + line.length).equals(line) && at + line.length;
  };
  let at = 0;
  for (const [index, path] of paths.entries()) {
    const from = isAt(path, at);
    if (!from) continue; // It is gone, or may not be read.
    const end = from + (wanted[index] as { size: number }).size;
    if (end !== output.length && !paths.slice(index + 1).some((it) => isAt(it, end))) break;
    contents.set(keyOf(path), output.subarray(from, end));
    at = end;
  }
  return contents;
}
