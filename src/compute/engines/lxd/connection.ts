import { X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { TLSSocket } from 'node:tls';
import { buildConnector } from 'undici';
import { containConnection } from '../../../net/contain.ts';
import { type LxdAddress, socketPathOf } from './address.ts';

/**
 * Returns a connector to the address. Over TLS the server has to show the very certificate that is pinned, whatever its name and
 * issuer: LXD and Incus sign their own. Certificate files are read at each connection.
 */
export function lxdConnector(address: LxdAddress, timeout: number): buildConnector.connector {
  return (options, callback) => {
    build(socketPathOf(address), address.tls, timeout).then(
      (connect) =>
        connect(options, (...[error, connection]) => {
          if (error) return callback(error, null);
          containConnection(connection, 'backend');
          callback(null, connection);
        }),
      (error: Error) => callback(error, null),
    );
  };
}

async function build(
  socketPath: string | undefined,
  tls: LxdAddress['tls'],
  timeout: number,
): Promise<buildConnector.connector> {
  const shared = { timeout, allowH2: false }; // WebSockets need HTTP/1.1.
  if (!tls) return buildConnector({ ...shared, socketPath: socketPath ?? null });
  const [server, cert, key] = await Promise.all([readFile(tls.server), readFile(tls.cert), readFile(tls.key)]);
  const pinned = new X509Certificate(server).fingerprint256;
  // The pin decides, below, before anything is sent.
  const connect = buildConnector({ ...shared, cert, key, rejectUnauthorized: false, maxCachedSessions: 0 });
  return (options, callback) =>
    connect(options, (...[error, connection]) => {
      if (error) return callback(error, null);
      if (connection instanceof TLSSocket && connection.getPeerCertificate().fingerprint256 === pinned)
        return callback(null, connection);
      connection.destroy();
      callback(new Error('the server shows another certificate than the one that is pinned'), null);
    });
}
