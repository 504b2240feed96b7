import { constants } from 'node:crypto';
import type { Server as HttpServer } from 'node:http';
import { createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer, type TLSSocket } from 'node:tls';
import { type Certificate, TLS_VERSION_MIN } from '../net/certificate.ts';
import { contain, containConnection } from '../net/contain.ts';
import type { Events } from '../telemetry/events.ts';
import { endFaulty } from './exchange.ts';

/** The first byte of every TLS connection: the content type of a handshake (RFC 8446, section 5.1). */
const HANDSHAKE = 0x16;

/** The listener of an HTTP server that speaks TLS. */
type TlsDoor = {
  /**
   * Emits `connection` for every connection that opens, and `secured`, with both sockets, when one has TLS: from then on the
   * second socket stands for it.
   */
  listener: Server;
  /** Serves another certificate to the connections that open from now on. */
  use(certificate: Certificate): void;
};

type DoorLimits = {
  /** Time from the opening of a connection to the end of its handshake, or to its first byte without TLS. */
  handshakeMilliseconds: number;
  keepAliveInitialDelay: number;
};

/** Returns whether a connection is encrypted. */
export const isSecure = (socket: Socket): boolean => (socket as Partial<TLSSocket>).encrypted === true;

/**
 * Creates the listener of an HTTP server that speaks TLS, not yet listening. It passes connections to the HTTP server once they
 * have TLS. Those that begin in the clear are passed on as well, so that the server refuses them (`isSecure`) in HTTP, which their
 * client understands. A connection that does neither in time is closed.
 */
export function openTlsDoor(
  server: HttpServer,
  certificate: Certificate,
  { handshakeMilliseconds, keepAliveInitialDelay }: DoorLimits,
  events: Pick<Events, 'cutOff'>,
): TlsDoor {
  const contextOf = ({ cert, key }: Certificate) => ({
    cert,
    key,
    minVersion: TLS_VERSION_MIN,
    secureOptions: constants.SSL_OP_NO_RENEGOTIATION, // It costs the server more than the client.
  });
  // It never listens: it makes the handshakes, and keeps what later connections resume.
  const tls = createTlsServer({ ...contextOf(certificate), ALPNProtocols: ['http/1.1'] });
  contain(tls, endFaulty);
  const listener = createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay });
  contain(listener, endFaulty);
  // Node's server checks its slow clients once it listens.
  listener.once('listening', () => server.emit('listening'));
  /** The timers of the connections that have not begun to speak HTTP. */
  const timers = new WeakMap<Socket, NodeJS.Timeout>();
  const endTimer = (socket: Socket) => clearTimeout(timers.get(socket));

  function fail(socket: Socket) {
    events.cutOff('handshake');
    socket.destroy();
  }
  function begin(socket: Socket) {
    const first = socket.read(1) as Buffer | null;
    if (!first) return void socket.destroy(); // Its client has left.
    socket.unshift(first);
    if (first[0] === HANDSHAKE) return void tls.emit('connection', socket);
    endTimer(socket);
    pass(socket);
  }

  function pass(socket: Socket) {
    socket.allowHalfOpen = true; // As Node's HTTP server opens them. Until here a client that ends its side has left.
    server.emit('connection', socket);
  }

  listener.on('connection', (socket) => {
    containConnection(socket, 'connection');
    socket.on('error', () => {}); // Its close follows.
    timers.set(socket, setTimeout(fail, handshakeMilliseconds, socket).unref());
    socket.once('close', () => endTimer(socket));
    socket.once('readable', () => begin(socket));
  });
  tls.on('secureConnection', (secure) => {
    const { _parent: socket } = secure as TLSSocket & { _parent: Socket }; // Node has no public name for it.
    endTimer(socket);
    listener.emit('secured', socket, secure);
    if (!secure.destroyed) pass(secure);
  });
  tls.on('tlsClientError', (error: NodeJS.ErrnoException, secure) => {
    if (error.code === 'ECONNRESET')
      secure.destroy(); // Its client has left.
    else fail(secure);
  });
  return { listener, use: (it) => tls.setSecureContext(contextOf(it)) };
}
