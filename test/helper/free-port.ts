import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the ports that Linux assigns to connections and to listeners on port 0 (`ip_local_port_range`). */
const [LOWEST, COUNT] = [15_000, 15_000];
/** The length of the block of ports that a process takes from in turn: two processes that ask at once get different ones. */
const OWN_COUNT = 101;
let taken = process.pid * OWN_COUNT;

/**
 * Returns a free port of 127.0.0.1, for a program that needs a fixed one. A program that takes any port does not get it before
 * that program does.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = LOWEST + (taken++ % COUNT);
    const server = createServer().listen(port, '127.0.0.1');
    const isFree = await once(server, 'listening').then(
      () => true,
      () => false,
    );
    if (!isFree) continue;
    server.close();
    await once(server, 'close');
    return port;
  }
}
