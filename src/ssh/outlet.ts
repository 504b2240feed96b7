import { once } from 'node:events';
import type { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import type { ServerChannel } from 'ssh2';
import { turnWhenDue } from '../base/turn.ts';

export type Outlet = {
  /** Resolves when more can be written. Rejects when the client has disconnected. */
  out(bytes: Buffer): Promise<void>;
  err(bytes: Buffer): Promise<void>;
};

/**
 * Writes to a client one chunk at a time and no faster than it reads. ssh2 itself observes only the channel window, which the
 * client may open as wide as it likes, and never the socket's buffer. Other clients get their turn beside one that reads everything
 * at once, or that sends requests which need no machine.
 */
export function createOutlet(channel: ServerChannel, socket: Socket, gone: AbortSignal): Outlet {
  let last: Promise<void> = Promise.resolve();

  async function put(to: Writable, bytes: Buffer): Promise<void> {
    gone.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const abort = () => reject(gone.reason); // A closed channel never calls back for pending writes.
      gone.addEventListener('abort', abort, { once: true });
      to.write(bytes, (error) => {
        gone.removeEventListener('abort', abort);
        forgetChunk(channel);
        if (error) reject(error);
        else resolve();
      });
    });
    await turnWhenDue();
    while (socket.writableNeedDrain) await once(socket, 'drain', { signal: gone });
  }
  function queue(to: Writable, bytes: Buffer): Promise<void> {
    const mine = last.then(() => put(to, bytes));
    last = mine.catch(() => {}); // The caller gets the error through `mine`.
    return mine;
  }
  return { out: (bytes) => queue(channel, bytes), err: (bytes) => queue(channel.stderr, bytes) };
}

/**
 * Works around a fault of ssh2 1.17: a channel keeps the last chunk that waited for the window, and sends it again when the other
 * stream waits; of two waiting chunks it loses one. So writes are serialized, and the kept chunk is dropped after each.
 */
function forgetChunk(channel: ServerChannel): void {
  Object.assign(channel, { _chunk: undefined, _chunkcb: undefined, _chunkErr: undefined, _chunkcbErr: undefined });
}
