import type { IncomingMessage } from 'node:http';
import WebSocket from 'ws';
import { containConnection } from '../../../net/contain.ts';
import { readJsonAnswer } from '../../../net/json-answer.ts';
import { ApiError, ApiUnreachable, errorOf } from './api-error.ts';
import { ANSWER_BYTES_MAX, type ApiExchange } from './exchange.ts';

const OPEN_MILLISECONDS = 20_000;
/** A load balancer closes a connection that is silent for long. */
const PING_MILLISECONDS = 30_000;
const KEEP_ALIVE_MILLISECONDS = 15_000;
const FRAME_BYTES_MAX = 16 * 1024 * 1024;

/** Opens sockets to programs in pods, with the credentials of an exchange. */
export function createSockets({ prepare, renew, closing }: Pick<ApiExchange, 'prepare' | 'renew' | 'closing'>) {
  const sockets = new Set<WebSocket>();

  async function open(path: string, protocol: string): Promise<WebSocket> {
    const { cluster, credentials } = await prepare();
    closing.throwIfAborted();
    const socket = new WebSocket(`${cluster.server.replace(/^http/, 'ws')}${path}`, [protocol], {
      ...credentials.tls,
      headers: credentials.token === undefined ? {} : { authorization: `Bearer ${credentials.token}` },
      handshakeTimeout: OPEN_MILLISECONDS,
      perMessageDeflate: false,
      maxPayload: FRAME_BYTES_MAX,
      allowSynchronousEvents: false, // Thousands of short messages may come at once: others have a turn between them.
      skipUTF8Validation: true,
    });
    sockets.add(socket); // One that is not open yet must not outlast `close`, either.
    const forget = () => sockets.delete(socket);
    socket.once('close', forget);
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', (error: NodeJS.ErrnoException) =>
        reject(new ApiUnreachable(`${cluster.server}: ${error.code ?? error.message}`, true)),
      );
      socket.once('upgrade', ({ socket: connection }: IncomingMessage) => {
        containConnection(connection, 'backend');
        connection.setKeepAlive(true, KEEP_ALIVE_MILLISECONDS);
        connection.setNoDelay(true);
      });
      socket.once('unexpected-response', (_, response: IncomingMessage) => {
        void readJsonAnswer(response, ANSWER_BYTES_MAX)
          .catch(() => ({ json: undefined, beginning: '' }))
          .then((answer) => reject(errorOf(response.statusCode ?? 0, answer)))
          .finally(() => {
            response.destroy();
            forget(); // It never reports that it is closed.
          });
      });
    });
    socket.on('error', () => {}); // `close` follows.
    const ping = setInterval(() => socket.ping(), PING_MILLISECONDS).unref();
    socket.once('close', () => clearInterval(ping));
    return socket;
  }

  return {
    /** Opens a socket that speaks this protocol. Throws ApiError when the server answered and opened none. */
    async connect(path: string, protocol: string): Promise<WebSocket> {
      try {
        return await open(path, protocol);
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 401)) throw error;
        await renew();
        return open(path, protocol);
      }
    },
    close() {
      for (const socket of sockets) socket.terminate();
    },
  };
}
