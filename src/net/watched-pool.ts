import { type Dispatcher, Pool } from 'undici';
import { containedConnector } from './contained-connector.ts';

export type WatchedPool = {
  dispatcher: Dispatcher;
  /** Whether a byte of the request with this signal may have been sent. Each request has a signal of its own. */
  wasSent(signal: AbortSignal): boolean;
  close(): Promise<void>;
};

/**
 * A connection pool that tells a request that certainly never went out from one that may have. A request counts as sent
 * from the moment undici begins to write it to a connection. Error codes cannot tell the two apart: Linux reports
 * EHOSTUNREACH on an established connection too, and ECONNRESET comes before the first byte as well as after the last.
 */
export function openWatchedPool(
  origin: string,
  { connectMilliseconds, ...options }: Omit<Pool.Options, 'connect'> & { connectMilliseconds: number },
): WatchedPool {
  const sent = new WeakSet<AbortSignal>();
  const pool = new Pool(origin, { ...options, connect: containedConnector(connectMilliseconds) });
  const dispatcher = pool.compose((dispatch) => (request, handler) => {
    const start = handler.onRequestStart?.bind(handler);
    handler.onRequestStart = (...args) => {
      const { signal } = request as Dispatcher.RequestOptions;
      if (signal instanceof AbortSignal && !signal.aborted) sent.add(signal); // An aborted request is not written.
      start?.(...args);
    };
    return dispatch(request, handler);
  });
  return { dispatcher, wasSent: (signal) => sent.has(signal), close: () => pool.destroy() };
}
