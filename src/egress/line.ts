import { Duplex, type Readable } from 'node:stream';

/**
 * Purser's side of a lease's way out: the connections of a lease as streams, over the input and output of the program inside
 * (compute/kit/watchdog/egress.h defines the frames). Input is checked, since it comes from a tenant's machine.
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
/** Less than this is sent only if it is all there is: a program may give credit byte by byte, and each frame is a message. */
const PIECE_BYTES_LEAST = 1024;
/** The frames that may wait for the engine, however small they are: a program may read nothing. */
const FRAME_COUNT_MAX = 256;
/**
 * The delay after which closed streams are reported to the program, which only then may use their numbers again. So a lease opens
 * at most STREAM_COUNT_MAX connections in this time.
 */
const CLOSE_MILLISECONDS = 20;
/** A program that sends nothing for this long is gone. It is asked four times within that. */
const SILENCE_MILLISECONDS = 60_000;

/** The program has sent what no such program sends, or nothing for too long. */
export class LineBroken extends Error {}

type Frame = { kind: Kind; stream: number; content: Buffer };

const EMPTY = Buffer.alloc(0);

/** Creates a reader of frames, which calls `take` with each whole one. Work and memory are in proportion to what comes. */
export function createFrameReader(take: (frame: Frame) => void): (piece: Buffer) => void {
  const head = Buffer.alloc(HEAD_BYTES);
  let headLength = 0;
  let content: Buffer = EMPTY;
  let contentLength = 0;
  return (piece) => {
    for (let at = 0; at < piece.length; ) {
      if (headLength < HEAD_BYTES) {
        head[headLength++] = piece[at++] as number;
        if (headLength < HEAD_BYTES) continue;
        const length = head.readUInt16BE(2);
        const [kind, stream] = [head[0] as number, head[1] as number];
        const isSound = kind >= KIND.open && kind <= KIND.ping && stream < STREAM_COUNT_MAX;
        const wanted =
          kind === KIND.data ? length > 0 && length <= PIECE_BYTES_MAX : length === (kind === KIND.credit ? 4 : 0);
        if (!isSound || !wanted) throw new LineBroken('the program of the way out sends no frames');
        content = length ? Buffer.allocUnsafeSlow(length) : EMPTY; // A program may send nothing but frames without content.
        contentLength = 0;
      }
      if (contentLength < content.length) {
        const copied = piece.copy(content, contentLength, at);
        contentLength += copied;
        at += copied;
        if (contentLength < content.length) return;
      }
      headLength = 0;
      take({ kind: head[0] as Kind, stream: head[1] as number, content });
    }
  };
}

const frameOf = (kind: Kind, stream: number, content: Buffer = EMPTY): Buffer => {
  const head = Buffer.from([kind, stream, content.length >> 8, content.length & 255]);
  return content.length ? Buffer.concat([head, content]) : head;
};

/** A connection of the lease. */
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
    // Where both sides have ended, the rest can still be read.
    if (!this.#hasEnded || !this.#hasSentEnd) this.destroy();
  }

  /** Passes on all that waits, in one piece, whenever more is wanted: many small pieces are one write, and one credit. */
  passOn(): void {
    while (this.#wantsMore && this.#waiting.length) {
      const pieces = this.#waiting;
      this.#waiting = [];
      this.#owed += pieces.reduce((sum, it) => sum + it.length + PIECE_COST, 0);
      this.giveBack();
      this.#wantsMore = this.push(Buffer.concat(pieces));
    }
    if (this.#hasEnded && !this.#waiting.length) this.push(null);
  }
  /** Gives back credit, unless the engine takes no more. */
  giveBack(): void {
    if (!this.#owed || this.isClosedThere || this.#hasEnded || this.destroyed || !this.#line.hasRoom()) return;
    const amount = Buffer.alloc(4);
    amount.writeUInt32BE(this.#owed);
    this.#line.send(KIND.credit, this.#number, amount);
    this.#room += this.#owed;
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
      if (count < Math.min(rest.length, PIECE_BYTES_LEAST) || !this.#line.hasRoom()) return;
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

/** The part of a line that a stream needs. */
type StreamLine = {
  send(kind: Kind, stream: number, content?: Buffer): void;
  /** Reports that a stream is closed, soon. */
  sendClose(stream: number): void;
  /** Has `passOn` called once all that has come is read. */
  touch(stream: LeaseStream): void;
  /** Returns whether the engine takes more. If not, `giveBack` and `send` of every stream are called once it does. */
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
  ended: Promise<Error>;
  streamCount(): number;
  /** Bytes that its streams keep in memory. */
  keptBytes(): number;
  /** Ends the program and every stream. */
  close(): void;
};

/** Creates what sends frames to the program. `resume` is called when the engine, having had too many, has taken them all. */
function createOutput(stdin: NodeJS.WritableStream, resume: () => void) {
  let isStopped = false;
  /** The frames that wait for the engine, and whether there were too many, until it has taken them all. */
  let frameCount = 0;
  let isFull = false;
  const taken = () => {
    frameCount -= 1;
    if (!isFull || frameCount) return;
    isFull = false;
    resume();
  };
  return {
    hasRoom: () => !isFull,
    isStopped: () => isStopped,
    stop(): void {
      isStopped = true;
    },
    send(kind: Kind, stream: number, content?: Buffer): void {
      if (isStopped || !stdin.writable) return;
      frameCount += 1;
      if (!stdin.write(frameOf(kind, stream, content), taken) || frameCount >= FRAME_COUNT_MAX) isFull = true;
    },
  };
}

/** Creates the streams of a line, by their numbers. */
function createStreams({ send, hasRoom, isStopped }: ReturnType<typeof createOutput>) {
  const streams = new Map<number, LeaseStream>();
  const touched = new Set<LeaseStream>();
  /** The streams that are closed here, which the program does not know yet. */
  const closing = new Set<number>();
  /** True once the pause since the last such message is over. */
  let isDue = false;
  const line: StreamLine = {
    send,
    hasRoom,
    sendClose(number) {
      if (isStopped()) return;
      if (!closing.size) setTimeout(beDue, CLOSE_MILLISECONDS).unref();
      closing.add(number);
    },
    touch: (stream) => void touched.add(stream),
  };

  /** Frees the number of a stream that both sides have reported as closed. */
  function forget(number: number): void {
    const stream = streams.get(number);
    if (stream?.isClosedThere && stream.destroyed && !closing.has(number)) streams.delete(number);
  }
  function beDue(): void {
    isDue = true;
    sayClosed();
  }
  function sayClosed(): void {
    if (!isDue) return;
    for (const number of closing) {
      if (!hasRoom()) return;
      closing.delete(number);
      send(KIND.close, number);
      forget(number);
    }
    isDue = false;
  }

  return {
    count: () => streams.size,
    keptBytes: () => [...streams.values()].reduce((sum, it) => sum + it.keptBytes, 0),
    open(number: number): Duplex {
      if (streams.has(number)) throw new LineBroken('the program of the way out opens a stream twice');
      const stream = new LeaseStream(line, number);
      stream.on('error', () => {}); // `close` follows.
      streams.set(number, stream);
      return stream;
    },
    /** Takes a frame of a stream that is open. */
    take({ kind, stream: number, content }: Frame): void {
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
    },
    /** Passes on what has come. */
    passOn(): void {
      for (const stream of touched) stream.passOn();
      touched.clear();
    },
    /** Sends what had to wait for the engine. */
    resume(): void {
      sayClosed();
      for (const it of streams.values()) it.giveBack();
      for (const it of streams.values()) it.send();
    },
    destroy(): void {
      for (const stream of streams.values()) stream.destroy();
      streams.clear();
    },
  };
}

/** Opens the streams of a program that has started. `accept` is called with each new one. */
export function openLine(session: LineSession, accept: (stream: Duplex) => void, silence = SILENCE_MILLISECONDS): Line {
  const { stdin, stdout } = session;
  const output = createOutput(stdin, () => streams.resume());
  const streams = createStreams(output);
  const ready = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<Error>();
  ready.promise.catch(() => {}); // Callers get it; this only avoids an unhandled one.
  let heardAt = performance.now();

  function end(reason: Error): void {
    if (output.isStopped()) return;
    output.stop();
    clearInterval(asking);
    streams.destroy();
    session.kill();
    ready.reject(reason);
    ended.resolve(reason);
  }

  const asking = setInterval(() => {
    if (performance.now() - heardAt > silence) return end(new LineBroken('the program of the way out is silent'));
    if (output.hasRoom()) output.send(KIND.ping, 0);
  }, silence / 4).unref();
  const read = createFrameReader((frame) => {
    if (frame.kind === KIND.ping) ready.resolve();
    else if (frame.kind === KIND.open) accept(streams.open(frame.stream));
    else streams.take(frame);
  });
  stdout.on('data', (piece: Buffer) => {
    if (output.isStopped()) return;
    heardAt = performance.now();
    try {
      read(piece);
      streams.passOn();
    } catch (error) {
      end(error as Error);
    }
  });
  for (const it of [stdin, stdout]) it.on('error', end);
  session.ended.then(
    (how) => end(new Error(`the program of the way out has ended${how ? `: ${JSON.stringify(how)}` : ''}`)),
    (error: Error) => end(error),
  );
  return {
    ready: ready.promise,
    ended: ended.promise,
    streamCount: streams.count,
    keptBytes: streams.keptBytes,
    close: () => end(new Error('the way out was closed')),
  };
}
