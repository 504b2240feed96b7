import type { ScriptClient } from '../compute/machine/sftp-client.ts';
import { type FileAttributes, factsOf } from '../compute/machine/sftp-facts.ts';
import { SftpFault, STATUS } from '../compute/machine/sftp-fault.ts';
import { DESCRIPTORS } from '../compute/machine/sftp-script.ts';
import { answer, OPEN, PACKET_BYTES_MAX, type PacketFields, REQUEST, uint64 } from '../compute/machine/sftp-wire.ts';
import type { MemoryShare } from './memory.ts';
import type { SftpWrite } from './sftp-batch.ts';
import { createListing } from './sftp-entry.ts';
import { type File, offsetOf, readFile, settle, writeFile } from './sftp-file.ts';
import { createHandles, handleId } from './sftp-handles.ts';
import { createRows } from './sftp-row.ts';

/** The most bytes of a read or write: a multiple of what clients use by default, and a fraction of the read-ahead. */
const TRANSFER_BYTES_MAX = 128 * 1024;
const PATH_BYTES_MAX = 4096;
const PERMISSION_BITS = 0o7777;

/**
 * Clients that always send the two paths of a symlink in OpenSSH's order, the target first. Others follow the draft unless
 * the server identifies itself as OpenSSH.
 */
const SENDS_TARGET_FIRST = /^(OpenSSH|dropbear|paramiko|Go\b)/i;

/** Requests that change nothing in the machine, but for an open, which is looked at. */
const CHANGES_NOTHING = new Set<number>([
  ...[REQUEST.open, REQUEST.close, REQUEST.read, REQUEST.opendir, REQUEST.readdir],
  ...[REQUEST.stat, REQUEST.lstat, REQUEST.fstat, REQUEST.realpath, REQUEST.readlink],
]);

/** Handles a request. Returns the response packet, or undefined for a plain success status. */
type Respond = (fields: PacketFields, id: number) => Promise<Buffer | undefined>;
type Word = Buffer | string | number;
type Client = { software: string; memory: MemoryShare; alone: () => number | undefined };

/** Creates the handler of requests. Throws SftpFault for a failed request, and at once when the machine lacks a tool. */
export async function createResponder(script: ScriptClient, client: Client, now: () => number) {
  const serving = await createServing(script, client);
  const { handles, rows } = serving;
  const requests: Record<number, Respond> = {
    ...contentRequests(serving, now),
    ...attributeRequests(serving),
    ...nameRequests(serving),
    [REQUEST.extended]: extensionRequest(serving),
  };

  return {
    async respond(type: number, fields: PacketFields, id: number): Promise<Buffer | undefined> {
      const respond = requests[type];
      if (!respond) throw new SftpFault(STATUS.unsupported, 'there is no such request');
      if (!CHANGES_NOTHING.has(type)) rows.drop();
      if (type !== REQUEST.close) await rows.keepPromise();
      return respond(fields, id);
    },
    /** Opens what the client takes for open, if that was put off. */
    settle: () => rows.keepPromise(),
    isSettled: () => !rows.hasPromised(),
    /** Executes contiguous writes of one handle. Resolves when all have been written. */
    async write(batch: SftpWrite[]): Promise<void> {
      const [first] = batch as [SftpWrite];
      const file = handles.file(first.handle);
      await rows.keepPromise(file);
      rows.drop();
      handles.forget(file);
      const pieces = batch.map((it) => it.piece);
      await writeFile(script, file, offsetOf(first.offset), pieces);
    },
  };
}

/** Creates what all requests of a client use: its machine, its handles, and the paths that it names. */
async function createServing(script: ScriptClient, { memory, software, alone }: Client) {
  const handles = createHandles(memory);
  const { mask, home } = await greet(script);
  const absolute = (path: Buffer) =>
    checked(path)[0] === '/'.charCodeAt(0) ? path : Buffer.concat([home, Buffer.from('/'), path]);
  return {
    ...{ script, memory, software, handles, absolute, rows: createRows(script, memory, alone) },
    ask: async (verb: string, ...words: Word[]) => (await script.ask({ verb, words })).output,
    act: async (verb: string, ...words: Word[]) => void (await script.ask({ verb, words })),
    /** Reads the next path and makes it absolute. */
    pathOf(fields: PacketFields, ifEmpty = ''): Buffer {
      const path = fields.string();
      return absolute(path.length ? path : Buffer.from(ifEmpty));
    },
    async descriptorOf(fields: PacketFields): Promise<number> {
      const file = handles.file(idOf(fields));
      await settle(script, file);
      return file.descriptor;
    },
    /** Returns the permissions of a new file with the machine's umask applied; undefined for its default. */
    permissionsOf: ({ mode }: FileAttributes) => (mode === undefined ? undefined : mode & PERMISSION_BITS & ~mask),
  };
}
type Serving = Awaited<ReturnType<typeof createServing>>;

const idOf = (fields: PacketFields) => handleId(fields.string());
const ended = (id: number) => answer.status(id, STATUS.endOfFile, 'End of file');

/** The requests that open and close files and directories, and read them. */
function contentRequests(serving: Serving, now: () => number): Record<number, Respond> {
  const { script, memory, handles, rows, pathOf, permissionsOf } = serving;
  return {
    async [REQUEST.open](fields, id) {
      const [path, flags, attributes] = [pathOf(fields), fields.uint32(), fields.attributes()];
      const descriptor = handles.freeDescriptor();
      if (flags !== OPEN.read) handles.forget(); // Opening may truncate the file.
      const file = await rows.open({ descriptor, path, flags, permissions: permissionsOf(attributes) });
      const name = handles.keep(file);
      handles.countAhead();
      return answer.handle(id, name);
    },
    async [REQUEST.close](fields) {
      const file = handles.drop(idOf(fields));
      return file && close(serving, file);
    },
    async [REQUEST.read](fields, id) {
      const [file, offset, length] = [handles.file(idOf(fields)), offsetOf(fields.uint64()), fields.uint32()];
      const reading = readFile(script, file, offset, Math.min(length, TRANSFER_BYTES_MAX));
      const bytes = await reading.finally(handles.countAhead);
      return bytes.length || length === 0 ? answer.data(id, bytes) : ended(id);
    },
    async [REQUEST.opendir](fields, id) {
      const [path, answerBytesMax] = [pathOf(fields), handles.freeListingBytes()];
      let bytes = 0;
      const take = (more: number) => {
        const fits = memory.tryTake(more);
        if (fits) bytes += more;
        return fits;
      };
      try {
        const { output, token } = await script.ask({ verb: 'list', words: [path], answerBytesMax, take });
        rows.unlist(path);
        return answer.handle(id, handles.keep({ ...createListing(output, `${token}/`), path, bytes }));
      } catch (error) {
        memory.release(bytes);
        throw error;
      }
    },
    async [REQUEST.readdir](fields, id) {
      const listing = handles.listing(idOf(fields));
      const names = listing.next(now());
      rows.list(listing.path, names);
      return names.length ? answer.names(id, names) : ended(id);
    },
  };
}

/** Closes a file. One that is only promised by then is an empty one. */
async function close({ script, rows }: Serving, file: File): Promise<undefined> {
  await rows.keepPromise(file);
  try {
    if (file.flags !== OPEN.read) await settle(script, file);
  } finally {
    if (!file.order || file.fault) script.close(file.descriptor);
  }
}

/** The requests about the attributes of files. */
function attributeRequests({ script, handles, ask, act, pathOf, descriptorOf }: Serving): Record<number, Respond> {
  async function attributes(id: number, verb: 'stat' | 'lstat', target: Word): Promise<Buffer> {
    return answer.attributes(id, factsOf((await ask(verb, target)).toString()).attributes);
  }
  async function change(target: Word, { size, owner, mode, times }: FileAttributes): Promise<undefined> {
    handles.forget();
    const permissions = mode === undefined ? '-' : (mode & PERMISSION_BITS).toString(8);
    const ids = owner ? `${owner.uid}:${owner.gid}` : '-';
    const dates = [times?.accessed ?? '-', times?.modified ?? '-'];
    return act('change', target, size === undefined ? '-' : String(size), permissions, ids, ...dates);
  }
  async function changeFile(file: File, attributes: FileAttributes): Promise<undefined> {
    const { size, ...others } = attributes;
    // OpenSSH's scp sets the size after every upload.
    if (Object.keys(others).length === 0 && size === BigInt(file.size ?? -1)) return undefined;
    await settle(script, file);
    return change(file.descriptor, attributes);
  }
  return {
    [REQUEST.stat]: (fields, id) => attributes(id, 'stat', pathOf(fields)),
    [REQUEST.lstat]: (fields, id) => attributes(id, 'lstat', pathOf(fields)),
    [REQUEST.fstat]: async (fields, id) => attributes(id, 'stat', await descriptorOf(fields)),
    [REQUEST.setstat]: (fields) => change(pathOf(fields), fields.attributes()),
    [REQUEST.fsetstat]: (fields) => changeFile(handles.file(idOf(fields)), fields.attributes()),
  };
}

/** The requests about names: what they name, and other names in their place. */
function nameRequests({ software, ask, act, absolute, pathOf, permissionsOf }: Serving): Record<number, Respond> {
  const named = (id: number, name: Buffer) => answer.names(id, [{ name, longName: name, attributes: {} }]);
  return {
    [REQUEST.remove]: (fields) => act('remove', pathOf(fields)),
    [REQUEST.mkdir]: (fields) => act('mkdir', pathOf(fields), permissionsOf(fields.attributes())?.toString(8) ?? '-'),
    [REQUEST.rmdir]: (fields) => act('rmdir', pathOf(fields)),
    [REQUEST.rename]: (fields) => act('rename', pathOf(fields), pathOf(fields), 'keep'),
    [REQUEST.symlink](fields) {
      const [one, other] = [fields.string(), fields.string()];
      const [points, path] = SENDS_TARGET_FIRST.test(software) ? [one, other] : [other, one];
      return act('link', checked(points), absolute(path), 'symbolic');
    },
    [REQUEST.readlink]: async (fields, id) => named(id, await ask('follow', pathOf(fields))),
    // The output ends with a newline that is not part of the name.
    [REQUEST.realpath]: async (fields, id) => named(id, (await ask('real', pathOf(fields, '.'))).subarray(0, -1)),
  };
}

/** Creates what answers the requests that extensions of the protocol define. */
function extensionRequest({ ask, act, pathOf, descriptorOf }: Serving): Respond {
  async function space(id: number, target: Word): Promise<Buffer> {
    const numbers = (await ask('space', target)).toString().trim().split(' ');
    if (numbers.length !== 8 || !numbers.every((it) => /^\d{1,19}$/.test(it)))
      throw new SftpFault(STATUS.failure, 'what the machine says of its space cannot be understood');
    const [nameMax, nodesFree, ...others] = numbers.reverse().map((it) => uint64(BigInt(it))) as [Buffer, Buffer];
    const unknown = uint64(0n); // The file system's id and flags.
    return answer.extended(id, ...others.reverse(), nodesFree, nodesFree, unknown, unknown, nameMax);
  }
  const extensions: Record<string, Respond> = {
    'posix-rename@openssh.com': (fields) => act('rename', pathOf(fields), pathOf(fields), 'replace'),
    'hardlink@openssh.com': (fields) => act('link', pathOf(fields), pathOf(fields), 'hard'),
    'fsync@openssh.com': async (fields) => act('sync', await descriptorOf(fields)),
    'statvfs@openssh.com': (fields, id) => space(id, pathOf(fields)),
    'fstatvfs@openssh.com': async (fields, id) => space(id, await descriptorOf(fields)),
    'limits@openssh.com': async (_, id) => {
      const limits = [PACKET_BYTES_MAX, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MAX, DESCRIPTORS.length];
      return answer.extended(id, ...limits.map((it) => uint64(BigInt(it))));
    },
  };
  return async (fields, id) => {
    const name = fields.string().toString();
    const respond = Object.hasOwn(extensions, name) ? extensions[name] : undefined;
    if (!respond) throw new SftpFault(STATUS.unsupported, 'there is no such extension here');
    return respond(fields, id);
  };
}

/** Returns the path unchanged. Throws SftpFault when it cannot be a path. */
function checked(path: Buffer): Buffer {
  if (path.length === 0) throw new SftpFault(STATUS.noSuchFile, 'the path is empty');
  if (path.length > PATH_BYTES_MAX || path.includes(0)) throw new SftpFault(STATUS.badMessage, 'no path can be that');
  return path;
}

/** Reads the machine's umask and the directory that relative paths start from. */
async function greet(script: ScriptClient): Promise<{ mask: number; home: Buffer }> {
  const { output, token } = await script.ask({ verb: 'hello' });
  // The shell may have printed something before.
  const match = new RegExp(`${token}/([0-7]{1,4}) (/.*)$`, 's').exec(output.toString('latin1'));
  if (!match) throw new SftpFault(STATUS.failure, 'what the machine says of itself cannot be understood');
  return { mask: Number.parseInt(match[1] as string, 8), home: Buffer.from(match[2] as string, 'latin1') };
}
