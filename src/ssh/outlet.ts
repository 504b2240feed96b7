import { once } from 'node:events';
import type { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import type { ServerChannel } from 'ssh2';

export type Outlet = {
  /** Resolves when there is room for more. Rejects when the client is gone. */
  out(bytes: Buffer): Promise<void>;
  err(bytes: Buffer): Promise<void>;
};

/**
 * What is said to a client, one piece after the other, and no faster than the client takes it: ssh2 itself looks at the
 * window, which the client may open as wide as it likes, and never at what waits in the socket.
 */
export function createOutlet(channel: ServerChannel, socket: Socket, gone: AbortSignal): Outlet {
  let last: Promise<void> = Promise.resolve();

  async function put(to: Writable, bytes: Buffer): Promise<void> {
    gone.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const leave = () => reject(gone.reason); // A channel that is closed forgets what it was given.
      gone.addEventListener('abort', leave, { once: true });
      to.write(bytes, (error) => {
        gone.removeEventListener('abort', leave);
        forgetChunk(channel);
        if (error) reject(error);
        else resolve();
      });
    });
    while (socket.writableNeedDrain) await once(socket, 'drain', { signal: gone });
  }
  function queue(to: Writable, bytes: Buffer): Promise<void> {
    const mine = last.then(() => put(to, bytes));
    last = mine.catch(() => {}); // Whoever gave it hears of it.
    return mine;
  }
  return { out: (bytes) => queue(channel, bytes), err: (bytes) => queue(channel.stderr, bytes) };
}

/**
 * A channel of ssh2 1.17 keeps the last piece that had to wait for the window after it was sent, and sends it once more
 * when the other stream waits; of two that wait at once it forgets one. So they wait in turn, and what is kept is dropped.
 */
function forgetChunk(channel: ServerChannel): void {
  Object.assign(channel, { _chunk: undefined, _chunkcb: undefined, _chunkErr: undefined, _chunkcbErr: undefined });
}
