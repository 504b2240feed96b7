import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import WebSocket from 'ws';
import { redact } from '../../../base/log.ts';
import { containConnection } from '../../../net/contain.ts';
import { containedConnector } from '../../../net/contained-connector.ts';
import { type JsonAnswer, readJsonAnswer } from '../../../net/json-answer.ts';
import { openWatchedPool, Unanswered, type WatchedPool } from '../../../net/watched-pool.ts';
import type { Cluster, Credentials } from './credentials.ts';

/** The REST calls to an API server, and the sockets to programs in a pod. Each call has a time limit. */

const CONNECT_MILLISECONDS = 10_000;
const CALL_MILLISECONDS = 30_000;
const OPEN_MILLISECONDS = 20_000;
/** A load balancer closes a connection that is silent for long. */
const PING_MILLISECONDS = 30_000;
const KEEP_ALIVE_MILLISECONDS = 15_000;
/** The time in which calls under way on a replaced pool of connections may still end. */
const RETIRE_MILLISECONDS = 60_000;
/** The longest answer with one object: etcd keeps objects of at most 1.5 MiB. */
const ANSWER_BYTES_MAX = 2 * 1024 * 1024;
/** All pages of a list together: some ten thousand machines. */
const LIST_BYTES_MAX = 64 * 1024 * 1024;
const FRAME_BYTES_MAX = 16 * 1024 * 1024;
const WORDS_CHARACTERS_MAX = 500;
const PAGE_COUNT = 250;
const PAGES_MAX = 40;
/** The number of times that a list is tried when the server forgets its position. */
const LIST_ATTEMPTS = 3;

/** The server answered with an error and did nothing. `reason` is Kubernetes' own word, such as `AlreadyExists`. */
export class ApiError extends Error {
  readonly status: number;
  readonly reason: string;
  constructor(status: number, reason: string, message: string) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}
/** The server gave no answer to a call. */
export class ApiUnreachable extends Unanswered {}

type Method = 'GET' | 'POST' | 'PATCH' | 'DELETE';
/** The body of a call with its media type, and the most bytes of its answer. */
type Call = { body?: object | undefined; type?: string | undefined; bytesMax?: number };
type Listed<T> = { kind?: string; metadata?: { continue?: string }; items?: T[] | null };

export type Api = {
  /** The address of the server, for messages. */
  server: string;
  /** Returns the object, or undefined when Kubernetes itself reports that there is none. */
  find<T>(path: string): Promise<T | undefined>;
  get<T>(path: string): Promise<T>;
  /** Lists all objects of a kind with these labels. Reads to the end, or throws. */
  list<T>(path: string, query: Record<string, string>): Promise<T[]>;
  create<T>(path: string, body: object): Promise<T>;
  /** Applies a merge patch (RFC 7386). */
  patch<T>(path: string, body: object): Promise<T>;
  /** Removes an object. Succeeds when there is none. */
  remove(path: string, options: object): Promise<void>;
  /** Opens a socket that speaks this protocol. Throws ApiError when the server answered and opened none. */
  connect(path: string, protocol: string): Promise<WebSocket>;
  close(): Promise<void>;
};

/** Opens the API without a call; `read` returns the cluster at the first one. */
export function openApi(read: () => Promise<Cluster>): Api {
  let reading: Promise<Cluster> | undefined;
  let pool: { of: string; pool: WatchedPool } | undefined;
  const pools = new Set<WatchedPool>();
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

  /** Returns the pool for these certificates: other certificates need other connections. */
  function poolFor(server: string, { tls }: Credentials): WatchedPool {
    const of = hash('sha256', JSON.stringify([tls.ca, tls.cert, tls.key, tls.servername, tls.rejectUnauthorized]));
    if (pool?.of === of) return pool.pool;
    const old = pool?.pool;
    if (old) setTimeout(() => pools.delete(old) && void old.close(), RETIRE_MILLISECONDS).unref();
    const { origin } = new URL(server);
    pool = {
      of,
      pool: openWatchedPool(origin, {
        pipelining: 1,
        connectMilliseconds: CONNECT_MILLISECONDS,
        connect: containedConnector(CONNECT_MILLISECONDS, tls),
      }),
    };
    pools.add(pool.pool);
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

  async function send(
    method: Method,
    path: string,
    { body, type = 'application/json', bytesMax = ANSWER_BYTES_MAX }: Call,
  ): Promise<JsonAnswer & { status: number }> {
    const { cluster, credentials } = await prepare();
    if (closing.signal.aborted) throw new ApiUnreachable('Purser is stopping', false);
    const connections = poolFor(cluster.server, credentials);
    const request = {
      path: new URL(cluster.server).pathname.replace(/\/$/, '') + path,
      method,
      headers: {
        accept: 'application/json',
        ...(credentials.token === undefined ? {} : { authorization: `Bearer ${credentials.token}` }),
        ...(body === undefined ? {} : { 'content-type': type }),
      },
      body: body === undefined ? null : JSON.stringify(body),
    };
    try {
      return await connections.ask(request, CALL_MILLISECONDS, async (answer) => ({
        status: answer.statusCode,
        ...(await readJsonAnswer(answer.body, bytesMax)),
      }));
    } catch (error) {
      const { message, sent } = error as Unanswered;
      throw new ApiUnreachable(`${cluster.server}: ${message}`, sent);
    }
  }

  /** Makes one call. Throws ApiError and ApiUnreachable. */
  async function exchange(method: Method, path: string, call: Call): Promise<JsonAnswer> {
    let answer = await send(method, path, call);
    if (answer.status === 401) {
      // A token may have expired a moment ago. The server has done nothing yet.
      (await clusterOf()).renew();
      answer = await send(method, path, call);
    }
    if (answer.status < 200 || answer.status > 299) throw errorOf(answer.status, answer);
    // Nothing would be found in an answer of another form, and a missing object counts as gone.
    if (typeof answer.json !== 'object' || answer.json === null)
      throw new ApiUnreachable(`${known}: the answer is no object in JSON`, true);
    return answer;
  }

  const call = async <T>(method: Method, path: string, body?: object, type?: string) =>
    (await exchange(method, path, { body, type })).json as T;

  async function listOnce<T>(path: string, query: Record<string, string>): Promise<T[]> {
    const items: T[] = [];
    let bytesMax = LIST_BYTES_MAX;
    let next = '';
    for (let page = 0; page < PAGES_MAX; page++) {
      const limits = { limit: String(PAGE_COUNT), ...(next ? { continue: next } : {}) };
      const address = `${path}?${new URLSearchParams({ ...query, ...limits })}`;
      const { json, length } = await exchange('GET', address, { bytesMax });
      const listed = json as Listed<T>;
      // The items of an empty list may be null, but are never missing.
      if (!listed.kind?.endsWith('List') || listed.items === undefined)
        throw new Error(`${known}: what came is no list`);
      for (const it of listed.items ?? []) items.push(it);
      next = listed.metadata?.continue ?? '';
      if (!next) return items;
      bytesMax -= length;
    }
    // A part of the list would make all other machines look gone.
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
      allowSynchronousEvents: false, // Thousands of short messages may come at once: others have a turn between them.
      skipUTF8Validation: true,
    });
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', (error: NodeJS.ErrnoException) =>
        reject(new ApiUnreachable(`${cluster.server}: ${error.code ?? error.message}`, true)),
      );
      socket.once('upgrade', ({ socket: connection }: IncomingMessage) => {
        containConnection(connection, 'backend');
        connection.setKeepAlive(true, KEEP_ALIVE_MILLISECONDS);
        connection.setNoDelay(true);
      });
      socket.once('unexpected-response', (_, response: IncomingMessage) => {
        void readJsonAnswer(response, ANSWER_BYTES_MAX)
          .catch(() => ({ json: undefined, beginning: '' }))
          .then((answer) => reject(errorOf(response.statusCode ?? 0, answer)))
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
      await Promise.all([...pools].map((it) => it.close()));
    },
  };
}

/** Returns whether Kubernetes itself reports an absence. A proxy before the server may answer 404 as well, which proves nothing. */
export const isNotFound = (error: unknown) =>
  error instanceof ApiError && error.status === 404 && error.reason === 'NotFound';

function errorOf(status: number, { json, beginning }: Omit<JsonAnswer, 'length'>): ApiError {
  const said = json as { kind?: string; reason?: string; message?: string } | null | undefined;
  const { reason = '', message = '' } = said?.kind === 'Status' ? said : { message: beginning };
  const words = redact(message.replace(/\s+/g, ' ').trim()).slice(0, WORDS_CHARACTERS_MAX);
  return new ApiError(status, reason, `${status} ${words}`.trim());
}
