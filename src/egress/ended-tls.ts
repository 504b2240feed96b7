import { once } from 'node:events';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { connect, type SecureContext, TLSSocket } from 'node:tls';
import { containConnection } from '../net/contain.ts';
import { inTime } from '../net/deadline.ts';

/** Both halves of TLS that the proxy ends: it is the server towards the lease, and the client towards the server. */

const HANDSHAKE_MILLISECONDS = 10_000;
/**
 * The silence of a server after which it gets a client's end: if it has sent nothing since the client's last piece, and otherwise.
 */
const SILENCE_MILLISECONDS = { owing: 60_000, otherwise: 1000 };
/** The requests are read, so they must be of the protocol that is read here. */
const ALPNProtocols = ['http/1.1'];

/** Speaks TLS on a connection to a server. Rejects unless its certificate is one for `name`, of an authority that is trusted. */
export async function speakTls(socket: Socket, name: string, secureContext: SecureContext): Promise<TLSSocket> {
  const tls = connect({
    ...{ socket, servername: name, ALPNProtocols, secureContext },
    rejectUnauthorized: true, // Whatever the environment says.
  });
  await handshake(tls, socket, 'secureConnect');
  return tls;
}

/** Is the server of `name` towards a client that begins TLS. Rejects where that asks for another. */
export async function beServer(client: Duplex, secureContext: SecureContext, name: string): Promise<TLSSocket> {
  const tls = new TLSSocket(client, { isServer: true, secureContext, ALPNProtocols });
  tls.allowHalfOpen = true; // As the stream below it is.
  await handshake(tls, client, 'secure');
  const { servername } = tls as TLSSocket & { servername?: string | false };
  if (servername && servername.toLowerCase() !== name) {
    tls.destroy();
    throw new Error('TLS asks for another server than the request');
  }
  return tls;
}

/**
 * Passes a client's end on to a server that has ended too, or is silent for long: many a server takes the end of TLS for the
 * connection's, and drops the rest of its answer. Called before either is read.
 */
export function holdEnd(client: Duplex, server: Duplex): void {
  let owesAnswer = false;
  client.on('data', () => {
    owesAnswer = true;
  });
  server.on('data', () => {
    owesAnswer = false;
  });
  client.once('end', () => {
    if (server.readableEnded || server.destroyed) return void server.end();
    const silence = owesAnswer ? SILENCE_MILLISECONDS.owing : SILENCE_MILLISECONDS.otherwise;
    let late: NodeJS.Timeout;
    const wait = () => {
      clearTimeout(late);
      // Where the client has to read first, it is not the server that is silent.
      late = setTimeout(() => (server.isPaused() ? wait() : server.end()), silence);
    };
    wait();
    server.on('data', wait).once('end', () => server.end());
    server.once('close', () => clearTimeout(late));
  });
}

/** Waits for a handshake. Either stream ends with the other. */
async function handshake(tls: TLSSocket, below: Duplex, event: 'secure' | 'secureConnect'): Promise<void> {
  containConnection(tls, 'connection');
  tls.on('error', () => {}); // `close` follows.
  tls.once('close', () => below.destroy());
  below.once('close', () => tls.destroy());
  const gone = once(tls, 'close').then(() => {
    throw new Error('the connection ended');
  });
  try {
    await inTime(Promise.race([once(tls, event), gone]), HANDSHAKE_MILLISECONDS, 'the handshake');
  } catch (error) {
    tls.destroy();
    throw error;
  }
}
