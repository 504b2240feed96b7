import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Events } from '../events.ts';
import { networkOf } from '../net/address.ts';

/** Requests that may wait on one connection for the answer to the one before them. */
const WAITING_COUNT_MAX = 32;

type Connection = {
  socket: Socket;
  network: string;
  /** A request of it is being answered. */
  isBusy: boolean;
  waiting: [IncomingMessage, ServerResponse][];
};
/** By network, those that have asked longest ago first. */
type Idle = Map<string, Set<Connection>>;
type Handler = (request: IncomingMessage, response: ServerResponse) => unknown;

export type ConnectionLimit = {
  /** Has a request answered, when it is its turn. */
  handle: Handler;
  /** Takes charge of the server's connections. */
  watch(server: Server): void;
  count(): number;
};

/**
 * The connections of the door, at most `most` of them. Where there is no room for one more, one that asks nothing at the
 * moment is closed: rather of strangers than of `guests`, who have shown a valid token on it; of the network that has the
 * most of such; and there the one that has been silent for longest. So whoever floods makes room himself, and a request
 * that is being answered is never cut off. On one connection requests are answered one after the other (RFC 9112, section
 * 9.3.2), so that nobody has more of them in flight than connections. A client that takes nothing of its answer for
 * `stallMilliseconds` is gone.
 */
export function limitConnections(
  most: number,
  stallMilliseconds: number,
  guests: WeakSet<Socket>,
  handler: Handler,
  events: Pick<Events, 'cutOff'>,
): ConnectionLimit {
  const bySocket = new Map<Socket, Connection>();
  const idleStrangers: Idle = new Map();
  const idleGuests: Idle = new Map();

  function rest(connection: Connection) {
    const idle = guests.has(connection.socket) ? idleGuests : idleStrangers;
    const { network } = connection;
    const others = idle.get(network) ?? new Set();
    idle.set(network, others.add(connection));
  }
  function stir(connection: Connection) {
    const { network } = connection;
    for (const idle of [idleStrangers, idleGuests]) {
      const others = idle.get(network);
      others?.delete(connection);
      if (others?.size === 0) idle.delete(network);
    }
  }
  function end({ socket }: Connection, why: Parameters<Events['cutOff']>[0]) {
    events.cutOff(why);
    socket.destroy();
    forget(socket); // At once: its event comes later, and the next one wants room now.
  }
  function forget(socket: Socket) {
    const connection = bySocket.get(socket);
    if (!connection) return;
    bySocket.delete(socket);
    stir(connection);
    connection.waiting = [];
  }

  /** False where every connection is being answered. */
  function makeRoom(): boolean {
    let crowd: Set<Connection> | undefined;
    const idle = idleStrangers.size ? idleStrangers : idleGuests;
    for (const it of idle.values()) if (it.size > (crowd?.size ?? 0)) crowd = it;
    const [longest] = crowd ?? [];
    if (longest) end(longest, 'no_room');
    return longest !== undefined;
  }

  function answer(connection: Connection, request: IncomingMessage, response: ServerResponse) {
    connection.isBusy = true;
    stir(connection);
    response.once('close', () => {
      connection.isBusy = false;
      if (!bySocket.has(connection.socket)) return;
      const next = connection.waiting.shift();
      if (next) answer(connection, ...next);
      else rest(connection);
    });
    handler(request, response);
  }

  return {
    count: () => bySocket.size,
    handle(request, response) {
      const connection = bySocket.get(request.socket);
      if (!connection) return; // It was ended a moment ago, and this was in the same piece.
      if (!connection.isBusy) answer(connection, request, response);
      else if (connection.waiting.length < WAITING_COUNT_MAX) connection.waiting.push([request, response]);
      else end(connection, 'pipelined');
    },
    watch(server) {
      server.on('connection', (socket: Socket) => {
        if (bySocket.size >= most && !makeRoom()) {
          events.cutOff('no_room');
          socket.destroy();
          return;
        }
        const connection = { socket, network: networkOf(socket.remoteAddress), isBusy: false, waiting: [] };
        bySocket.set(socket, connection);
        rest(connection);
        socket.once('close', () => forget(socket));
      });
      // Node tells of every connection on which nothing has moved, and ends none of them itself when somebody listens.
      server.setTimeout(stallMilliseconds, (socket) => {
        const connection = bySocket.get(socket);
        if (!connection?.isBusy) return void socket.destroy(); // It was kept alive, and was silent.
        if (socket.writableLength > 0) end(connection, 'stalled'); // Otherwise it waits for us.
      });
    },
  };
}
