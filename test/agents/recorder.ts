import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

/** One request of an agent, and the status that it was answered. */
export type Exchange = { method: string; path: string; body: string; status: number };

/** Who answers requests whose path begins with `prefix`, in place of the target. */
export type Served = { prefix: string; handle: http.RequestListener };

/** A proxy before `target` that keeps what agents ask, and changes nothing. */
export async function openRecorder(
  t: Pick<TestContext, 'after'>,
  target: string,
  served?: Served,
): Promise<{ port: number; exchanges: Exchange[] }> {
  const exchanges: Exchange[] = [];
  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer({ keepAliveTimeout: 60_000 }, async (request, response) => {
    if (served && request.url?.startsWith(served.prefix)) return served.handle(request, response);
    response.once('close', () => onward.destroy());
    const { method = '', url: path = '', headers } = request;
    const onward = http.request(`${target}${path}`, { method, headers }, (answer) => {
      exchange.status = answer.statusCode as number;
      response.writeHead(exchange.status, answer.headers);
      answer.pipe(response);
      answer.once('error', () => response.destroy());
    });
    onward.once('error', () => response.destroy());
    const exchange = { method, path, body: '', status: 0 };
    exchanges.push(exchange);
    for await (const chunk of request.setEncoding('utf8')) exchange.body += chunk;
    onward.end(exchange.body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, exchanges };
}
