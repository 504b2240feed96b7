import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the ports that Linux gives to connections and to those who listen on port 0 (`ip_local_port_range`). */
const [LOWEST, COUNT] = [15_000, 15_000];
/** The length of the block of ports from which a process takes its own in turn: two that ask at once do not get the same. */
const OWN_COUNT = 101;
let taken = process.pid * OWN_COUNT;

/**
 * Returns a port of 127.0.0.1 that is free, for a program that has to be told one. Nobody who takes any port comes upon it
 * before that program does.
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
