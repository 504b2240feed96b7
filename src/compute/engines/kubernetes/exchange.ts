import { hash } from 'node:crypto';
import { containedConnector } from '../../../net/contained-connector.ts';
import { type JsonAnswer, readJsonAnswer } from '../../../net/json-answer.ts';
import { openWatchedPool, type WatchedPool } from '../../../net/watched-pool.ts';
import { ApiUnreachable, errorOf } from './api-error.ts';
import type { Cluster, Credentials } from './credentials.ts';

/** Calls of an API server: over connections with the credentials of the moment, each with a time limit. */

const CONNECT_MILLISECONDS = 10_000;
const CALL_MILLISECONDS = 30_000;
/** The time in which calls under way on a replaced pool of connections may still end. */
const RETIRE_MILLISECONDS = 60_000;
/** The longest answer with one object: etcd keeps objects of at most 1.5 MiB. */
export const ANSWER_BYTES_MAX = 2 * 1024 * 1024;

export type ApiMethod = 'GET' | 'POST' | 'PATCH' | 'DELETE';
/** The body of a call with its media type, and the most bytes of its answer. */
export type ApiCall = { body?: object | undefined; type?: string | undefined; bytesMax?: number };

/** Opens connections without a call; `read` returns the cluster at the first one. */
export function openExchange(read: () => Promise<Cluster>) {
  let reading: Promise<Cluster> | undefined;
  let pool: { of: string; pool: WatchedPool } | undefined;
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

  async function send(
    method: ApiMethod,
    path: string,
    { body, type = 'application/json', bytesMax = ANSWER_BYTES_MAX }: ApiCall,
  ): Promise<JsonAnswer & { status: number }> {
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
      return { status: response.statusCode, ...(await readJsonAnswer(response.body, bytesMax)) };
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

  /** Makes one call. Throws ApiError and ApiUnreachable. */
  async function exchange(method: ApiMethod, path: string, call: ApiCall): Promise<JsonAnswer> {
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

  return {
    /** Returns the address of the server, for messages. */
    server: () => known,
    prepare,
    exchange,
    /** Makes the next call read the credentials again: the server refused these. */
    renew: async () => (await clusterOf()).renew(),
    closing: closing.signal,
    async close() {
      closing.abort();
      await pool?.pool.close();
    },
  };
}
export type ApiExchange = ReturnType<typeof openExchange>;
