import { buildConnector } from 'undici';
import { contain } from './contain.ts';

/** Creates undici's own connector, but an exception of undici on a socket event ends only that socket. */
export function containedConnector(timeoutMilliseconds: number): buildConnector.connector {
  const connect = buildConnector({ timeout: timeoutMilliseconds });
  return (options, callback) => {
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null);
      contain(socket, (fault) => socket.destroy(fault));
      callback(null, socket);
    });
  };
}
