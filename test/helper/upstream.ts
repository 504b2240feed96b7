import http from 'node:http';
import type { TestContext } from 'node:test';
import { resetConnection } from '../../src/net/reset.ts';
import { freePort } from './free-port.ts';
import { whenRead } from './listener.ts';
import { waitFor } from './waiting.ts';

export type UpstreamCall = {
  path: string;
  headers: http.IncomingHttpHeaders;
  body: Record<string, unknown>;
  /** The body as it was received. */
  text: string;
};
export type Handler = (call: UpstreamCall, response: http.ServerResponse) => unknown;

/** A real HTTP server that the test controls: it answers, refuses, hangs, resets or answers late. */
export type FakeUpstream = {
  url: string;
  /** All requests that arrived, in order. */
  calls: UpstreamCall[];
  /** Handles the next calls. Default: `completion()`. */
  handle: Handler;
  /** Resolves when `count` calls have arrived. */
  arrived(count: number): Promise<void>;
  /** Stops listening and cuts open connections. Resolves with a function that makes it listen on its port again. */
  leave(): Promise<() => Promise<void>>;
  close(): Promise<void>;
};

/** A chat completion that reports `usage`. */
export function completion(usage: unknown = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }): Handler {
  return ({ body }, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(
      JSON.stringify({
        id: 'chatcmpl-test',
        object: 'chat.completion',
        created: 1,
        model: body.model,
        choices: [{ index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }],
        ...(usage === undefined ? {} : { usage }),
      }),
    );
  };
}

/** An error with a status and a body. */
export function failure(
  status: number,
  body: string | object = { error: { message: `status ${status}` } },
  headers: Record<string, string> = {},
): Handler {
  return (_, response) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  };
}

/** Reads the whole request and never answers. Freed when the upstream closes. */
export const hang: Handler = () => {};

/** Reads the whole request, then resets the connection. */
export const reset: Handler = (_, response) => resetConnection(response.socket);

/** Announces more than it sends, then ends the connection. */
export const halfBody: Handler = (_, response) => {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
  response.write('{"id":"chatcmpl-half"');
  setImmediate(() => response.socket?.destroy());
};

/** Returns a handler that waits for `open()`, and then calls `handler`. */
export function gate(handler: Handler = completion()): { handler: Handler; open(): void } {
  const opened = Promise.withResolvers<void>();
  return {
    handler: async (call, response) => {
      await opened.promise;
      await handler(call, response);
    },
    open: opened.resolve,
  };
}

export async function openUpstream(t: Pick<TestContext, 'after'>): Promise<FakeUpstream> {
  const waiting: { count: number; tell: () => void }[] = [];
  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer(
    { keepAliveTimeout: 60_000 },
    whenRead(async (request, response, body) => {
      const text = body.toString();
      const call = { path: request.url ?? '', headers: request.headers, body: JSON.parse(text || '{}'), text };
      upstream.calls.push(call);
      for (const it of waiting) if (upstream.calls.length >= it.count) it.tell();
      await upstream.handle(call, response);
    }),
  );
  const listen = (port: number) => new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  const port = await freePort(); // A fixed port, on which it can listen again.
  await listen(port);
  const upstream: FakeUpstream = {
    url: `http://127.0.0.1:${port}/v1`,
    calls: [],
    handle: completion(),
    arrived(count) {
      if (upstream.calls.length >= count) return Promise.resolve();
      const arrived = new Promise<void>((tell) => waiting.push({ count, tell }));
      return waitFor(() => `${count} calls have arrived; there are ${upstream.calls.length}`, arrived);
    },
    async leave() {
      await upstream.close();
      return () => listen(port);
    },
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
  t.after(() => upstream.close());
  return upstream;
}
