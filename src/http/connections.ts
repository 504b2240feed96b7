import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import net, { type Socket } from 'node:net';

/** How often a stopping server looks at what is still open. */
const LOOK_MILLISECONDS = 20;
/**
 * A client that keeps its connection sends its next request within moments of an answer, or may have sent it already: so
 * long such a connection stays open when the server stops, and its request is answered rather than reset.
 */
const LINGER_MILLISECONDS = 100;
/** So long the last answers may take to be written after everything has one. */
const LAST_WORDS_MILLISECONDS = 1000;

type Connection = {
  /** Requests on it that have no whole answer yet; with pipelining more than one. */
  open: number;
  /** The answer that will be written last, so far. */
  last: ServerResponse | undefined;
  /** What had been read when it last fell silent: more than that is the beginning of a request. */
  bytesRead: number;
};

export type Connections = {
  /** Takes a request. False: its connection has been told that it ends before this one, which is never begun. */
  take(request: IncomingMessage, response: ServerResponse): boolean;
  /**
   * Closes the server without resetting what was accepted: no new connections; every request that is here or still comes
   * on an open connection is answered, and told with its last answer that the connection ends. `drain` is handed the
   * moment at which everything has been answered, and resolves then or when it has made the rest answer.
   */
  stop(drain: (answered: Promise<void>) => Promise<void>): Promise<void>;
};

/** Follows the connections of an HTTP server, from their beginning to the stop. */
export function followConnections(server: Server): Connections {
  const connections = new Map<Socket, Connection>();
  let stopping = false;

  server.on('connection', (socket) => {
    connections.set(socket, { open: 0, last: undefined, bytesRead: 0 });
    socket.once('close', () => connections.delete(socket));
  });

  /** The last answer on a connection says `Connection: close`; one before it must not, or those behind it are lost. */
  const announceEnd = ({ last }: Connection, isEnd: boolean) => {
    if (last && !last.headersSent) last.shouldKeepAlive = !isEnd;
  };
  const hasAnnouncedEnd = ({ last }: Connection) => last?.headersSent === true && !last.shouldKeepAlive;

  const isSilent = (socket: Socket, { open, bytesRead }: Connection) => open === 0 && socket.bytesRead === bytesRead;
  const isAnySpeaking = () => [...connections].some(([socket, it]) => !isSilent(socket, it));
  function closeSilent() {
    for (const [socket, it] of connections) if (isSilent(socket, it)) socket.destroySoon();
  }
  const look = () => new Promise((resolve) => setTimeout(resolve, LOOK_MILLISECONDS));

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

    async stop(drain) {
      stopping = true;
      // The connections that the kernel has taken for us already: a whole turn of the loop takes them in.
      for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve));
      // Not http's own close, which would end idle connections at once, with whatever is on its way to us on them.
      const closed = new Promise((resolve) => net.Server.prototype.close.call(server, resolve));
      for (const connection of connections.values()) announceEnd(connection, true);

      let drained = false;
      const lingerUntil = performance.now() + LINGER_MILLISECONDS;
      async function answered() {
        while (!drained && connections.size && (isAnySpeaking() || performance.now() < lingerUntil)) await look();
      }
      await drain(answered());
      drained = true;

      const lastWordsUntil = performance.now() + LAST_WORDS_MILLISECONDS;
      while (connections.size && performance.now() < lastWordsUntil) {
        closeSilent();
        await look();
      }
      server.closeAllConnections();
      await closed;
      server.close(); // Ends http's own look at slow clients, too.
    },
  };
}
