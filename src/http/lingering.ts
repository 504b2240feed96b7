import type { IncomingMessage, ServerResponse } from 'node:http';

/** Limits of time and bytes within which the rest of a body is read and discarded after its response. */
const LINGER_MILLISECONDS = 30_000;
const LINGER_BYTES_MAX = 64 * 1024 * 1024;
const POLL_MILLISECONDS = 100;

/**
 * Lets a client read a response that is sent before the end of its request body. Closing a connection on which bytes still arrive
 * resets it, and the client may lose the response (RFC 9112, section 9.6). So the connection is first closed for writing only, and
 * the rest of the body is discarded, within limits of time and size.
 */
export function lingerAfter(request: IncomingMessage, response: ServerResponse): void {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = request.headers;
  if (length === '0' && coding === undefined) return;
  response.once('prefinish', () => {
    const { socket } = request;
    if (request.complete || socket.destroyed) return;
    const until = performance.now() + LINGER_MILLISECONDS;
    const bytesReadMax = socket.bytesRead + LINGER_BYTES_MAX;
    let isLast = false;
    request.resume(); // Node discards a body only if nothing has begun to read it.
    // Node's server calls it after a response with `Connection: close`.
    const destroySoon = socket.destroySoon.bind(socket);
    socket.destroySoon = () => {
      isLast = true;
      socket.end();
    };
    const timer = setInterval(() => {
      const isEnough = performance.now() > until || socket.bytesRead > bytesReadMax;
      if (!request.complete && !isEnough && !socket.destroyed) return;
      clearInterval(timer);
      socket.destroySoon = destroySoon;
      if (isLast || isEnough) destroySoon();
    }, POLL_MILLISECONDS);
    timer.unref();
  });
}
