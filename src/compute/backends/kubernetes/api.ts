import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import WebSocket from 'ws';
import { redact } from '../../../log.ts';
import { contain } from '../../../net/contain.ts';
import { containedConnector } from '../../../net/contained-connector.ts';
import { readAnswerText } from '../../../net/read-bounded.ts';
import { openWatchedPool, type WatchedPool } from '../../../net/watched-pool.ts';
import type { Cluster, Credentials } from './credentials.ts';

/** The REST calls to an API server, and the sockets to what runs in a pod. Each call has a limit of time. */

const CONNECT_MILLISECONDS = 10_000;
const CALL_MILLISECONDS = 30_000;
const OPEN_MILLISECONDS = 20_000;
/** A load balancer closes a connection that is silent for long. */
const PING_MILLISECONDS = 30_000;
const KEEP_ALIVE_MILLISECONDS = 15_000;
/** What a replaced pool of connections still has under way may end. */
const RETIRE_MILLISECONDS = 60_000;
const ANSWER_BYTES_MAX = 64 * 1024 * 1024;
const FRAME_BYTES_MAX = 16 * 1024 * 1024;
const WORDS_CHARACTERS_MAX = 500;
const PAGE_COUNT = 500;
const PAGES_MAX = 1000;
/** How often a list is begun anew because the server has forgotten where it was. */
const LIST_ATTEMPTS = 3;

/** The server answered, and did not do it. `reason` is Kubernetes' own word, such as `AlreadyExists`. */
export class ApiError extends Error {
  readonly status: number;
  readonly reason: string;
  constructor(status: number, reason: string, message: string) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}
/** No answer came. `sent` says whether the server may have received the request. */
export class ApiUnreachable extends Error {
  readonly sent: boolean;
  constructor(message: string, sent: boolean) {
    super(message);
    this.sent = sent;
  }
}

type Method = 'GET' | 'POST' | 'PATCH' | 'DELETE';
type Listed<T> = { kind?: string; metadata?: { continue?: string }; items?: T[] | null };

export type Api = {
  /** The address of the server, for messages. */
  server: string;
  /** The object, or undefined when the server says itself that there is none. */
  find<T>(path: string): Promise<T | undefined>;
  get<T>(path: string): Promise<T>;
  /** Everything of a kind with these labels. Reads to the end, or throws. */
  list<T>(path: string, query: Record<string, string>): Promise<T[]>;
  create<T>(path: string, body: object): Promise<T>;
  /** A merge patch (RFC 7386). */
  patch<T>(path: string, body: object): Promise<T>;
  /** Succeeds when there is none. */
  remove(path: string, options: object): Promise<void>;
  /** Opens a socket that speaks this protocol. Throws ApiError when the server answered and opened none. */
  connect(path: string, protocol: string): Promise<WebSocket>;
  close(): Promise<void>;
};

/** Opens the API without a call; `read` tells where it is at the first one. */
export function openApi(read: () => Promise<Cluster>): Api {
  let reading: Promise<Cluster> | undefined;
  let pool: { of: string; pool: WatchedPool } | undefined;
  const sockets = new Set<WebSocket>();
  const closing = new AbortController();
  let known = 'the API server';

  async function clusterOf(): Promise<Cluster> {
    reading ??= read();
    try {
      const cluster = await reading;
      known = cluster.server;
      return cluster;
    } catch (error) {
      reading = undefined;
      throw error;
    }
  }

  /** Other certificates need other connections. */
  function poolFor(server: string, { tls }: Credentials): WatchedPool {
    const of = hash('sha256', JSON.stringify([tls.ca, tls.cert, tls.key, tls.servername, tls.rejectUnauthorized]));
    if (pool?.of === of) return pool.pool;
    const old = pool?.pool;
    if (old) setTimeout(() => void old.close(), RETIRE_MILLISECONDS).unref();
    const { origin } = new URL(server);
    pool = {
      of,
      pool: openWatchedPool(origin, {
        pipelining: 1,
        connectMilliseconds: CONNECT_MILLISECONDS,
        connect: containedConnector(CONNECT_MILLISECONDS, tls),
      }),
    };
    return pool.pool;
  }

  async function prepare(): Promise<{ cluster: Cluster; credentials: Credentials }> {
    try {
      const cluster = await clusterOf();
      return { cluster, credentials: await cluster.credentials() };
    } catch (error) {
      throw new ApiUnreachable((error as Error).message, false);
    }
  }

  async function send(method: Method, path: string, body?: object, type = 'application/json') {
    const { cluster, credentials } = await prepare();
    const connections = poolFor(cluster.server, credentials);
    const signal = AbortSignal.any([AbortSignal.timeout(CALL_MILLISECONDS), closing.signal]);
    try {
      const response = await connections.dispatcher.request({
        path: new URL(cluster.server).pathname.replace(/\/$/, '') + path,
        method,
        headers: {
          accept: 'application/json',
          ...(credentials.token === undefined ? {} : { authorization: `Bearer ${credentials.token}` }),
          ...(body === undefined ? {} : { 'content-type': type }),
        },
        body: body === undefined ? null : JSON.stringify(body),
        idempotent: false, // undici repeats nothing by itself.
        signal,
        headersTimeout: 0, // One limit for the whole call, above.
        bodyTimeout: 0,
      });
      return { status: response.statusCode, text: await readAnswerText(response.body, ANSWER_BYTES_MAX) };
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      const why = closing.signal.aborted
        ? 'Purser is stopping'
        : signal.aborted
          ? `no answer within ${CALL_MILLISECONDS / 1000} s`
          : (code ?? message);
      throw new ApiUnreachable(`${cluster.server}: ${why}`, connections.wasSent(signal));
    }
  }

  /** Throws ApiError and ApiUnreachable. */
  async function call<T>(method: Method, path: string, body?: object, type?: string): Promise<T> {
    let { status, text } = await send(method, path, body, type);
    if (status === 401) {
      // A token may have expired a moment ago. The server has not done anything.
      (await clusterOf()).renew();
      ({ status, text } = await send(method, path, body, type));
    }
    if (status < 200 || status > 299) throw errorOf(status, text);
    try {
      return JSON.parse(text) as T;
    } catch {
      throw new ApiUnreachable(`${known}: the answer is not JSON`, true);
    }
  }

  async function listOnce<T>(path: string, query: Record<string, string>): Promise<T[]> {
    const items: T[] = [];
    let next = '';
    for (let page = 0; page < PAGES_MAX; page++) {
      const limits = { limit: String(PAGE_COUNT), ...(next ? { continue: next } : {}) };
      const listed = await call<Listed<T>>('GET', `${path}?${new URLSearchParams({ ...query, ...limits })}`);
      if (!listed.kind?.endsWith('List')) throw new Error(`${known}: what came is no list`);
      items.push(...(listed.items ?? []));
      next = listed.metadata?.continue ?? '';
      if (!next) return items;
    }
    throw new Error(`${known}: a list has no end`);
  }

  async function open(path: string, protocol: string): Promise<WebSocket> {
    const { cluster, credentials } = await prepare();
    closing.signal.throwIfAborted();
    const socket = new WebSocket(`${cluster.server.replace(/^http/, 'ws')}${path}`, [protocol], {
      ...credentials.tls,
      headers: credentials.token === undefined ? {} : { authorization: `Bearer ${credentials.token}` },
      handshakeTimeout: OPEN_MILLISECONDS,
      perMessageDeflate: false,
      maxPayload: FRAME_BYTES_MAX,
      skipUTF8Validation: true,
    });
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', (error: NodeJS.ErrnoException) =>
        reject(new ApiUnreachable(`${cluster.server}: ${error.code ?? error.message}`, true)),
      );
      socket.once('upgrade', ({ socket: connection }: IncomingMessage) => {
        contain(connection, (error) => connection.destroy(error));
        connection.setKeepAlive(true, KEEP_ALIVE_MILLISECONDS);
        connection.setNoDelay(true);
      });
      socket.once('unexpected-response', (_, response: IncomingMessage) => {
        void readAnswerText(response, 64 * 1024)
          .catch(() => '')
          .then((text) => reject(errorOf(response.statusCode ?? 0, text)))
          .finally(() => response.destroy());
      });
    });
    socket.on('error', () => {}); // `close` follows.
    sockets.add(socket);
    const ping = setInterval(() => socket.ping(), PING_MILLISECONDS).unref();
    socket.once('close', () => {
      clearInterval(ping);
      sockets.delete(socket);
    });
    return socket;
  }

  return {
    get server() {
      return known;
    },
    get: (path) => call('GET', path),
    async find<T>(path: string) {
      try {
        return await call<T>('GET', path);
      } catch (error) {
        if (isNotFound(error)) return undefined;
        throw error;
      }
    },
    async list<T>(path: string, query: Record<string, string>) {
      for (let attempt = 1; ; attempt++) {
        try {
          return await listOnce<T>(path, query);
        } catch (error) {
          if (!(error instanceof ApiError && error.status === 410) || attempt === LIST_ATTEMPTS) throw error;
        }
      }
    },
    create: (path, body) => call('POST', path, body),
    patch: (path, body) => call('PATCH', path, body, 'application/merge-patch+json'),
    async remove(path, options) {
      try {
        await call('DELETE', path, { kind: 'DeleteOptions', apiVersion: 'v1', ...options });
      } catch (error) {
        if (!isNotFound(error)) throw error;
      }
    },
    async connect(path, protocol) {
      try {
        return await open(path, protocol);
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 401)) throw error;
        (await clusterOf()).renew();
        return open(path, protocol);
      }
    },
    async close() {
      closing.abort();
      for (const socket of sockets) socket.terminate();
      await pool?.pool.close();
    },
  };
}

/** Something before the server may answer 404 as well; only Kubernetes' own word proves an absence. */
export const isNotFound = (error: unknown) =>
  error instanceof ApiError && error.status === 404 && error.reason === 'NotFound';

function errorOf(status: number, text: string): ApiError {
  let reason = '';
  let message = text;
  try {
    const said = JSON.parse(text) as { kind?: string; reason?: string; message?: string };
    if (said.kind === 'Status') ({ reason = '', message = '' } = said);
  } catch {}
  const words = redact(message.replace(/\s+/g, ' ').trim()).slice(0, WORDS_CHARACTERS_MAX);
  return new ApiError(status, reason, `${status} ${words}`.trim());
}
