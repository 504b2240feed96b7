import { randomBytes } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Dispatcher } from 'undici';
import { containConnection } from '../../../net/contain.ts';
import { readJsonAnswer } from '../../../net/json-answer.ts';
import { readBounded } from '../../../net/read-bounded.ts';
import { openWatchedPool, type Unanswered } from '../../../net/watched-pool.ts';
import { type LxdAddress, originOf } from './address.ts';
import { lxdConnector } from './connection.ts';
import { MessageStream } from './websocket.ts';

const CONNECT_MILLISECONDS = 10_000;
const CALL_MILLISECONDS = 30_000;
/** The server is asked again after this time, so that a dead connection is noticed. */
const WAIT_SECONDS = 20;
const WORDS_MAX = 500;
const ANSWER_BYTES_MAX = 64 * 1024 * 1024;

/** The states of an operation, and of an instance (LXD, REST API, status codes). */
export const STATUS = { running: 103, success: 200, stopped: 102, frozen: 110, error: 112 } as const;

/** LXD answered with an error, or its operation failed: the request had no effect. */
export class LxdRefusal extends Error {
  readonly status: number;
  constructor(message: string, status: number) {
    super(message);
    this.status = status;
  }
}

/** LXD cannot be reached: it received nothing of the request. */
export class LxdUnreachable extends Error {}

/** Returns an operation that succeeded. Throws LxdRefusal for another. */
export function succeeded(operation: LxdOperation): LxdOperation {
  if (operation.status_code === STATUS.success) return operation;
  throw new LxdRefusal(operation.err.slice(0, WORDS_MAX) || 'the operation failed', operation.status_code);
}

export const isAbsent = (error: unknown) => error instanceof LxdRefusal && error.status === 404;
/** Returns the answer, or undefined when LXD reports that there is no such thing. */
export const orAbsent = <T>(asking: Promise<T>): Promise<T | undefined> =>
  asking.catch((error) => {
    if (isAbsent(error)) return undefined;
    throw error;
  });
/** Returns whether something is larger than the disk of its instance. */
export const isDiskFull = (error: unknown) => /disk quota exceeded/i.test(textOf(error));
export const textOf = (error: unknown) => (error as Error).message.trim();

/** Work that LXD does in the background, as its answer shows it. */
type LxdOperation = {
  id: string;
  status_code: number;
  err: string;
  metadata: Record<string, unknown> | null;
};

type LxdAnswer = { type: string; error?: string; error_code?: number; metadata: unknown };
type LxdMethod = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
type LxdRequest = Dispatcher.DispatchOptions;
type LxdResponse = { statusCode: number; headers: IncomingHttpHeaders; body: AsyncIterable<Buffer> };
type CallOptions = { headers?: Record<string, string>; milliseconds?: number; bytesMax?: number };

/** The HTTP API of LXD and Incus, in one project. A call that throws anything but a refusal may have been received. */
export type LxdApi = {
  socket: string;
  project: string;
  /** Makes one call. Throws LxdRefusal and LxdUnreachable. A Buffer is sent as it is, anything else as JSON. */
  ask<T>(method: LxdMethod, path: string, body?: object, options?: CallOptions): Promise<T>;
  /**
   * Makes a call that starts an operation, and waits for its end. Throws LxdRefusal when the operation failed, and another
   * error when its end is not known after `milliseconds`.
   */
  run(method: LxdMethod, path: string, body: object | undefined, milliseconds: number): Promise<LxdOperation>;
  /** Reads a plain file; undefined where there is none. Throws LxdRefusal, also where it is larger than `bytesMax`. */
  readFile(path: string, bytesMax: number): Promise<Buffer | undefined>;
  /** Waits for the end of an operation, whatever its duration and its outcome. */
  wait(id: string, signal?: AbortSignal): Promise<LxdOperation>;
  /**
   * Throws unless the server shows the project. Of one that the certificate may not see, or that is not there, LXD answers that
   * its instances are not found: that proves nothing.
   */
  confirmProject(): Promise<void>;
  /** Connects to one of the WebSockets of an operation. */
  connect(operation: string, secret: string): Promise<MessageStream>;
  /** Opens a connection that continues in another protocol. */
  upgrade(path: string, protocol: string, headers?: Record<string, string>): Promise<Duplex>;
  close(): Promise<void>;
};

export function openLxdApi(address: LxdAddress, project: string): LxdApi {
  const { socket } = address;
  const pool = openWatchedPool(originOf(address), {
    pipelining: 0, // A connection that was kept open may have died, and would leave an outcome unknown.
    connectMilliseconds: CONNECT_MILLISECONDS,
    connect: lxdConnector(address, CONNECT_MILLISECONDS),
  });
  const inProject = (path: string) => `${path}${path.includes('?') ? '&' : '?'}project=${encodeURIComponent(project)}`;

  const send = <T>(request: LxdRequest, milliseconds: number, read: (answer: LxdResponse) => Promise<T>): Promise<T> =>
    pool.ask(request, milliseconds, read).catch((error: Unanswered) => {
      const why = error.cause ? textOf(error.cause) : `${request.method} ${request.path}: ${error.message}`;
      if (error.sent) throw new Error(`${socket}: ${why}`, { cause: error });
      throw new LxdUnreachable(why, { cause: error });
    });

  async function exchange(
    method: LxdMethod,
    path: string,
    body?: object,
    options: CallOptions = {},
  ): Promise<LxdAnswer> {
    const { headers = {}, milliseconds = CALL_MILLISECONDS, bytesMax = ANSWER_BYTES_MAX } = options;
    const isFile = Buffer.isBuffer(body);
    const request = {
      path: inProject(path),
      method: method as Dispatcher.HttpMethod,
      headers: { ...(body && !isFile ? { 'content-type': 'application/json' } : {}), ...headers },
      body: isFile ? body : body ? JSON.stringify(body) : null,
    };
    const read = async (answer: LxdResponse) => ({
      status: answer.statusCode,
      ...(await readJsonAnswer(answer.body, bytesMax)),
    });
    const { status, json, beginning } = await send(request, milliseconds, read);
    if (!isAnswer(json)) throw new Error(`${socket}: ${status} is no answer of LXD: ${beginning.slice(0, WORDS_MAX)}`);
    if (json.type === 'error' || status >= 400)
      throw new LxdRefusal((json.error ?? beginning).slice(0, WORDS_MAX), json.error_code ?? status);
    return json;
  }

  async function ask<T>(...call: Parameters<LxdApi['ask']>): Promise<T> {
    return (await exchange(...call)).metadata as T;
  }

  /** Returns the operation, ended or still running after the server's own limit. */
  const waitOnce = (id: string, seconds: number) =>
    ask<LxdOperation>('GET', `/1.0/operations/${id}/wait?timeout=${seconds}`, undefined, {
      milliseconds: seconds * 1000 + CALL_MILLISECONDS,
    }).catch((error) => {
      // A finished operation is forgotten after some seconds, and all of them when the daemon restarts.
      if (isAbsent(error)) throw new Error(`${socket}: the operation ${id} is not known any more`);
      throw error;
    });

  async function upgrade(path: string, protocol: string, headers: Record<string, string> = {}): Promise<Duplex> {
    const signal = AbortSignal.timeout(CALL_MILLISECONDS);
    const connection = await pool.upgrade({ path: inProject(path), protocol, headers, signal });
    containConnection(connection, 'backend');
    return connection;
  }

  const hasEnded = ({ status_code: code }: LxdOperation) => code >= STATUS.success;

  return {
    socket,
    project,
    ask,
    close: () => pool.close(),

    async readFile(path, bytesMax) {
      const request = { path: inProject(path), method: 'GET' as const, headers: {}, body: null };
      const file = await send(request, CALL_MILLISECONDS, async ({ statusCode, headers, body }) => {
        const isFile = [headers['x-lxd-type'], headers['x-incus-type']].includes('file');
        if (statusCode === 404 || (statusCode === 200 && !isFile)) return undefined;
        return { statusCode, content: statusCode === 200 ? await readBounded(body, bytesMax) : undefined };
      });
      // Outside of `send`, whose errors mean that the outcome at the server is unknown.
      if (file && !file.content)
        throw new LxdRefusal('a file of the image is too large or cannot be read', file.statusCode);
      return file?.content;
    },

    async run(method, path, body, milliseconds) {
      const until = performance.now() + milliseconds;
      let operation = await ask<LxdOperation>(method, path, body);
      while (!hasEnded(operation)) {
        const seconds = Math.ceil((until - performance.now()) / 1000);
        if (seconds <= 0) throw new Error(`${socket}: ${method} ${path} was not done within ${milliseconds / 1000} s`);
        operation = await waitOnce(operation.id, Math.min(seconds, WAIT_SECONDS));
      }
      return succeeded(operation);
    },

    async wait(id, signal) {
      for (;;) {
        const operation = await waitOnce(id, WAIT_SECONDS);
        if (hasEnded(operation)) return operation;
        signal?.throwIfAborted();
      }
    },

    async confirmProject() {
      if (await orAbsent(ask('GET', `/1.0/projects/${encodeURIComponent(project)}`))) return;
      throw new Error(`${socket}: there is no project ${project}, or Purser's certificate may not see it`);
    },

    upgrade,

    async connect(operation, secret) {
      const path = `/1.0/operations/${operation}/websocket?secret=${encodeURIComponent(secret)}`;
      const key = randomBytes(16).toString('base64');
      const headers = { 'sec-websocket-version': '13', 'sec-websocket-key': key };
      return new MessageStream(await upgrade(path, 'websocket', headers));
    },
  };
}

const isAnswer = (json: unknown): json is LxdAnswer => typeof json === 'object' && json !== null && 'type' in json;
