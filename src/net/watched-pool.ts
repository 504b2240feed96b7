import type { IncomingHttpHeaders } from 'node:http';
import type { Duplex } from 'node:stream';
import { type buildConnector, type Dispatcher, Pool } from 'undici';
import { containedConnector } from './contained-connector.ts';
import { collectChunks } from './pieces.ts';

export type WatchedPool = {
  /** Sends one request and reads its answer to the end, at much less cost than a stream of it. */
  exchange(request: Dispatcher.DispatchOptions, reading: AnswerReading): PoolExchange;
  /** Sends one request and reads its answer as it arrives, at less cost than a Node stream of it. */
  open(request: Dispatcher.DispatchOptions): Opening;
  /** Sends one request and reads its answer with `read`, all within `milliseconds`. Throws Unanswered. */
  ask<T>(
    request: Dispatcher.DispatchOptions,
    milliseconds: number,
    read: (answer: StreamedAnswer) => Promise<T>,
  ): Promise<T>;
  /** Opens a connection that continues in another protocol. */
  upgrade(request: Dispatcher.UpgradeOptions): Promise<Duplex>;
  close(): Promise<void>;
};

/**
 * A request without an answer that could be read. `sent` is true if a byte of it may have been sent. `cause` is missing when
 * its time was up or the pool was closed.
 */
export class Unanswered extends Error {
  readonly sent: boolean;
  constructor(message: string, sent: boolean, options?: ErrorOptions) {
    super(message, options);
    this.sent = sent;
  }
}

type AnswerReading = {
  /** Called when the head of the answer has arrived. */
  onHead(): void;
  /** Returns the maximum number of bytes to read of an answer with this status. */
  bytesMax(status: number): number;
  /** A brake: after `freeBytes`, reading continues when `enter` has resolved, or at once if it returns undefined. */
  room?: { freeBytes: number; enter(): Promise<void> | undefined };
};

export type AnswerHead = { statusCode: number; headers: IncomingHttpHeaders };

/**
 * An answer: all of its bytes; or undefined when it is too long, in which case the rest is not read; or the error that
 * broke it off.
 */
export type Whole = AnswerHead & {
  bytes: Buffer | undefined;
  error: Error | undefined;
};

type Sent = {
  /** Returns whether a byte of the request may have been sent. */
  wasSent(): boolean;
  /** Ends the exchange: `answer` rejects, or resolves with an error. A request that waits for a connection is not sent. */
  abort(): void;
};
/** `answer` rejects when no answer began. */
type PoolExchange = Sent & { answer: Promise<Whole> };
/** `head` rejects when no answer began. */
type Opening = Sent & {
  head: Promise<StreamedAnswer>;
  /** Ends the exchange as `abort` does, but the received part of the body can still be read. */
  cut(): void;
};

/** An answer whose body arrives. */
type StreamedAnswer = AnswerHead & { body: AnswerBody };

/** The body of an answer as it arrives. It has to be read to its end or left. */
export type AnswerBody = AsyncIterable<Buffer> & {
  /**
   * Returns all bytes that have arrived since the last call, waiting for the first of them; undefined at the end. Throws when the
   * body has broken off and all earlier bytes have been read. Between calls, at most 64 KiB and a chunk are read from the server.
   */
  next(): Promise<Buffer | undefined>;
  /**
   * Drops the rest, so that its connection can be reused; closes the connection when the rest exceeds `bytesMax` or
   * `milliseconds`.
   */
  leave(limits: { bytesMax: number; milliseconds: number }): void;
};

/**
 * A connection pool that distinguishes a request that certainly never went out from one that may have. A request counts as sent
 * from the moment undici begins to write it to a connection. Error codes do not show the difference: Linux reports EHOSTUNREACH on
 * an established connection too, and ECONNRESET comes before the first byte as well as after the last.
 */
export function openWatchedPool(
  origin: string,
  {
    connectMilliseconds,
    connect = containedConnector(connectMilliseconds),
    ...options
  }: Omit<Pool.Options, 'connect'> & { connectMilliseconds: number; connect?: buildConnector.connector },
): WatchedPool {
  const pool = new Pool(origin, { ...options, connect });
  let isClosed = false;

  function open(request: Dispatcher.DispatchOptions): Opening {
    const handler = new BodyHandler();
    pool.dispatch(request, handler);
    return handler;
  }

  return {
    open,
    exchange(request, reading) {
      const handler = new WholeHandler(reading);
      pool.dispatch(request, handler);
      return handler;
    },
    async ask(request, milliseconds, read) {
      // One limit for the whole call; and undici repeats nothing by itself.
      const call = open({ ...request, idempotent: false, headersTimeout: 0, bodyTimeout: 0 });
      const limit = AbortSignal.timeout(milliseconds);
      const abort = () => call.abort();
      limit.addEventListener('abort', abort);
      try {
        return await read(await call.head);
      } catch (error) {
        abort(); // The rest of an unreadable answer is not read.
        if (isClosed) throw new Unanswered('the server is stopping', call.wasSent());
        if (limit.aborted) throw new Unanswered(`no answer within ${milliseconds / 1000} s`, call.wasSent());
        const { code, message } = error as NodeJS.ErrnoException;
        throw new Unanswered(code || message, call.wasSent(), { cause: error });
      } finally {
        limit.removeEventListener('abort', abort);
      }
    },
    upgrade: async (request) => (await pool.upgrade(request)).socket as Duplex,
    async close() {
      isClosed = true;
      await pool.destroy();
    },
  };
}

/** The common part of both ways to read an answer. undici calls `onRequestStart` when it begins to write the request. */
abstract class SentHandler implements Sent {
  protected controller: Dispatcher.DispatchController | undefined;
  protected hasEnded = false;

  wasSent() {
    return this.controller !== undefined;
  }

  abort() {
    const error = new Error('the exchange was ended');
    this.end(error);
    this.controller?.abort(error);
  }

  onRequestStart(controller: Dispatcher.DispatchController) {
    if (this.hasEnded)
      controller.abort(new Error('the exchange was ended')); // It is then not written.
    else this.controller = controller;
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error) {
    this.end(error);
  }

  /** Ends the exchange with an error: the answer broke off, or never began. Does nothing if it has ended already. */
  protected abstract end(error: Error): void;
}

/** Collects one answer. */
class WholeHandler extends SentHandler implements Dispatcher.DispatchHandler, PoolExchange {
  readonly answer: Promise<Whole>;
  readonly #reading: AnswerReading;
  #resolve!: (answer: Whole) => void;
  #reject!: (error: Error) => void;
  #head: AnswerHead | undefined;
  #bytesMax = 0;
  #isWaiting = false;
  #length = 0;
  readonly #chunks = collectChunks();

  constructor(reading: AnswerReading) {
    super();
    this.#reading = reading;
    this.answer = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  onResponseStart(_: Dispatcher.DispatchController, statusCode: number, headers: IncomingHttpHeaders) {
    if (statusCode < 200) return; // The answer follows.
    this.#head = { statusCode, headers };
    this.#bytesMax = this.#reading.bytesMax(statusCode);
    this.#reading.onHead();
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer) {
    this.#length += chunk.length;
    if (this.#length <= this.#bytesMax) {
      this.#chunks.add(chunk);
      if (this.#length > (this.#reading.room?.freeBytes ?? Number.POSITIVE_INFINITY)) this.#waitForRoom(controller);
      return;
    }
    this.#settle(undefined, undefined);
    controller.abort(new Error('the answer is too long'));
  }

  onResponseEnd() {
    this.#settle(this.#chunks.take(), undefined);
  }

  #waitForRoom(controller: Dispatcher.DispatchController) {
    if (this.#isWaiting) return; // These chunks arrived before the connection was paused.
    const entering = this.#reading.room?.enter();
    if (!entering) return;
    this.#isWaiting = true;
    controller.pause();
    void entering.then(() => {
      this.#isWaiting = false;
      if (!this.hasEnded) controller.resume();
    });
  }

  protected end(error: Error) {
    this.#settle(undefined, error);
  }

  #settle(bytes: Buffer | undefined, error: Error | undefined) {
    if (this.hasEnded) return;
    this.hasEnded = true;
    if (this.#head) this.#resolve({ ...this.#head, bytes, error });
    else this.#reject(error ?? new Error('there was no answer'));
  }
}

/** Bytes of a body after which its connection is paused until they are read and a turn of the event loop is over. */
const BODY_BYTES_A_TURN = 64 * 1024;

/** Reads one answer as it arrives. The chunks of one read of the connection become one piece for its reader. */
class BodyHandler extends SentHandler implements Dispatcher.DispatchHandler, Opening, AnswerBody {
  readonly head: Opening['head'];
  #begin!: (head: Awaited<Opening['head']>) => void;
  #fail!: (error: Error) => void;
  #error: Error | undefined;
  readonly #chunks = collectChunks();
  /** Bytes since the connection was last paused, or since the body was left. */
  #length = 0;
  #isPaused = false;
  /** Called when there is something to read, or nothing more will arrive. */
  #wake: (() => void) | undefined;
  #left: { bytesMax: number; timer: NodeJS.Timeout } | undefined;

  constructor() {
    super();
    this.head = new Promise((resolve, reject) => {
      this.#begin = resolve;
      this.#fail = reject;
    });
  }

  onResponseStart(_: Dispatcher.DispatchController, statusCode: number, headers: IncomingHttpHeaders) {
    if (statusCode < 200) return; // The answer follows.
    this.#begin({ statusCode, headers, body: this });
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer) {
    this.#length += chunk.length;
    if (this.#left) {
      if (this.#length > this.#left.bytesMax) this.abort();
      return;
    }
    this.#chunks.add(chunk);
    if (this.#length >= BODY_BYTES_A_TURN) {
      this.#isPaused = true;
      controller.pause();
    }
    this.#wake?.();
  }

  onResponseEnd() {
    this.end();
  }

  override abort() {
    this.#chunks.clear();
    super.abort();
  }

  cut() {
    super.abort();
  }

  async next() {
    if (this.#chunks.isEmpty() && !this.hasEnded) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      this.#wake = undefined;
    }
    if (this.#chunks.isEmpty()) {
      if (this.#error) throw this.#error;
      return undefined;
    }
    const bytes = this.#chunks.take();
    if (this.#isPaused) {
      this.#isPaused = false;
      this.#length = 0;
      // Not at once: libuv would then read 2 MiB of one fast server before timers and other connections have a turn.
      setImmediate(() => {
        if (!this.hasEnded && !this.#left) this.controller?.resume();
      });
    }
    return bytes;
  }

  leave({ bytesMax, milliseconds }: { bytesMax: number; milliseconds: number }) {
    this.#chunks.clear();
    this.#length = 0;
    if (this.hasEnded) return;
    this.#left = { bytesMax, timer: setTimeout(() => this.abort(), milliseconds) };
    this.controller?.resume();
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (let bytes = await this.next(); bytes; bytes = await this.next()) yield bytes;
    } finally {
      if (!this.hasEnded) this.abort(); // Its reader has stopped early.
    }
  }

  protected end(error?: Error) {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.#error = error;
    clearTimeout(this.#left?.timer);
    this.#fail(error ?? new Error('there was no answer')); // No effect once an answer has begun.
    this.#wake?.();
  }
}
