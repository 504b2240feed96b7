import { buildConnector } from 'undici';
import { contain } from './contain.ts';

/** Connects as undici does by itself; an exception of undici on the events of a socket ends that socket only. */
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
