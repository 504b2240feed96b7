import { once } from 'node:events';
import http from 'node:http';
import type { TestContext } from 'node:test';
import { freePort } from './free-port.ts';
import { whenRead } from './listener.ts';
import { waitFor } from './waiting.ts';

/** A POST that a receiver of events got. */
export type Got = { path: string; headers: Record<string, string>; text: string; status: number };
type Reply = (got: Got, response: http.ServerResponse) => unknown;

/** A small HTTP server that accepts events, and answers as the test requires. */
export type Receiver = {
  url: string;
  /** Every POST that arrived, in order. */
  got: Got[];
  /** Answers the next POSTs; 204 unless set. */
  reply: Reply;
  /** The events of the POSTs that were answered 2xx. */
  accepted(): { id: string; type: string; created_at: number; data: Record<string, any> }[];
  /** Resolves when `holds` returns true; it is called after each POST. */
  until(holds: () => boolean): Promise<void>;
  /** Stops listening. Resolves with a function that makes it listen on its port again. */
  leave(): Promise<() => Promise<void>>;
};

/** Answers with this status. */
export const status =
  (code: number, headers: Record<string, string> = {}): Reply =>
  (_, response) =>
    response.writeHead(code, headers).end();

export async function openReceiver(t: Pick<TestContext, 'after'>): Promise<Receiver> {
  const waiting = new Set<() => void>();
  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer(
    { keepAliveTimeout: 60_000 },
    whenRead(async (request, response, body) => {
      const got: Got = {
        path: request.url ?? '',
        headers: request.headers as Record<string, string>,
        text: body.toString(),
        status: 0,
      };
      response.on('finish', () => {
        got.status = response.statusCode;
        for (const look of waiting) look();
      });
      receiver.got.push(got);
      for (const look of waiting) look();
      await receiver.reply(got, response);
    }),
  );
  const listen = async (port: number) => {
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
  };
  const leave = async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  const port = await freePort(); // A fixed port, on which it can listen again.
  await listen(port);
  t.after(leave);
  const receiver: Receiver = {
    url: `http://127.0.0.1:${port}`,
    got: [],
    reply: status(204),
    accepted: () => receiver.got.filter((it) => it.status >= 200 && it.status < 300).map((it) => JSON.parse(it.text)),
    until: (holds) =>
      waitFor(
        () => `a receiver has got ${holds}; it has got ${receiver.got.length}`,
        new Promise((resolve) => {
          const look = () => {
            if (!holds()) return;
            waiting.delete(look);
            resolve();
          };
          waiting.add(look);
          look();
        }),
      ),
    async leave() {
      await leave();
      return () => listen(port);
    },
  };
  return receiver;
}
