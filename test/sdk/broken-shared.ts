import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

/**
 * A way to a server on which every second answer breaks off: the first before its first byte, the next `step` bytes later, and so on.
 * `length` says how long the longest answer was; `isOver` that one has passed whole although its turn to break had come.
 */
export async function openBreaking(t: TestContext, target: string, step: number) {
  const { hostname, port } = new URL(target);
  const seen = { count: 0, length: 0 };
  const open = new Set<Socket>();
  const server = createServer((client) => {
    const breaksAt = seen.count % 2 === 0 ? (seen.count / 2) * step : Number.POSITIVE_INFINITY;
    seen.count++;
    const inner = connect(Number(port), hostname);
    for (const it of [client, inner]) {
      open.add(it);
      it.on('error', () => {}).on('close', () => {
        open.delete(it);
        client.destroy();
        inner.destroy();
      });
    }
    client.on('data', (piece) => inner.write(piece));
    let length = 0;
    inner.on('data', (piece: Buffer) => {
      const left = breaksAt - length;
      length += piece.length;
      seen.length = Math.max(seen.length, length);
      if (piece.length <= left) client.write(piece);
      else client.end(piece.subarray(0, left));
    });
    inner.on('end', () => client.end());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    for (const it of open) it.destroy();
  });
  const { port: own } = server.address() as { port: number };
  return { url: `http://127.0.0.1:${own}`, seen };
}
