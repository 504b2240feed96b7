import type { IncomingMessage, ServerResponse } from 'node:http';

/** What is left of a body behind its answer is read and thrown away for so long, and so much of it. */
const LINGER_MILLISECONDS = 30_000;
const LINGER_BYTES_MAX = 64 * 1024 * 1024;
const LOOK_MILLISECONDS = 100;

/**
 * Lets a client read an answer that comes before the end of its request's body. Closing a connection on which bytes are
 * still arriving resets it, and the client loses the answer with it (RFC 9112, section 9.6). So the connection is closed
 * for writing only, and what arrives is thrown away until the body has ended, within bounds of time and size.
 */
export function lingerAfter(request: IncomingMessage, response: ServerResponse): void {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = request.headers;
  if (length === '0' && coding === undefined) return;
  response.once('prefinish', () => {
    const { socket } = request;
    if (request.complete || socket.destroyed) return;
    const until = performance.now() + LINGER_MILLISECONDS;
    const most = socket.bytesRead + LINGER_BYTES_MAX;
    let isLast = false;
    request.resume(); // Node itself throws away only what nobody has begun to read.
    // Node's server calls it behind an answer with `Connection: close`.
    const destroySoon = socket.destroySoon.bind(socket);
    socket.destroySoon = () => {
      isLast = true;
      socket.end();
    };
    const look = setInterval(() => {
      const isEnough = performance.now() > until || socket.bytesRead > most;
      if (!request.complete && !isEnough && !socket.destroyed) return;
      clearInterval(look);
      socket.destroySoon = destroySoon;
      if (isLast || isEnough) destroySoon();
    }, LOOK_MILLISECONDS);
    look.unref();
  });
}
