import { Duplex, type Readable } from 'node:stream';

/**
 * Purser's side of a lease's way out: the connections of a lease as streams, over the input and output of the program inside
 * (compute/kit/watchdog/egress.h, which says what the frames mean). What comes is checked, since it comes from a tenant's machine.
 */

const KIND = { open: 1, data: 2, end: 3, close: 4, credit: 5, ping: 6 } as const;
type Kind = (typeof KIND)[keyof typeof KIND];

const HEAD_BYTES = 4;
/** The connections of a lease at a time. */
export const STREAM_COUNT_MAX = 64;
const PIECE_BYTES_MAX = 16 * 1024;
/**
 * The bytes that either side may have under way in a stream. A piece that comes costs its length and PIECE_COST more: pieces of one
 * byte would otherwise take a hundred times the memory that is counted.
 */
export const WINDOW = 64 * 1024;
export const PIECE_COST = 256;
/** A program that says nothing for this long is gone. It is asked four times within that. */
const SILENCE_MILLISECONDS = 60_000;

/** The program has sent what no such program sends, or nothing for too long. */
export class LineBroken extends Error {}

type Frame = { kind: Kind; stream: number; content: Buffer };

/** Creates a reader of frames, which calls `take` with each whole one. Work and memory are in proportion to what comes. */
export function createFrameReader(take: (frame: Frame) => void): (piece: Buffer) => void {
  const head = Buffer.alloc(HEAD_BYTES);
  let headLength = 0;
  let content = Buffer.alloc(0);
  let contentLength = 0;
  return (piece) => {
    for (let at = 0; at < piece.length; ) {
      if (headLength < HEAD_BYTES) {
        const copied = piece.copy(head, headLength, at);
        headLength += copied;
        at += copied;
        if (headLength < HEAD_BYTES) return;
        const length = head.readUInt16BE(2);
        const [kind, stream] = head as unknown as [number, number];
        const isSound = kind >= KIND.open && kind <= KIND.ping && stream < STREAM_COUNT_MAX;
        const wanted =
          kind === KIND.data ? length > 0 && length <= PIECE_BYTES_MAX : length === (kind === KIND.credit ? 4 : 0);
        if (!isSound || !wanted) throw new LineBroken('the program of the way out sends no frames');
        content = Buffer.allocUnsafeSlow(length);
        contentLength = 0;
      }
      const copied = piece.copy(content, contentLength, at);
      contentLength += copied;
      at += copied;
      if (contentLength < content.length) return;
      headLength = 0;
      take({ kind: head[0] as Kind, stream: head[1] as number, content });
    }
  };
}

const frameOf = (kind: Kind, stream: number, content: Buffer = Buffer.alloc(0)): Buffer => {
  const head = Buffer.from([kind, stream, content.length >> 8, content.length & 255]);
  return content.length ? Buffer.concat([head, content]) : head;
};

/** One connection of the lease. */
class LeaseStream extends Duplex {
  readonly #line: StreamLine;
  readonly #number: number;
  /** Pieces that came and were not read, each with its cost. */
  #waiting: Buffer[] = [];
  #wantsMore = false;
  #hasEnded = false;
  #hasSentEnd = false;
  /** The credit that the program still has, and the credit of pieces that were read, which is not yet given back. */
  #room = WINDOW;
  #owed = 0;
  /** The bytes that may still be sent, and the write that waits for them. */
  #credit = WINDOW;
  #unsent: { rest: Buffer; done: (error?: Error | null) => void } | undefined;
  isClosedThere = false;

  constructor(line: StreamLine, number: number) {
    super({ readableHighWaterMark: 1, writableHighWaterMark: 1, allowHalfOpen: true });
    this.#line = line;
    this.#number = number;
  }

  /** Takes what came. Throws LineBroken where the program may not send it. */
  takeData(piece: Buffer): void {
    this.#room -= piece.length + PIECE_COST;
    if (this.#room < -PIECE_COST || this.#hasEnded)
      throw new LineBroken('the program of the way out sends more than it may');
    if (this.destroyed) return;
    this.#waiting.push(piece);
    this.#line.touch(this);
  }
  takeEnd(): void {
    this.#hasEnded = true;
    this.passOn();
  }
  takeCredit(amount: number): void {
    this.#credit += amount;
    if (this.#credit > WINDOW) throw new LineBroken('the program of the way out gives more credit than there is');
    this.send();
  }
  takeClose(): void {
    this.isClosedThere = true;
    // Where both have said everything, the rest can still be read.
    if (!this.#hasEnded || !this.#hasSentEnd) this.destroy();
  }

  /** Passes on all that waits, in one piece, whenever more is wanted: many small pieces are one write, and one credit. */
  passOn(): void {
    while (this.#wantsMore && this.#waiting.length) {
      const pieces = this.#waiting;
      this.#waiting = [];
      this.#owed = pieces.reduce((sum, it) => sum + it.length + PIECE_COST, 0);
      this.#giveBack();
      this.#wantsMore = this.push(Buffer.concat(pieces));
    }
    if (this.#hasEnded && !this.#waiting.length) this.push(null);
  }
  #giveBack(): void {
    if (!this.isClosedThere && !this.#hasEnded) {
      const amount = Buffer.alloc(4);
      amount.writeUInt32BE(this.#owed);
      this.#line.send(KIND.credit, this.#number, amount);
      this.#room += this.#owed;
    }
    this.#owed = 0;
  }

  override _read(): void {
    this.#wantsMore = true;
    this.passOn();
  }
  override _write(piece: Buffer, _: unknown, done: (error?: Error | null) => void): void {
    this.#unsent = { rest: piece, done };
    this.send();
  }
  /** Sends what may be sent. */
  send(): void {
    while (this.#unsent && !this.destroyed) {
      const { rest, done } = this.#unsent;
      if (rest.length === 0) {
        this.#unsent = undefined;
        done();
        return;
      }
      const count = Math.min(rest.length, this.#credit, PIECE_BYTES_MAX);
      if (count === 0 || !this.#line.hasRoom()) return;
      this.#credit -= count;
      this.#unsent.rest = rest.subarray(count);
      this.#line.send(KIND.data, this.#number, rest.subarray(0, count));
    }
  }
  override _final(done: () => void): void {
    this.#hasSentEnd = true;
    this.#line.send(KIND.end, this.#number);
    done();
  }
  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#waiting = [];
    this.#unsent = undefined;
    this.#line.sendClose(this.#number);
    done(error);
  }
  /** The bytes that it keeps, those that were read and not yet taken from it included. */
  get keptBytes(): number {
    return this.#waiting.reduce((sum, it) => sum + it.length, this.readableLength + this.writableLength);
  }
}

/** What a stream needs of its line. */
type StreamLine = {
  send(kind: Kind, stream: number, content?: Buffer): void;
  sendClose(stream: number): void;
  /** Has `passOn` called once all that has come is read. */
  touch(stream: LeaseStream): void;
  /** Returns whether the engine takes more. If not, `send` of every stream is called once it does. */
  hasRoom(): boolean;
};

/** The program's input and output, and its end. */
export type LineSession = {
  stdin: NodeJS.WritableStream;
  stdout: Readable;
  ended: Promise<unknown>;
  kill(): void;
  /** True if the machine was made with secrets: then it trusts the authority of its lease. */
  hasSecrets?: boolean;
};

export type Line = {
  /** Resolves once the program listens inside. Rejects if it cannot. */
  ready: Promise<void>;
  /** Resolves to the reason when the line is over; its streams are destroyed then. Never rejects. */
  over: Promise<Error>;
  streamCount(): number;
  /** Bytes that its streams keep in memory. */
  keptBytes(): number;
  /** Ends the program and every stream. */
  close(): void;
};

/** Opens the streams of a program that has started. `accept` is called with each new one. */
export function openLine(session: LineSession, accept: (stream: Duplex) => void, silence = SILENCE_MILLISECONDS): Line {
  const { stdin, stdout } = session;
  const streams = new Map<number, LeaseStream>();
  const ready = Promise.withResolvers<void>();
  const over = Promise.withResolvers<Error>();
  ready.promise.catch(() => {}); // Callers get it; this only avoids an unhandled one.
  const touched = new Set<LeaseStream>();
  let isOver = false;
  let isFull = false;
  let heardAt = performance.now();

  function end(reason: Error): void {
    if (isOver) return;
    isOver = true;
    clearInterval(asking);
    for (const stream of streams.values()) stream.destroy();
    streams.clear();
    session.kill();
    ready.reject(reason);
    over.resolve(reason);
  }

  const forget = (number: number) => {
    const stream = streams.get(number);
    if (stream?.isClosedThere && stream.destroyed) streams.delete(number);
  };
  const line: StreamLine = {
    send(kind, stream, content) {
      if (!isOver && stdin.writable) isFull = !stdin.write(frameOf(kind, stream, content));
    },
    sendClose(number) {
      line.send(KIND.close, number);
      setImmediate(forget, number); // It counts as destroyed only after this call.
    },
    touch: (stream) => void touched.add(stream),
    hasRoom: () => !isFull,
  };

  function take({ kind, stream: number, content }: Frame): void {
    heardAt = performance.now();
    if (kind === KIND.ping) {
      ready.resolve();
      return;
    }
    if (kind === KIND.open) {
      forget(number);
      if (streams.has(number)) throw new LineBroken('the program of the way out opens a stream twice');
      const stream = new LeaseStream(line, number);
      stream.on('error', () => {}); // `close` follows.
      streams.set(number, stream);
      accept(stream);
      return;
    }
    const stream = streams.get(number);
    if (!stream || stream.isClosedThere)
      throw new LineBroken('the program of the way out names a stream that is not open');
    if (kind === KIND.data) stream.takeData(content);
    else if (kind === KIND.end) stream.takeEnd();
    else if (kind === KIND.credit) stream.takeCredit(content.readUInt32BE());
    else {
      stream.takeClose();
      forget(number);
    }
  }

  const asking = setInterval(() => {
    if (performance.now() - heardAt > silence) return end(new LineBroken('the program of the way out is silent'));
    line.send(KIND.ping, 0);
  }, silence / 4).unref();
  const read = createFrameReader(take);
  stdout.on('data', (piece: Buffer) => {
    if (isOver) return;
    try {
      read(piece);
      for (const stream of touched) stream.passOn();
      touched.clear();
    } catch (error) {
      end(error as Error);
    }
  });
  stdin.on('drain', () => {
    isFull = false;
    for (const stream of streams.values()) stream.send();
  });
  for (const it of [stdin, stdout]) it.on('error', end);
  session.ended.then(
    (how) => end(new Error(`the program of the way out has ended: ${JSON.stringify(how)}`)),
    (error: Error) => end(error),
  );
  return {
    ready: ready.promise,
    over: over.promise,
    streamCount: () => streams.size,
    keptBytes: () => [...streams.values()].reduce((sum, it) => sum + it.keptBytes, 0),
    close: () => end(new Error('the way out was closed')),
  };
}
