import type { ScriptClient } from '../compute/machine/sftp-client.ts';
import { SftpFault, STATUS } from '../compute/machine/sftp-fault.ts';
import { MOVE_BYTES, READ_BYTES } from '../compute/machine/sftp-script.ts';
import { OPEN } from './sftp-wire.ts';

/** The most blocks of 64 KiB that are read ahead. */
const BLOCK_COUNT_MAX = 16;
/** The maximum age of data that was read ahead, as the file may change. */
const AHEAD_MILLISECONDS = 5000;

/** A file that is open as a descriptor in the machine's script. */
export type File = {
  descriptor: number;
  flags: number;
  /** The descriptor's offset; undefined when it is not certain. */
  position: number | undefined;
  ahead: { from: number; bytes: Buffer; at: number } | undefined;
  blocks: number;
};

const isWritable = (file: File) => (file.flags & (OPEN.write | OPEN.append)) !== 0;
const isAppended = (file: File) => (file.flags & OPEN.append) !== 0;

type OpenOrder = {
  descriptor: number;
  path: Buffer;
  flags: number;
  /** The permissions of a created file, in octal; `-` for the machine's default. */
  permissions: string;
};

/** Opens a file in the machine. Throws SftpFault. */
export async function openFile(
  script: ScriptClient,
  { descriptor, path, flags, permissions }: OpenOrder,
): Promise<File> {
  const has = (flag: number) => (flags & flag) !== 0;
  if (!has(OPEN.read | OPEN.write | OPEN.append))
    throw new SftpFault(STATUS.badMessage, 'neither to read nor to write');
  const how = has(OPEN.append) ? 'append' : !has(OPEN.write) ? 'read' : has(OPEN.read) ? 'update' : 'write';
  const creation = !has(OPEN.create) || how === 'read' ? 'no' : has(OPEN.exclusive) ? 'must' : 'may';
  const emptied = has(OPEN.truncate) && how !== 'read' ? 'yes' : 'no';
  await script.ask({ verb: 'open', words: [descriptor, how, creation, emptied, permissions, path] });
  return { descriptor, flags, position: 0, ahead: undefined, blocks: 1 };
}

/** Returns the arguments of the script's `move` that bring the descriptor to `offset`. */
function moveTo(file: File, offset: number): (string | number)[] {
  if (file.position === offset) return ['here', 0, 0, offset];
  const isAhead = file.position !== undefined && file.position < offset;
  const by = isAhead ? offset - (file.position as number) : offset;
  const how = isAhead ? 'on' : isWritable(file) ? 'update' : 'read';
  return [how, Math.floor(by / MOVE_BYTES), by % MOVE_BYTES, offset];
}

/**
 * Reads `length` bytes of a file; fewer only when the machine returned fewer, none at the end. Sequential reads request
 * increasingly large parts from the machine. Throws SftpFault.
 */
export async function readFile(script: ScriptClient, file: File, offset: number, length: number): Promise<Buffer> {
  if (!(file.flags & OPEN.read) || isAppended(file))
    throw new SftpFault(STATUS.permissionDenied, 'the file is not open to be read');
  const parts: Buffer[] = [];
  let at = offset;
  for (;;) {
    const part = fromAhead(file, at, offset + length - at);
    parts.push(part);
    at += part.length;
    if (at >= offset + length) break;
    if ((await readAhead(script, file, at, offset + length - at)) === 0) break;
  }
  return parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts);
}

function fromAhead({ ahead }: File, offset: number, length: number): Buffer {
  if (!ahead || offset < ahead.from || performance.now() - ahead.at > AHEAD_MILLISECONDS) return Buffer.alloc(0);
  return ahead.bytes.subarray(offset - ahead.from, offset - ahead.from + length);
}

async function readAhead(script: ScriptClient, file: File, offset: number, min: number): Promise<number> {
  const isSequential = file.position === offset;
  file.blocks = Math.max(isSequential ? Math.min(file.blocks * 2, BLOCK_COUNT_MAX) : 1, Math.ceil(min / READ_BYTES));
  const words = [file.descriptor, ...moveTo(file, offset), file.blocks];
  file.ahead = undefined;
  file.position = undefined;
  const { output } = await script.ask({ verb: 'read', words, answerBytesMax: file.blocks * READ_BYTES });
  if (output.length === 0) return 0; // The offset is unreliable beyond the end of the file.
  file.position = offset + output.length;
  file.ahead = { from: offset, bytes: output, at: performance.now() };
  return output.length;
}

/** Writes at an offset, or at the end of a file opened to append. Resolves when the data has been written. Throws SftpFault. */
export async function writeFile(script: ScriptClient, file: File, offset: number, pieces: Buffer[]): Promise<void> {
  if (!isWritable(file)) throw new SftpFault(STATUS.permissionDenied, 'the file is not open to be written');
  const length = pieces.reduce((sum, it) => sum + it.length, 0);
  if (length === 0) return;
  const words = [
    file.descriptor,
    ...(isAppended(file) ? ['here', 0, 0, 0] : moveTo(file, offset)),
    length,
    isAppended(file) ? '-' : offset + length,
  ];
  file.ahead = undefined;
  file.position = undefined;
  await script.ask({ verb: 'write', words, input: pieces });
  file.position = offset + length;
}

/** Converts a protocol offset to a number. Throws SftpFault when it is too large. */
export function offsetOf(value: bigint): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new SftpFault(STATUS.failure, 'the offset is too large');
  return Number(value);
}
