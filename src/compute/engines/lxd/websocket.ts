import { randomBytes } from 'node:crypto';
import { Duplex } from 'node:stream';
import { WAITING } from '../../machine/waiting.ts';

/**
 * The part of WebSockets (RFC 6455) that the exec of LXD and Incus needs, on a connection that was upgraded already.
 *
 * The package `ws` does not keep these limits. Its `pause()` does not stop data that it has read: of 64 KiB in frames of one byte,
 * as from a command that writes single bytes, all the others still come as messages. It takes six times as long for them, and holds
 * a fragmented message until the last fragment.
 */

const CONTINUATION = 0;
const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const FINAL = 0x80;
const MASKED = 0x80;
const MASK_BYTES = 4;
/** The longest head of a frame that is not masked. */
const HEAD_BYTES_MAX = 10;

/** Encodes one frame, masked as a client's has to be. */
export function frame(opcode: number, payload: Buffer): Buffer {
  const { length } = payload;
  const extended = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const bytes = Buffer.allocUnsafe(2 + extended + MASK_BYTES + length);
  bytes[0] = FINAL | opcode;
  bytes[1] = MASKED | (extended === 0 ? length : extended === 2 ? 126 : 127);
  if (extended === 2) bytes.writeUInt16BE(length, 2);
  if (extended === 8) bytes.writeBigUInt64BE(BigInt(length), 2);
  const mask = randomBytes(MASK_BYTES);
  const begin = 2 + extended + MASK_BYTES;
  mask.copy(bytes, begin - MASK_BYTES);
  for (let at = 0; at < length; at++)
    bytes[begin + at] = (payload[at] as number) ^ (mask[at & (MASK_BYTES - 1)] as number);
  return bytes;
}

/**
 * The binary messages of one WebSocket as a stream of bytes. Either side marks the end of its data with a text message. The stream
 * is read no faster than its reader reads. It never fails: a broken connection ends it, and `isWhole` stays false.
 *
 * Pings are not answered: LXD and Incus do not wait for that. And Node at once closes a connection that can no longer be written,
 * together with all unread input.
 */
export class MessageStream extends Duplex {
  /** True once the other side has marked the end of its data. */
  isWhole = false;
  readonly #socket: Duplex;
  /** The head of the next frame, as far as it has come. */
  readonly #head = Buffer.alloc(HEAD_BYTES_MAX);
  #headBytes = 0;
  /** The frame whose payload is being read: its opcode, and the bytes that are still to come. */
  #opcode = 0;
  #left = 0;
  /** The opcode of the message that continuation frames belong to. */
  #message = BINARY;
  /** The payloads in the current chunk, one behind the other. */
  #payloads: Buffer = Buffer.alloc(0);
  #payloadBytes = 0;

  constructor(socket: Duplex) {
    super({ ...WAITING, autoDestroy: false });
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => this.#take(chunk));
    this.on('error', () => {}); // For a write after the other side has marked its end.
    const end = () => this.#over();
    socket.once('end', end).once('close', end).on('error', end);
  }

  /** Sends a text message. */
  say(text: string): void {
    this.#send(TEXT, Buffer.from(text));
  }

  override _read() {
    this.#socket.resume();
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void) {
    // The reader is gone, which is no fault of the writer.
    if (!this.#socket.writable) return done();
    this.#socket.write(frame(BINARY, chunk), () => done());
  }

  override _final(done: () => void) {
    this.#send(TEXT, Buffer.alloc(0));
    done();
  }

  override _destroy(_: Error | null, done: (error: Error | null) => void) {
    this.#socket.destroy();
    done(null);
  }

  #send(opcode: number, payload: Buffer) {
    if (this.#socket.writable) this.#socket.write(frame(opcode, payload));
  }

  #over() {
    if (!this.readableEnded) this.push(null);
    this.#socket.destroy();
  }

  /** Passes on the payloads of a chunk in one piece: frames of one byte would otherwise make thousands of pieces. */
  #take(chunk: Buffer) {
    this.#payloads = Buffer.allocUnsafe(chunk.length);
    for (let at = 0; at < chunk.length; )
      if (this.#left > 0) {
        const end = Math.min(chunk.length, at + this.#left);
        this.#left -= end - at;
        this.#payload(chunk, at, end);
        at = end;
      } else {
        this.#head[this.#headBytes++] = chunk[at++] as number;
        if (this.#headBytes >= 2 && this.#headBytes === headLength(this.#head)) this.#begin();
      }
    this.#give();
  }

  /** Reads the head of a frame. */
  #begin() {
    const head = this.#head;
    this.#headBytes = 0;
    const kind = (head[1] as number) & 0x7f;
    this.#opcode = (head[0] as number) & 0x0f;
    this.#left = kind === 126 ? head.readUInt16BE(2) : kind === 127 ? Number(head.readBigUInt64BE(2)) : kind;
    if (this.#opcode === TEXT || this.#opcode === BINARY) this.#message = this.#opcode;
    if (this.#left === 0) this.#end();
  }

  #payload(chunk: Buffer, start: number, end: number) {
    const isData = this.#opcode === CONTINUATION || this.#opcode === BINARY;
    if (isData && this.#message === BINARY && !this.isWhole)
      this.#payloadBytes += chunk.copy(this.#payloads, this.#payloadBytes, start, end);
    if (this.#left === 0) this.#end();
  }

  #give() {
    if (this.#payloadBytes === 0) return;
    const bytes = this.#payloads.subarray(0, this.#payloadBytes);
    this.#payloads = this.#payloads.subarray(this.#payloadBytes);
    this.#payloadBytes = 0;
    if (!this.push(bytes)) this.#socket.pause();
  }

  /** Handles the end of a frame. */
  #end() {
    if (this.#opcode === TEXT && !this.isWhole) {
      this.#give();
      this.isWhole = true;
      this.push(null);
      this.end(); // The other side waits for it where one connection carries both directions.
    }
    if (this.#opcode === CLOSE) {
      this.#give();
      this.#send(CLOSE, Buffer.alloc(0));
      this.#over();
    }
  }
}

/** Returns the length of a frame's head, from its first two bytes. The payload of a server is never masked. */
function headLength(head: Buffer): number {
  const kind = (head[1] as number) & 0x7f;
  return 2 + (kind === 126 ? 2 : kind === 127 ? 8 : 0);
}
