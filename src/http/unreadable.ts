import { type IncomingMessage, type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import { Refusal } from '../base/refusal.ts';
import { isUnhurried } from './body.ts';
import type { Connections } from './connections.ts';
import { type HttpApp, unparsableRequest } from './endpoint.ts';

/** Time in which a client can read the answer. Closing at once would reset the connection, and the answer may be lost. */
const LINGER_MILLISECONDS = 2000;

/** An error of a client, as Node reports it: of the parser, of a time limit, or of the connection. */
type ClientError = Error & { code?: string; reason?: string };

/** Returns the refusal of a request that Node's parser cannot read. Undefined if the connection itself has failed. */
function refusalOf({ code = '', reason }: ClientError): Refusal | undefined {
  if (code === 'HPE_HEADER_OVERFLOW') return new Refusal('head_too_large');
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new Refusal('request_timeout');
  if (!code.startsWith('HPE_')) return undefined;
  return new Refusal('invalid_request', `The request cannot be read as HTTP${reason ? `: ${reason}` : ''}.`);
}

/** Fails the body of a request. Unlike `destroy`, leaves the connection open for the answer. */
function failBody(request: IncomingMessage, refusal: Refusal): void {
  request._destroy = (error, done) => done(error);
  request.on('error', () => {}); // The reader of the body gets the error, if there is one; this only avoids an uncaught one.
  request.destroy(refusal);
}

/**
 * Answers requests that Node's parser cannot read like every other refusal, after the answers to earlier requests on the
 * connection. A body that cannot be read fails with the refusal, and its reader answers. The connection ends in either case.
 * Returns a function that returns whether nothing more is read from a connection.
 */
export function answerUnreadable(
  app: Pick<HttpApp, 'events' | 'storage'>,
  server: Server,
  connections: Connections,
): (socket: Socket) => boolean {
  const ending = new WeakSet<Socket>();

  function refuse(socket: Socket, refusal: Refusal) {
    if (!socket.writable) return; // It is being ended already.
    const { status, headers, body } = unparsableRequest(app, refusal);
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`);
    const timer = setTimeout(() => socket.destroy(), LINGER_MILLISECONDS).unref();
    socket.once('close', () => clearTimeout(timer));
  }

  function endWithBody(response: ServerResponse, socket: Socket, refusal: Refusal) {
    failBody(response.req, refusal);
    if (!response.headersSent) response.shouldKeepAlive = false;
    else if (response.closed) socket.destroySoon();
    else response.once('close', () => socket.destroySoon());
  }

  server.on('clientError', (error: ClientError, socket: Socket) => {
    if (ending.has(socket)) return; // Each further piece on a connection that is being ended is an error, too.
    const refusal = refusalOf(error);
    const latest = connections.latest(socket);
    if (refusal?.code === 'request_timeout' && latest && isUnhurried(latest.req)) return; // Its reader has a limit of its own.
    const isAnswering = latest !== undefined && !latest.closed;
    const isCutOff = error.code === 'HPE_INVALID_EOF_STATE' && isAnswering;
    if (!refusal || isCutOff) return socket.destroy();
    ending.add(socket);
    if (latest && !latest.req.complete) endWithBody(latest, socket, refusal);
    else if (isAnswering) latest.once('close', () => refuse(socket, refusal));
    else refuse(socket, refusal);
  });
  return (socket) => ending.has(socket);
}
