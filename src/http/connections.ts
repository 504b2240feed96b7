import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import net, { type Server as Listener, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { nextTurn } from '../base/turn.ts';

/** Interval at which a stopping server checks which connections are still open. */
const POLL_MILLISECONDS = 20;
/**
 * Milliseconds for which a kept-alive connection stays open when the server stops. Its client may have sent the next
 * request already, or will within moments of a response; that request is answered rather than reset.
 */
const LINGER_MILLISECONDS = 100;
/** Time limit for flushing the final responses after every request has been answered. */
const FLUSH_MILLISECONDS = 1000;

type Connection = {
  /** Requests without a complete response; more than one with pipelining. */
  open: number;
  /** The response to the latest request, which is written last. */
  last: ServerResponse | undefined;
  /** Bytes read when it last became idle; more than that is the beginning of a request. */
  bytesRead: number;
};

export type Connections = {
  /** Registers a request. Returns false if an earlier response announced the connection's end: then it is not answered. */
  take(request: IncomingMessage, response: ServerResponse): boolean;
  /** Returns the response to the latest request of a connection, whether it is over or not. */
  latest(socket: Socket): ServerResponse | undefined;
  /**
   * Closes the server without resetting accepted connections. Refuses new ones. Answers every request that has arrived or still
   * arrives; the last response ends its connection. `drain` receives a promise that all requests have been answered, and may cut
   * the rest short.
   */
  stop(drain: (answered: Promise<void>) => Promise<void>): Promise<void>;
};

/**
 * Tracks the connections of an HTTP server so that it can stop gracefully. `listener` opens them: a `TlsDoor`'s, or the server
 * itself.
 */
export function followConnections(server: Server, listener: Listener = server): Connections {
  const connections = new Map<Socket, Connection>();
  let stopping = false;

  function follow(socket: Socket) {
    connections.set(socket, { open: 0, last: undefined, bytesRead: 0 });
    socket.once('close', () => connections.delete(socket));
  }
  listener.on('connection', follow);
  listener.on('secured', (socket: Socket, secure: Socket) => {
    connections.delete(socket);
    follow(secure);
  });

  /** Only the last response may carry `Connection: close`; on an earlier one it would lose the requests behind it. */
  const announceEnd = ({ last }: Connection, isEnd: boolean) => {
    if (last && !last.headersSent) last.shouldKeepAlive = !isEnd;
  };
  const hasAnnouncedEnd = ({ last }: Connection) => last?.headersSent === true && !last.shouldKeepAlive;

  const isIdle = (socket: Socket, { open, bytesRead }: Connection) => open === 0 && socket.bytesRead === bytesRead;
  const isAnyBusy = () => [...connections].some(([socket, it]) => !isIdle(socket, it));
  function closeIdle() {
    for (const [socket, it] of connections) if (isIdle(socket, it)) socket.destroySoon();
  }

  return {
    take({ socket }, response) {
      const connection = connections.get(socket);
      if (!connection) return true;
      if (stopping) {
        if (hasAnnouncedEnd(connection)) return false;
        announceEnd(connection, false);
      }
      connection.open++;
      connection.last = response;
      if (stopping) announceEnd(connection, true);
      response.once('close', () => {
        connection.open--;
        connection.bytesRead = socket.bytesRead;
      });
      return true;
    },

    latest: (socket) => connections.get(socket)?.last,

    async stop(drain) {
      stopping = true;
      // The kernel may have accepted connections already: a full turn of the event loop takes them in.
      for (let turn = 0; turn < 2; turn++) await nextTurn();
      // http's own close ends idle connections at once and loses requests on their way.
      const closed = new Promise((resolve) => net.Server.prototype.close.call(listener, resolve));
      for (const connection of connections.values()) announceEnd(connection, true);

      let drained = false;
      const lingerUntil = performance.now() + LINGER_MILLISECONDS;
      async function answered() {
        while (!drained && connections.size && (isAnyBusy() || performance.now() < lingerUntil))
          await sleep(POLL_MILLISECONDS);
      }
      await drain(answered());
      drained = true;

      const flushUntil = performance.now() + FLUSH_MILLISECONDS;
      while (connections.size && performance.now() < flushUntil) {
        closeIdle();
        await sleep(POLL_MILLISECONDS);
      }
      server.closeAllConnections();
      for (const socket of connections.keys()) socket.destroy(); // The server no longer tracks upgraded connections.
      await closed;
      server.close(); // Also stops http's own check for slow clients.
    },
  };
}
