import type { ScriptClient } from '../compute/machine/sftp-client.ts';
import { SftpFault, STATUS } from '../compute/machine/sftp-fault.ts';
import { MOVE_BYTES, READ_BYTES } from '../compute/machine/sftp-script.ts';
import { OPEN } from '../compute/machine/sftp-wire.ts';

/** The most blocks of 64 KiB that are read ahead. */
const BLOCK_COUNT_MAX = 16;
/** The maximum age of data that was read ahead, as the file may change. */
const AHEAD_MILLISECONDS = 5000;
/** The maximum age of an end that was seen: a file that grows is soon read on. */
const END_MILLISECONDS = 1000;
/** The permissions that a shell gives a file, and those without which its owner could not open it again. */
const [SHELL_PERMISSIONS, OWN_PERMISSIONS] = [0o666, 0o600];

/** A file that is, or is to be, open as a descriptor in the machine's script. */
export type File = {
  descriptor: number;
  flags: number;
  /** The order of a file that has not been opened in the machine yet. */
  order: OpenOrder | undefined;
  /** The reason why it could not be opened, found after the client had the answer that it is open. */
  fault: SftpFault | undefined;
  /** The size, as far as it follows from what was done with this handle. */
  size: number | undefined;
  /** The descriptor's offset; undefined when it is not certain. */
  position: number | undefined;
  ahead: { from: number; bytes: Buffer; isEnd: boolean; at: number } | undefined;
  blocks: number;
};

const isWritable = (file: File) => (file.flags & (OPEN.write | OPEN.append)) !== 0;
const isAppended = (file: File) => (file.flags & OPEN.append) !== 0;

export type OpenOrder = {
  descriptor: number;
  path: Buffer;
  flags: number;
  /** The permissions of a created file; undefined for the machine's default. */
  permissions: number | undefined;
};

/** Returns a file that is opened in the machine when that cannot be put off any longer. */
export const unopened = (order: OpenOrder, ahead?: File['ahead']): File => ({
  ...{ descriptor: order.descriptor, flags: order.flags, order, fault: undefined, ahead },
  ...{ size: undefined, position: 0, blocks: 1 },
});

/** Opens a file in the machine. Throws SftpFault. */
export async function openFile(script: ScriptClient, order: OpenOrder): Promise<File> {
  const file = unopened(order);
  await settle(script, file);
  return file;
}

/** Opens a file in the machine, if that was put off; with `pieces` writes them at its start. Throws SftpFault. */
export async function settle(script: ScriptClient, file: File, pieces?: Buffer[]): Promise<void> {
  if (file.fault) throw file.fault;
  if (!file.order) return;
  const words = wordsOf(file.order);
  const length = lengthOf(pieces ?? []);
  try {
    const { output } = await (pieces
      ? script.ask({ verb: 'fill', words: [...words, length], input: pieces })
      : script.ask({ verb: 'open', words }));
    file.order = undefined;
    file.position = length;
    file.size = output.toString() === 'empty' ? length : undefined;
  } catch (error) {
    if (error instanceof SftpFault) file.fault = error;
    throw error;
  }
}

const lengthOf = (pieces: Buffer[]) => pieces.reduce((sum, it) => sum + it.length, 0);

/** Returns the arguments of the script's `open`. Throws SftpFault. */
function wordsOf({ descriptor, path, flags, permissions }: OpenOrder): (string | number | Buffer)[] {
  const has = (flag: number) => (flags & flag) !== 0;
  if (!has(OPEN.read | OPEN.write | OPEN.append))
    throw new SftpFault(STATUS.badMessage, 'neither to read nor to write');
  const how = has(OPEN.append) ? 'append' : !has(OPEN.write) ? 'read' : has(OPEN.read) ? 'update' : 'write';
  const creation = !has(OPEN.create) || how === 'read' ? 'no' : has(OPEN.exclusive) ? 'must' : 'may';
  const emptied = has(OPEN.truncate) && how !== 'read' ? 'yes' : 'no';
  const [umask, mode] = creationOf(permissions);
  return [descriptor, how, creation, emptied, umask, path, mode];
}

/** Returns the umask with which a file gets its permissions, in octal, and those that it has to be given afterwards; `-` for none. */
function creationOf(permissions: number | undefined): [umask: string, mode: string] {
  if (permissions === undefined) return ['-', '-'];
  if ((permissions & ~SHELL_PERMISSIONS) === 0 && (permissions & OWN_PERMISSIONS) === OWN_PERMISSIONS)
    return [(0o777 & ~permissions).toString(8), '-'];
  return ['077', permissions.toString(8)];
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
    const now = script.milliseconds();
    const part = fromAhead(file, now, at, offset + length - at);
    parts.push(part);
    at += part.length;
    if (at >= offset + length || isAtEnd(file, now, at)) break;
    if ((await readAhead(script, file, at, offset + length - at)) === 0) break;
  }
  return parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts);
}

function fromAhead({ ahead }: File, now: number, offset: number, length: number): Buffer {
  if (!ahead || offset < ahead.from || now - ahead.at > AHEAD_MILLISECONDS) return Buffer.alloc(0);
  return ahead.bytes.subarray(offset - ahead.from, offset - ahead.from + length);
}

/** Returns whether the file ended at this offset or before it, a moment ago. */
function isAtEnd({ ahead }: File, now: number, offset: number): boolean {
  if (!ahead?.isEnd || now - ahead.at > END_MILLISECONDS) return false;
  return offset >= ahead.from + ahead.bytes.length;
}

async function readAhead(script: ScriptClient, file: File, offset: number, min: number): Promise<number> {
  const isSequential = file.position === offset;
  file.blocks = Math.max(isSequential ? Math.min(file.blocks * 2, BLOCK_COUNT_MAX) : 1, Math.ceil(min / READ_BYTES));
  await settle(script, file);
  const words = [file.descriptor, ...moveTo(file, offset), file.blocks];
  file.ahead = undefined;
  file.position = undefined;
  const { output, words: said } = await script.ask({ verb: 'read', words, answerBytesMax: file.blocks * READ_BYTES });
  if (output.length === 0) return 0; // The offset is unreliable beyond the end of the file.
  file.position = offset + output.length;
  // A file of /proc gives less at a time than it is asked for: only a read of nothing is the end. A move counts as well, before.
  const [, whole, partial] = [...said.matchAll(/^(\d+)\+(\d+) records in$/gm)].at(-1) ?? [];
  const isEnd = Number(whole) + Number(partial) < file.blocks;
  file.ahead = { from: offset, bytes: output, isEnd, at: script.milliseconds() };
  return output.length;
}

/** Writes at an offset, or at the end of a file opened to append. Resolves when the data has been written. Throws SftpFault. */
export async function writeFile(script: ScriptClient, file: File, offset: number, pieces: Buffer[]): Promise<void> {
  if (!isWritable(file)) throw new SftpFault(STATUS.permissionDenied, 'the file is not open to be written');
  const length = lengthOf(pieces);
  if (length === 0) return;
  if (file.order && offset === 0 && !isAppended(file)) return settle(script, file, pieces);
  await settle(script, file);
  const words = [
    file.descriptor,
    ...(isAppended(file) ? ['here', 0, 0, 0] : moveTo(file, offset)),
    length,
    isAppended(file) ? '-' : offset + length,
  ];
  file.ahead = undefined;
  file.position = undefined;
  const { size } = file;
  file.size = undefined;
  await script.ask({ verb: 'write', words, input: pieces });
  file.position = offset + length;
  if (size !== undefined && !isAppended(file)) file.size = Math.max(size, offset + length);
}

/** Converts a protocol offset to a number. Throws SftpFault when it is too large. */
export function offsetOf(value: bigint): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new SftpFault(STATUS.failure, 'the offset is too large');
  return Number(value);
}
