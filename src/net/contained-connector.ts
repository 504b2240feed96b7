import type { ConnectionOptions } from 'node:tls';
import { buildConnector } from 'undici';
import { containConnection } from './contain.ts';

/**
 * Creates undici's own connector with two changes: an exception of undici on a socket event ends only that socket, and over TLS it
 * offers only HTTP/1.1, for which tests prove what was sent and what certainly was not (docs/decisions/0062).
 */
export function containedConnector(timeoutMilliseconds: number, tls: ConnectionOptions = {}): buildConnector.connector {
  const connect = buildConnector({
    ...(tls as buildConnector.BuildOptions),
    timeout: timeoutMilliseconds,
    allowH2: false,
  });
  return (options, callback) => {
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null);
      containConnection(socket, 'connection');
      callback(null, socket);
    });
  };
}
