import type WebSocket from 'ws';
import { ApiError, isNotFound } from './api-error.ts';
import type { Cluster } from './credentials.ts';
import { type ApiMethod, openExchange } from './exchange.ts';
import { createSockets } from './sockets.ts';

/** The REST calls to an API server, and the sockets to programs in a pod. Each call has a time limit. */

/** All pages of a list together: some ten thousand machines. */
const LIST_BYTES_MAX = 64 * 1024 * 1024;
const PAGE_COUNT = 250;
const PAGES_MAX = 40;
/** The number of times that a list is tried when the server forgets its position. */
const LIST_ATTEMPTS = 3;

type ObjectList<T> = { kind?: string; metadata?: { continue?: string }; items?: T[] | null };

/** The calls of the Kubernetes API. */
export type KubernetesApi = {
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
export function openKubernetesApi(read: () => Promise<Cluster>): KubernetesApi {
  const { server, prepare, exchange, renew, closing, close } = openExchange(read);
  const sockets = createSockets({ prepare, renew, closing });

  const call = async <T>(method: ApiMethod, path: string, body?: object, type?: string) =>
    (await exchange(method, path, { body, type })).json as T;

  async function listOnce<T>(path: string, query: Record<string, string>): Promise<T[]> {
    const items: T[] = [];
    let bytesMax = LIST_BYTES_MAX;
    let next = '';
    for (let page = 0; page < PAGES_MAX; page++) {
      const limits = { limit: String(PAGE_COUNT), ...(next ? { continue: next } : {}) };
      const address = `${path}?${new URLSearchParams({ ...query, ...limits })}`;
      const { json, length } = await exchange('GET', address, { bytesMax });
      const listed = json as ObjectList<T>;
      // The items of an empty list may be null, but are never missing.
      if (!listed.kind?.endsWith('List') || listed.items === undefined)
        throw new Error(`${server()}: what came is no list`);
      for (const it of listed.items ?? []) items.push(it);
      next = listed.metadata?.continue ?? '';
      if (!next) return items;
      bytesMax -= length;
    }
    // A part of the list would make all other machines look gone.
    throw new Error(`${server()}: a list has no end`);
  }

  return {
    get server() {
      return server();
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
    connect: sockets.connect,
    async close() {
      const closed = close();
      sockets.close();
      await closed;
    },
  };
}
