import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { waitFor } from './waiting.ts';

/** A proxy between clients and a server, with its own URL for each client. It records every answer and changes none. */
export type Wire = {
  /** The base URL of a client, which contains `name`. Requests below it are forwarded to `target`. */
  line(name: string): string;
  /** Returns the answers to a client so far: the status, and when the headers arrived, in milliseconds. */
  answers(name: string): { status: number; at: number }[];
  /** Resolves when a client has received the headers of `count` answers. */
  answered(name: string, count: number): Promise<void>;
};

export async function openWire(t: Pick<TestContext, 'after'>, target: string): Promise<Wire> {
  const seen = new Map<string, { status: number; at: number }[]>();
  const waiting = new Set<() => void>();
  const answers = (name: string) => seen.get(name) ?? [];
  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
    const [, name, rest] = String(request.url).match(/^\/([^/]+)(\/.*)$/) as RegExpMatchArray;
    const { host: _, ...headers } = request.headers;
    const onward = http.request(`${target}${rest}`, { method: request.method, headers }, (answer) => {
      seen.set(name as string, [
        ...answers(name as string),
        { status: answer.statusCode as number, at: performance.now() },
      ]);
      response.writeHead(answer.statusCode as number, answer.headers);
      answer.pipe(response);
      answer.once('error', () => response.destroy());
      for (const check of [...waiting]) check();
    });
    onward.once('error', () => response.destroy());
    response.once('close', () => onward.destroy());
    request.pipe(onward);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  });
  return {
    line: (name) => `http://127.0.0.1:${(server.address() as AddressInfo).port}/${name}`,
    answers,
    answered(name, count) {
      const { promise, resolve } = Promise.withResolvers<void>();
      const check = () => {
        if (answers(name).length < count) return;
        waiting.delete(check);
        resolve();
      };
      waiting.add(check);
      check();
      return waitFor(() => `${name} has ${count} answers; it has ${answers(name).length}`, promise);
    },
  };
}
