import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the ports that Linux gives to connections and to those who listen on port 0 (`ip_local_port_range`). */
const [LOWEST, HIGHEST] = [15_000, 30_000];

/**
 * Returns a port of 127.0.0.1 that is free, for a program that has to be told one. Nobody who takes any port comes upon it
 * before that program does.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(LOWEST, HIGHEST);
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
