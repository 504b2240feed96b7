import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Server as Listener, Socket } from 'node:net';
import { networkOf } from '../net/address.ts';
import type { Events } from '../telemetry/events.ts';

/** Maximum number of pipelined requests that wait on one connection behind the request being answered. */
const WAITING_COUNT_MAX = 32;
/** The share of open connections, the newest ones, that are kept when room is needed although they have sent no request yet. */
const NEWEST_SHARE = 1 / 8;

type LimitedConnection = {
  socket: Socket;
  network: string;
  /** True while one of its requests is being answered. */
  isBusy: boolean;
  /** The request that is being answered. */
  request?: IncomingMessage;
  waiting: [IncomingMessage, ServerResponse][];
};
type Handler = (request: IncomingMessage, response: ServerResponse) => unknown;

type ConnectionLimit = {
  /** Answers a request when its turn on its connection has come. */
  handle: Handler;
  /** Starts to limit the connections of a server. `listener` opens them: a `TlsDoor`'s, or the server itself. */
  watch(server: Server, listener?: Listener): void;
  /** Continues to watch a connection whose protocol changes, which the server itself stops doing. */
  follow(upgraded: Socket): void;
  /** The number of open connections. */
  count(): number;
};

/**
 * Caps open connections at `max`. When full, closes one: first an unauthenticated connection (`authenticated` have shown a valid
 * token) that is idle or whose request is still arriving; then an idle authenticated one. Among these, it takes the network with
 * the most of them, and there the one that has been in this state longest. Last comes a connection that has only just been opened,
 * as its request may be on its way. A flood therefore evicts itself, also with requests that never end, unless it comes from so
 * many networks that none has more than the others. A request that has arrived completely, or has shown a token, is never cut off.
 *
 * Requests on one connection are answered one after the other (RFC 9112, section 9.3.2), so no client has more requests in flight
 * than connections. A client that reads nothing of its response for `stallMilliseconds` is disconnected.
 */
export function limitConnections(
  max: number,
  stallMilliseconds: number,
  authenticated: WeakSet<Socket>,
  handler: Handler,
  events: Pick<Events, 'cutOff'>,
): ConnectionLimit {
  const order = createEvictionOrder(Math.max(1, Math.floor(max * NEWEST_SHARE)), authenticated);
  const open = createOpenConnections(order, events);

  function answer(connection: LimitedConnection, request: IncomingMessage, response: ServerResponse) {
    connection.isBusy = true;
    connection.request = request;
    order.busy(connection);
    response.once('close', () => {
      connection.isBusy = false;
      order.drop(connection);
      if (!open.of(connection.socket)) return;
      const next = connection.waiting.shift();
      if (next) answer(connection, ...next);
      else order.idle(connection);
    });
    handler(request, response);
    const spareArrived = () => connection.isBusy && connection.request === request && order.spareArrived(connection);
    spareArrived();
    // Node emits a request before it has read its end; most requests arrive completely in the same piece.
    if (order.isArriving(connection)) setImmediate(spareArrived);
  }

  /** Ends a connection without traffic for `stallMilliseconds`, unless its client is waiting for an answer. */
  function endSilent(socket: Socket) {
    const connection = open.of(socket);
    if (!connection?.isBusy) return void socket.destroy(); // A kept-alive connection that was idle.
    if (socket.writableLength > 0) open.end(connection, 'stalled');
  }

  return {
    count: open.count,
    handle(request, response) {
      const connection = open.of(request.socket);
      if (!connection) return; // The connection was ended a moment ago, and this request arrived in the same chunk.
      if (!connection.isBusy) answer(connection, request, response);
      else if (connection.waiting.length < WAITING_COUNT_MAX) connection.waiting.push([request, response]);
      else open.end(connection, 'pipelined');
    },
    watch(server, listener = server) {
      listener.on('connection', (socket: Socket) => {
        if (open.count() < max || open.evict()) return open.add(socket);
        events.cutOff('no_room');
        socket.destroy();
      });
      listener.on('secured', open.secure);
      // Node reports every inactive connection, and with a listener here leaves it to us to close it.
      server.setTimeout(stallMilliseconds, endSilent);
    },
    follow(upgraded) {
      upgraded.setTimeout(stallMilliseconds, () => endSilent(upgraded));
    },
  };
}

/** Creates the set of open connections. `order` learns of each that is added and removed. */
function createOpenConnections(order: EvictionOrder, events: Pick<Events, 'cutOff'>) {
  const bySocket = new Map<Socket, LimitedConnection>();
  function end({ socket }: LimitedConnection, why: Parameters<Events['cutOff']>[0]) {
    events.cutOff(why);
    socket.destroy();
    forget(socket); // At once: its close event comes later, and the new connection needs the slot now.
  }
  function forget(socket: Socket) {
    const connection = bySocket.get(socket);
    if (!connection) return;
    bySocket.delete(socket);
    order.drop(connection);
    connection.waiting = [];
  }
  return {
    count: () => bySocket.size,
    of: (socket: Socket) => bySocket.get(socket),
    add(socket: Socket): void {
      const connection = { socket, network: networkOf(socket.remoteAddress), isBusy: false, waiting: [] };
      bySocket.set(socket, connection);
      order.opened(connection);
      socket.once('close', () => forget(socket));
    },
    /** Puts the socket of a connection's TLS in the place of the one below it. */
    secure(socket: Socket, secure: Socket): void {
      const connection = bySocket.get(socket);
      if (!connection) return void secure.destroy(); // It was ended a moment ago.
      bySocket.delete(socket);
      connection.socket = secure;
      bySocket.set(secure, connection);
      secure.once('close', () => forget(secure));
    },
    end,
    /** Closes one connection to make room. Returns false when every one is busy with a request that must not be cut off. */
    evict(): boolean {
      const first = order.first();
      if (first) end(first, 'no_room');
      return first !== undefined;
    },
  };
}

/** The order in which connections are closed to make room. */
type EvictionOrder = {
  /** Adds a connection that has just been opened. */
  opened(connection: LimitedConnection): void;
  /** Adds one that waits for its next request. */
  idle(connection: LimitedConnection): void;
  /** Moves one whose request begins to be answered: it may be closed while its request is arriving without a token. */
  busy(connection: LimitedConnection): void;
  /** True while the request of a connection is arriving and has shown no token. */
  isArriving(connection: LimitedConnection): boolean;
  /** Removes a busy connection once its request is complete or has shown a token. */
  spareArrived(connection: LimitedConnection): void;
  drop(connection: LimitedConnection): void;
  /** Returns the connection to close first, or undefined when every one is busy with a request that must not be cut off. */
  first(): LimitedConnection | undefined;
};

function createEvictionOrder(newestMax: number, authenticated: WeakSet<Socket>): EvictionOrder {
  /** Connections without a valid token that are idle, or busy with a request that is not yet complete. */
  const strangers = createGroup();
  const idleAuthenticated = createGroup();
  /** The newest connections that have sent no request yet, in the order of their arrival. */
  const newest = new Set<LimitedConnection>();

  function take(connection: LimitedConnection): void {
    strangers.drop(connection);
    idleAuthenticated.drop(connection);
  }
  const isArriving = ({ request, socket }: LimitedConnection) =>
    request !== undefined && !request.complete && !authenticated.has(socket);
  const idle = (connection: LimitedConnection) =>
    (authenticated.has(connection.socket) ? idleAuthenticated : strangers).add(connection);

  function firstIn(group: ConnectionGroup): LimitedConnection | undefined {
    for (;;) {
      const longest = group.longest(newest);
      if (!longest?.isBusy || isArriving(longest)) return longest;
      take(longest); // Its request has arrived completely in the meantime, or has shown a token.
    }
  }

  return {
    opened(connection) {
      idle(connection);
      newest.add(connection);
      const [first] = newest;
      if (first && newest.size > newestMax) newest.delete(first);
    },
    idle,
    busy(connection) {
      newest.delete(connection);
      take(connection);
      if (isArriving(connection)) strangers.add(connection);
    },
    isArriving,
    spareArrived(connection) {
      if (!isArriving(connection)) take(connection);
    },
    drop(connection) {
      newest.delete(connection);
      take(connection);
    },
    first: () => firstIn(strangers) ?? firstIn(idleAuthenticated) ?? newest.values().next().value,
  };
}

/** Connections by network. */
type ConnectionGroup = {
  add(connection: LimitedConnection): void;
  drop(connection: LimitedConnection): void;
  /** Returns the connection that has been in the group longest, beside `spared`, of the network with the most of them. */
  longest(spared: ReadonlySet<LimitedConnection>): LimitedConnection | undefined;
};

function createGroup(): ConnectionGroup {
  const byNetwork = new Map<string, Set<LimitedConnection>>();
  return {
    add(connection) {
      const others = byNetwork.get(connection.network) ?? new Set();
      byNetwork.set(connection.network, others.add(connection));
    },
    drop(connection) {
      const others = byNetwork.get(connection.network);
      others?.delete(connection);
      if (others?.size === 0) byNetwork.delete(connection.network);
    },
    longest(spared) {
      let longest: LimitedConnection | undefined;
      let size = 0;
      for (const it of byNetwork.values()) {
        const first = it.size > size && it.values().find((one) => !spared.has(one));
        if (first) [longest, size] = [first, it.size];
      }
      return longest;
    },
  };
}
