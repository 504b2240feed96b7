import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Events } from '../events.ts';
import { networkOf } from '../net/address.ts';

/** The most pipelined requests that may wait on one connection behind the one being answered. */
const WAITING_COUNT_MAX = 32;

type Connection = {
  socket: Socket;
  network: string;
  /** True while one of its requests is being answered. */
  isBusy: boolean;
  waiting: [IncomingMessage, ServerResponse][];
};
/** Idle connections by network, the longest idle first. */
type Idle = Map<string, Set<Connection>>;
type Handler = (request: IncomingMessage, response: ServerResponse) => unknown;

export type ConnectionLimit = {
  /** Answers a request when its turn on its connection has come. */
  handle: Handler;
  /** Starts to limit the connections of a server. */
  watch(server: Server): void;
  /** The number of open connections. */
  count(): number;
};

/**
 * Caps open connections at `max`. When full, closes an idle one: unauthenticated before authenticated (those in
 * `authenticated` have shown a valid token), then from the network with the most idle connections, then the longest idle.
 * A flood therefore evicts itself, and a request being answered is never cut off. Requests on one connection are answered
 * one after the other (RFC 9112, section 9.3.2), so no client has more requests in flight than connections. A client that
 * reads nothing of its response for `stallMilliseconds` is disconnected.
 */
export function limitConnections(
  max: number,
  stallMilliseconds: number,
  authenticated: WeakSet<Socket>,
  handler: Handler,
  events: Pick<Events, 'cutOff'>,
): ConnectionLimit {
  const bySocket = new Map<Socket, Connection>();
  const idleUnauthenticated: Idle = new Map();
  const idleAuthenticated: Idle = new Map();

  function markIdle(connection: Connection) {
    const idle = authenticated.has(connection.socket) ? idleAuthenticated : idleUnauthenticated;
    const { network } = connection;
    const others = idle.get(network) ?? new Set();
    idle.set(network, others.add(connection));
  }
  function markBusy(connection: Connection) {
    const { network } = connection;
    for (const idle of [idleUnauthenticated, idleAuthenticated]) {
      const others = idle.get(network);
      others?.delete(connection);
      if (others?.size === 0) idle.delete(network);
    }
  }
  function end({ socket }: Connection, why: Parameters<Events['cutOff']>[0]) {
    events.cutOff(why);
    socket.destroy();
    forget(socket); // At once: its close event comes later, and the new connection needs the place now.
  }
  function forget(socket: Socket) {
    const connection = bySocket.get(socket);
    if (!connection) return;
    bySocket.delete(socket);
    markBusy(connection);
    connection.waiting = [];
  }

  /** Closes one idle connection. Returns false when every connection is busy. */
  function evictIdle(): boolean {
    let largest: Set<Connection> | undefined;
    const idle = idleUnauthenticated.size ? idleUnauthenticated : idleAuthenticated;
    for (const it of idle.values()) if (it.size > (largest?.size ?? 0)) largest = it;
    const [longest] = largest ?? [];
    if (longest) end(longest, 'no_room');
    return longest !== undefined;
  }

  function answer(connection: Connection, request: IncomingMessage, response: ServerResponse) {
    connection.isBusy = true;
    markBusy(connection);
    response.once('close', () => {
      connection.isBusy = false;
      if (!bySocket.has(connection.socket)) return;
      const next = connection.waiting.shift();
      if (next) answer(connection, ...next);
      else markIdle(connection);
    });
    handler(request, response);
  }

  return {
    count: () => bySocket.size,
    handle(request, response) {
      const connection = bySocket.get(request.socket);
      if (!connection) return; // The connection was ended a moment ago, and this request arrived in the same chunk.
      if (!connection.isBusy) answer(connection, request, response);
      else if (connection.waiting.length < WAITING_COUNT_MAX) connection.waiting.push([request, response]);
      else end(connection, 'pipelined');
    },
    watch(server) {
      server.on('connection', (socket: Socket) => {
        if (bySocket.size >= max && !evictIdle()) {
          events.cutOff('no_room');
          socket.destroy();
          return;
        }
        const connection = { socket, network: networkOf(socket.remoteAddress), isBusy: false, waiting: [] };
        bySocket.set(socket, connection);
        markIdle(connection);
        socket.once('close', () => forget(socket));
      });
      // Node reports every inactive connection, and with a listener here leaves it to us to close it.
      server.setTimeout(stallMilliseconds, (socket) => {
        const connection = bySocket.get(socket);
        if (!connection?.isBusy) return void socket.destroy(); // A kept-alive connection that was idle.
        if (socket.writableLength > 0) end(connection, 'stalled'); // Otherwise the client is waiting for us.
      });
    },
  };
}
