import { Refusal } from '../../base/refusal.ts';
import { collectPieces } from '../../net/pieces.ts';
import type { Backend, Ref } from '../backend.ts';
import { createScriptClient, type ScriptClient } from './sftp-client.ts';
import { entriesOf, type FileAttributes, factsOf } from './sftp-facts.ts';
import { SftpFault, STATUS } from './sftp-fault.ts';
import { MOVE_BYTES, READ_BYTES, SFTP_SCRIPT } from './sftp-script.ts';

/** Files of a lease for the API: read in parts, and listed, by the script that answers sftp. */

/** The most entries of a listing. */
export const ENTRY_COUNT_MAX = 10_000;
/** Room for one more entry, for the directory and its parent, and for two patterns that may match no file. */
const NAME_COUNT_MAX = ENTRY_COUNT_MAX + 5;
/** Upper bound for a full listing with names of maximal length. */
const LISTING_BYTES_MAX = 5 * 1024 * 1024;
const BLOCK_COUNT_MAX = 16;
/** Time limit for the script to end after its input has. */
const EXIT_MILLISECONDS = 5000;
const DESCRIPTOR = 3;

const TYPES = new Map([
  [0o010000, 'fifo'],
  [0o020000, 'device'],
  [0o040000, 'directory'],
  [0o060000, 'device'],
  [0o100000, 'file'],
  [0o120000, 'link'],
  [0o140000, 'socket'],
] as const);
const TYPE_BITS = 0o170000;
const PERMISSION_BITS = 0o7777;
type FileType = 'fifo' | 'device' | 'directory' | 'file' | 'link' | 'socket' | 'other';

/** The attributes of a file: `mode` is its permissions, `modified` Unix seconds. */
export type FileFacts = { type: FileType; size: number; mode: number; modified: number };
export type FileEntry = FileFacts & { name: Buffer };

/** Returns a path that no tool takes for an option. */
const plain = (path: string) => (path.startsWith('/') ? path : `./${path}`);

/** Counts memory. Returns false where none is left. */
type Take = (bytes: number) => boolean;
const noMemory = () =>
  new Refusal('rate_limited', 'This caller uses too much memory. Retry when some requests are done.', {
    retryAfterSeconds: 2,
  });

function fileFacts({ mode = 0, size = 0n, times }: FileAttributes): FileFacts {
  return {
    type: TYPES.get((mode & TYPE_BITS) as never) ?? 'other',
    size: Number(size),
    mode: mode & PERMISSION_BITS,
    modified: times?.modified ?? 0,
  };
}

/** Opens the script, and ends it after `use`. Turns its errors for a path into refusals. */
async function withScript<T>(backend: Backend, ref: Ref, use: (script: ScriptClient) => Promise<T>): Promise<T> {
  const session = await backend.guest.session(ref, { command: SFTP_SCRIPT, terminal: undefined });
  session.ended.catch(() => {}); // The client of the script reports it.
  try {
    const script = createScriptClient(session);
    await script.ask({ verb: 'hello' });
    return await use(script);
  } catch (error) {
    throw error instanceof SftpFault ? refusalOf(error) : error;
  } finally {
    session.stdin.end();
    const hangs = setTimeout(() => session.kill(), EXIT_MILLISECONDS);
    void session.ended.finally(() => clearTimeout(hangs)).catch(() => {});
  }
}

function refusalOf({ status, message }: SftpFault): Refusal {
  const words = message.replace(/^.*: /s, '').trim();
  if (status === STATUS.noSuchFile)
    return new Refusal('not_found', `path: there is nothing of that name on the resource (${words}).`);
  return new Refusal('invalid_request', `path: cannot be read there (${words}).`);
}

type FilePart = { bytes: Buffer; size: number; modified: number };

/**
 * Reads up to `length` bytes of a file from `offset`; without a length the whole rest, which is refused when it exceeds `bytesMax`.
 * Throws refusals for a path that is no readable file, and `rate_limited` where `take` has no room.
 */
export function readPart(
  backend: Backend,
  ref: Ref,
  {
    path,
    offset,
    length,
    bytesMax,
    take,
  }: { path: string; offset: number; length?: number | undefined; bytesMax: number; take: Take },
): Promise<FilePart> {
  return withScript(backend, ref, async (script) => {
    await script.ask({ verb: 'open', words: [DESCRIPTOR, 'read', 'no', 'no', '-', plain(path)] });
    const { output } = await script.ask({ verb: 'stat', words: [DESCRIPTOR] });
    const { size, modified } = fileFacts(factsOf(output.toString()).attributes);
    const tooMany = (count: string) =>
      new Refusal(
        'invalid_request',
        `length: is required here: the file has ${count} bytes, and a call fetches at most ${bytesMax}. Fetch it in parts, by offset and length.`,
      );
    if (length === undefined && size - offset > bytesMax) throw tooMany(String(size));
    const pieces = collectPieces();
    // The size of a file of /proc means little, and each of its reads may be short: its end is where a read returns nothing.
    const wanted = length ?? (size === 0 ? bytesMax + 1 : bytesMax);
    const isRead = () => pieces.length() >= wanted || (size > 0 && offset + pieces.length() >= size);
    for (let isFirst = true; !isRead(); isFirst = false) {
      const blocks = Math.min(Math.ceil((wanted - pieces.length()) / READ_BYTES), BLOCK_COUNT_MAX);
      const move = isFirst ? ['on', Math.floor(offset / MOVE_BYTES), offset % MOVE_BYTES, offset] : ['here', 0, 0, 0];
      const words = [DESCRIPTOR, ...move, blocks];
      const { output: piece } = await script.ask({ verb: 'read', words, answerBytesMax: blocks * READ_BYTES });
      if (!take(piece.length)) throw noMemory();
      if (piece.length === 0) break;
      pieces.add(piece.subarray(0, wanted - pieces.length()));
    }
    if (length === undefined && pieces.length() > bytesMax) throw tooMany('more');
    return { bytes: pieces.whole(), size, modified };
  });
}

/**
 * Describes the file at a path, a link not followed, and lists it where it is, or leads to, a directory: at most 10,000 entries by
 * name, those with a leading dot first. Throws refusals for an unreadable path, and `rate_limited` where `take` has no room.
 */
export function listFiles(
  backend: Backend,
  ref: Ref,
  { path, take }: { path: string; take: Take },
): Promise<{ facts: FileFacts; entries: FileEntry[] | undefined; isTruncated: boolean }> {
  return withScript(backend, ref, async (script) => {
    const about = async (verb: 'stat' | 'lstat') =>
      fileFacts(factsOf((await script.ask({ verb, words: [plain(path)] })).output.toString()).attributes);
    const facts = await about('lstat');
    const isDirectory =
      facts.type === 'directory' ||
      (facts.type === 'link' && (await about('stat').catch(() => undefined))?.type === 'directory');
    if (!isDirectory) return { facts, entries: undefined, isTruncated: false };
    let hasRoom = true;
    const listing = {
      verb: 'list',
      words: [plain(path), NAME_COUNT_MAX],
      answerBytesMax: LISTING_BYTES_MAX,
      take: (bytes: number) => (hasRoom &&= take(bytes)),
    };
    const { output, token } = await script.ask(listing).catch((error) => {
      throw hasRoom ? error : noMemory();
    });
    const entries: FileEntry[] = [];
    let isTruncated = false;
    for (const { name, facts } of entriesOf(output, `${token}/`)) {
      if (name.equals(HERE) || name.equals(ABOVE)) continue;
      isTruncated = entries.length === ENTRY_COUNT_MAX;
      if (isTruncated) break;
      entries.push({ name, ...fileFacts(facts.attributes) });
    }
    return { facts, entries: entries.sort((a, b) => Buffer.compare(a.name, b.name)), isTruncated };
  });
}
const [HERE, ABOVE] = [Buffer.from('.'), Buffer.from('..')];
