import http from 'node:http';
import type { Gateway } from '../helper/gateway.ts';
import type { TestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';

/** Prompt 10 and completion 5 tokens of the model `chat`, and its price for a request. */
export const CHARGE = 10n * 1000n + 5n * 2000n + 100_000n;
export const BODY = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };

/** A client without a key that may leave at any time. `answer` resolves with undefined once it has left. */
type Heard = { status: number; headers: http.IncomingHttpHeaders; text: string };
type Client = { answer: Promise<Heard | undefined>; leave(): void };

/** Asks for a chat on a connection of its own. */
export function call(
  purser: TestServer,
  gateway: Pick<Gateway, 'key'>,
  body: object = {},
  headers: object = {},
): Client {
  const request = http.request(`${purser.url}/v1/router/chat/completions`, {
    method: 'POST',
    agent: false,
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json', ...headers },
  });
  const answer = new Promise<Heard | undefined>((resolve) => {
    request.on('error', () => resolve(undefined));
    request.on('response', async (response) => {
      try {
        const chunks: Buffer[] = [];
        for await (const chunk of response) chunks.push(chunk);
        const { statusCode, headers } = response;
        resolve({ status: statusCode as number, headers, text: Buffer.concat(chunks).toString() });
      } catch {
        resolve(undefined);
      }
    });
  });
  request.end(JSON.stringify({ ...BODY, ...body }));
  return { answer, leave: () => void request.destroy() };
}

/** Resolves when so many attempts have no client. */
export const vacant = (purser: TestServer, count = 1) =>
  until('so many retries wait for nobody', () => purser.app.retries.abandonedCount() === count);
