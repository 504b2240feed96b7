import type { Duplex } from 'node:stream';
import type { Ref } from '../../backend.ts';
import { STATUS } from '../../machine/sftp-fault.ts';
import {
  createPacketReader,
  type PacketFields,
  packet,
  REQUEST,
  RESPONSE,
  readFields,
  string,
  uint32,
  VERSION,
} from '../../machine/sftp-wire.ts';
import { type LxdApi, LxdRefusal, textOf } from './api.ts';

/**
 * LXD's SFTP into an instance that does not run: what is where on its disk. Nothing is opened but directories: LXD would wait for the
 * other end of a pipe, and could never remove the instance again.
 */

/** The bits of a mode that hold the kind of file (inode(7)). */
const KIND = { mask: 0o170000, file: 0o100000, directory: 0o040000 } as const;

/** A name in a directory: its bytes, each as one character. */
export type DiskEntry = {
  name: string;
  size: number;
  /** The names that its file has; 1 for a directory. */
  links: number;
  isDirectory: boolean;
};
export type DiskReader = {
  /** Yields what is in a directory, in the parts that LXD sends. */
  entriesOf(directory: string): AsyncGenerator<DiskEntry[]>;
  /** Returns whether a plain file is there, and neither a link nor a pipe. */
  isFile(path: string): Promise<boolean>;
};

/** Connects to an instance for as long as `work` lasts. Throws where that is longer than `milliseconds`, and what else fails. */
export async function readDisk<T>(
  lxd: LxdApi,
  ref: Ref,
  milliseconds: number,
  work: (disk: DiskReader) => Promise<T>,
): Promise<T> {
  const connection = await lxd.upgrade(`/1.0/instances/${ref}/sftp`, 'sftp');
  const requests = createRequests(connection);
  const limit = setTimeout(() => requests.fail(new Error(`not done within ${milliseconds / 1000} s`)), milliseconds);
  try {
    await requests.ask(REQUEST.init, uint32(VERSION));
    return await work(createReader(requests));
  } finally {
    clearTimeout(limit);
    connection.destroy();
  }
}

const LOOK_MILLISECONDS = 30_000;
/** Returns those of the paths at which an instance that does not run has a plain file. Throws LxdRefusal where that cannot be seen. */
export const filesAmong = (lxd: LxdApi, ref: Ref, paths: readonly string[]): Promise<string[]> =>
  readDisk(lxd, ref, LOOK_MILLISECONDS, async ({ isFile }) => {
    const files = await Promise.all(paths.map(isFile));
    return paths.filter((_, at) => files[at]);
  }).catch((error) => {
    throw new LxdRefusal(`its files cannot be seen: ${textOf(error)}`, 400);
  });

const bytesOf = (path: string) => string(Buffer.from(path, 'latin1'));
const kindOf = (mode = 0) => mode & KIND.mask;

function createReader({ ask }: SftpRequests): DiskReader {
  return {
    async *entriesOf(directory) {
      const opened = await ask(REQUEST.opendir, bytesOf(directory));
      if (opened.kind !== RESPONSE.handle) throw refusalOf(opened);
      const handle = string(opened.fields.string());
      for (;;) {
        const listed = await ask(REQUEST.readdir, handle);
        if (listed.kind === RESPONSE.name) {
          yield entriesIn(listed.fields);
          continue;
        }
        const refusal = refusalOf(listed);
        if (refusal.status !== STATUS.endOfFile) throw refusal;
        await ask(REQUEST.close, handle);
        return;
      }
    },

    async isFile(path) {
      const looked = await ask(REQUEST.lstat, bytesOf(path));
      if (looked.kind === RESPONSE.attributes) return kindOf(looked.fields.attributes().mode) === KIND.file;
      const refusal = refusalOf(looked);
      if (refusal.status === STATUS.noSuchFile) return false;
      throw refusal;
    },
  };
}

function entriesIn(fields: PacketFields): DiskEntry[] {
  const entries: DiskEntry[] = [];
  for (let left = fields.uint32(); left > 0; left--) {
    const name = fields.string().toString('latin1');
    const line = fields.string().toString('latin1'); // As `ls -l` prints it: the only place that has the number of names.
    const { size = 0n, mode } = fields.attributes();
    const isDirectory = kindOf(mode) === KIND.directory;
    const links = isDirectory ? 1 : Math.max(1, Number(/^\S+ +(\d+) /.exec(line)?.[1] ?? 1));
    if (name !== '.' && name !== '..') entries.push({ name, size: Number(size), links, isDirectory });
  }
  return entries;
}

type SftpAnswer = { kind: number; fields: PacketFields };
type SftpRequests = { ask(kind: number, body: Buffer): Promise<SftpAnswer>; fail(error: Error): void };

/** Returns the error for an answer that is a status, and that status. Throws for any other. */
function refusalOf({ kind, fields }: SftpAnswer): Error & { status: number } {
  if (kind !== RESPONSE.status) throw new Error(`LXD answers an SFTP request with a packet ${kind}`);
  const status = fields.uint32();
  return Object.assign(new Error(fields.string().toString().slice(0, 200)), { status });
}

/** Creates the requests of one connection. Any number may be under way. */
function createRequests(connection: Duplex): SftpRequests {
  const pending = new Map<number, PromiseWithResolvers<SftpAnswer>>();
  let nextId = 1;
  let failure: Error | undefined;

  function fail(error: Error): void {
    failure ??= error;
    for (const it of pending.values()) it.reject(failure);
    pending.clear();
  }
  async function readAll(): Promise<never> {
    const packets = createPacketReader(connection);
    for (;;) {
      const received = await packets.next();
      if (!received) throw new Error('the SFTP connection to LXD has ended');
      const fields = readFields(received);
      const kind = fields.byte();
      // The answer to the first request has no number.
      const id = kind === RESPONSE.version ? 0 : fields.uint32();
      pending.get(id)?.resolve({ kind, fields });
      pending.delete(id);
    }
  }
  readAll().catch(fail);

  return {
    fail,
    async ask(kind, body) {
      if (failure) throw failure;
      const id = kind === REQUEST.init ? 0 : nextId++;
      const answer = Promise.withResolvers<SftpAnswer>();
      pending.set(id, answer);
      connection.write(packet(kind, ...(id === 0 ? [] : [uint32(id)]), body));
      return answer.promise;
    },
  };
}
