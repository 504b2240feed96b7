import type { Readable } from 'node:stream';
import type { FileAttributes } from './sftp-facts.ts';
import type { SftpStatus } from './sftp-fault.ts';

/**
 * The packets of the SSH File Transfer Protocol, version 3 (draft-ietf-secsh-filexfer-02, and OpenSSH's PROTOCOL file for
 * its extensions). File names are kept as bytes, as they need not be text.
 */

export const REQUEST = {
  init: 1,
  open: 3,
  close: 4,
  read: 5,
  write: 6,
  lstat: 7,
  fstat: 8,
  setstat: 9,
  fsetstat: 10,
  opendir: 11,
  readdir: 12,
  remove: 13,
  mkdir: 14,
  rmdir: 15,
  realpath: 16,
  stat: 17,
  rename: 18,
  readlink: 19,
  symlink: 20,
  extended: 200,
} as const;
export const RESPONSE = {
  version: 2,
  status: 101,
  handle: 102,
  data: 103,
  name: 104,
  attributes: 105,
  extended: 201,
} as const;
export const OPEN = { read: 1, write: 2, append: 4, create: 8, truncate: 16, exclusive: 32 } as const;
const ATTRIBUTE = { size: 1, owner: 2, mode: 4, times: 8, extended: 0x80000000 } as const;

export const VERSION = 3;
/** The longest packet, as in OpenSSH's server. */
export const PACKET_BYTES_MAX = 256 * 1024;

/** The client violates the protocol, so nothing after this packet can be parsed. */
export class MalformedPacket extends Error {}

export type PacketFields = ReturnType<typeof readFields>;

/** Reads the fields of a packet in order. Throws MalformedPacket beyond its end. */
export function readFields(packet: Buffer) {
  let at = 0;
  const take = (bytes: number) => {
    if (at + bytes > packet.length) throw new MalformedPacket('a packet ends in the middle of a field');
    at += bytes;
    return at - bytes;
  };
  const byte = () => packet.readUInt8(take(1));
  const uint32 = () => packet.readUInt32BE(take(4));
  const uint64 = () => packet.readBigUInt64BE(take(8));
  const string = () => {
    const length = uint32();
    const from = take(length);
    return packet.subarray(from, from + length);
  };
  return {
    byte,
    uint32,
    uint64,
    string,
    attributes(): FileAttributes {
      const flags = uint32();
      const attributes: FileAttributes = {};
      if (flags & ATTRIBUTE.size) attributes.size = uint64();
      if (flags & ATTRIBUTE.owner) attributes.owner = { uid: uint32(), gid: uint32() };
      if (flags & ATTRIBUTE.mode) attributes.mode = uint32();
      if (flags & ATTRIBUTE.times) attributes.times = { accessed: uint32(), modified: uint32() };
      if (flags & ATTRIBUTE.extended)
        for (let pairs = uint32(); pairs > 0; pairs--) {
          string();
          string();
        }
      return attributes;
    },
  };
}

/** Encodes a uint32, big-endian (RFC 4251, section 5). */
export const uint32 = (value: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
};
/** Encodes a uint64, big-endian (RFC 4251, section 5). */
export const uint64 = (value: bigint) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(value);
  return bytes;
};
/** Encodes a string: its length in bytes as a uint32, then the bytes (RFC 4251, section 5). */
export const string = (content: Buffer | string) => {
  const bytes = typeof content === 'string' ? Buffer.from(content) : content;
  return Buffer.concat([uint32(bytes.length), bytes]);
};

function attributesOf({ size, owner, mode, times }: FileAttributes): Buffer {
  const parts: Buffer[] = [];
  let flags = 0;
  const add = (flag: number, ...fields: Buffer[]) => {
    flags |= flag;
    parts.push(...fields);
  };
  if (size !== undefined) add(ATTRIBUTE.size, uint64(size));
  if (owner) add(ATTRIBUTE.owner, uint32(owner.uid), uint32(owner.gid));
  if (mode !== undefined) add(ATTRIBUTE.mode, uint32(mode));
  if (times) add(ATTRIBUTE.times, uint32(times.accessed), uint32(times.modified));
  return Buffer.concat([uint32(flags), ...parts]);
}

/** Builds a packet of a type. */
export function packet(type: number, ...fields: Buffer[]): Buffer {
  const length = fields.reduce((sum, it) => sum + it.length, 1);
  return Buffer.concat([uint32(length), Buffer.of(type), ...fields]);
}

export type NamedFile = { name: Buffer; longName: Buffer; attributes: FileAttributes };

/** Builds the response packets. `id` is that of the request. */
export const answer = {
  version: (extensions: Record<string, string>) =>
    packet(RESPONSE.version, uint32(VERSION), ...Object.entries(extensions).flat().map(string)),
  status: (id: number, status: SftpStatus, message: string) =>
    packet(RESPONSE.status, uint32(id), uint32(status), string(message), string('')),
  handle: (id: number, handle: Buffer) => packet(RESPONSE.handle, uint32(id), string(handle)),
  data: (id: number, bytes: Buffer) => packet(RESPONSE.data, uint32(id), uint32(bytes.length), bytes),
  names: (id: number, names: NamedFile[]) =>
    packet(
      RESPONSE.name,
      uint32(id),
      uint32(names.length),
      ...names.flatMap((it) => [string(it.name), string(it.longName), attributesOf(it.attributes)]),
    ),
  attributes: (id: number, attributes: FileAttributes) =>
    packet(RESPONSE.attributes, uint32(id), attributesOf(attributes)),
  extended: (id: number, ...fields: Buffer[]) => packet(RESPONSE.extended, uint32(id), ...fields),
};

export type PacketReader = {
  /** Returns the next packet without its length, or undefined at the end of the stream. Throws MalformedPacket. */
  next(): Promise<Buffer | undefined>;
  /** Returns the packet that `next` will return, if it has arrived completely. Throws MalformedPacket. */
  peek(): Buffer | undefined;
};

/** Reads packets from a stream one at a time, so that back-pressure reaches the client. */
export function createPacketReader(source: Readable): PacketReader {
  let length: number | undefined;
  let packet: Buffer | undefined;
  let hasEnded = false;
  let wake = () => {};
  source.on('readable', () => wake());
  for (const event of ['end', 'close', 'error'])
    source.on(event, () => {
      hasEnded = true;
      wake();
    });

  /** Reads `bytes` bytes, or returns undefined until they have arrived. */
  function take(bytes: number): Buffer | undefined {
    const taken = source.read(bytes) as Buffer | null;
    return taken?.length === bytes ? taken : undefined; // At its end a stream returns the rest.
  }
  function peek(): Buffer | undefined {
    if (length === undefined) {
      length = take(4)?.readUInt32BE();
      if (length === undefined) return undefined;
      if (length < 1 || length > PACKET_BYTES_MAX) throw new MalformedPacket(`a packet has ${length} bytes`);
    }
    packet ??= take(length);
    return packet;
  }
  return {
    peek,
    async next() {
      for (;;) {
        const found = peek();
        if (found) {
          packet = undefined;
          length = undefined;
          return found;
        }
        if (hasEnded) return undefined;
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
  };
}
