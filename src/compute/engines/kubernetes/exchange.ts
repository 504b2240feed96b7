import { hash } from 'node:crypto';
import { containedConnector } from '../../../net/contained-connector.ts';
import { type JsonAnswer, readJsonAnswer } from '../../../net/json-answer.ts';
import { openWatchedPool, type Unanswered, type WatchedPool } from '../../../net/watched-pool.ts';
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
type ApiCall = { body?: object | undefined; type?: string | undefined; bytesMax?: number };

function requestOf(
  server: string,
  { token }: Credentials,
  method: ApiMethod,
  path: string,
  { body, type = 'application/json' }: ApiCall,
) {
  return {
    path: new URL(server).pathname.replace(/\/$/, '') + path,
    method,
    headers: {
      accept: 'application/json',
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...(body === undefined ? {} : { 'content-type': type }),
    },
    body: body === undefined ? null : JSON.stringify(body),
  };
}

/** Creates the pools of connections: one at a time, for the certificates of the moment. */
function createPools() {
  let pool: { key: string; pool: WatchedPool } | undefined;
  const pools = new Set<WatchedPool>();

  /** Returns the pool for these certificates: other certificates need other connections. */
  function of(server: string, { tls }: Credentials): WatchedPool {
    const key = hash('sha256', JSON.stringify([tls.ca, tls.cert, tls.key, tls.servername, tls.rejectUnauthorized]));
    if (pool?.key === key) return pool.pool;
    const old = pool?.pool;
    if (old) setTimeout(() => pools.delete(old) && void old.close(), RETIRE_MILLISECONDS).unref();
    const { origin } = new URL(server);
    pool = {
      key,
      pool: openWatchedPool(origin, {
        pipelining: 1,
        connectMilliseconds: CONNECT_MILLISECONDS,
        connect: containedConnector(CONNECT_MILLISECONDS, tls),
      }),
    };
    pools.add(pool.pool);
    return pool.pool;
  }

  return {
    of,
    async close() {
      await Promise.all([...pools].map((it) => it.close()));
    },
  };
}

/** Opens connections without a call; `read` returns the cluster at the first one. */
export function openExchange(read: () => Promise<Cluster>) {
  let reading: Promise<Cluster> | undefined;
  const pools = createPools();
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

  async function prepare(): Promise<{ cluster: Cluster; credentials: Credentials }> {
    try {
      const cluster = await clusterOf();
      return { cluster, credentials: await cluster.credentials() };
    } catch (error) {
      throw new ApiUnreachable((error as Error).message, false);
    }
  }

  async function send(method: ApiMethod, path: string, call: ApiCall): Promise<JsonAnswer & { status: number }> {
    const { cluster, credentials } = await prepare();
    if (closing.signal.aborted) throw new ApiUnreachable('Purser is stopping', false);
    const connections = pools.of(cluster.server, credentials);
    try {
      return await connections.ask(
        requestOf(cluster.server, credentials, method, path, call),
        CALL_MILLISECONDS,
        async (answer) => ({
          status: answer.statusCode,
          ...(await readJsonAnswer(answer.body, call.bytesMax ?? ANSWER_BYTES_MAX)),
        }),
      );
    } catch (error) {
      const { message, sent } = error as Unanswered;
      throw new ApiUnreachable(`${cluster.server}: ${message}`, sent);
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
      await pools.close();
    },
  };
}
export type ApiExchange = ReturnType<typeof openExchange>;
