import assert from 'node:assert/strict';
import { once } from 'node:events';
import type http from 'node:http';
import { Agent, request as send } from 'undici';
import { resetConnection } from '../../src/net/reset.ts';
import type { UpstreamCall } from './upstream.ts';

/** One step of a stream: text or bytes to write, or a function to run and wait for. */
export type Step = string | Buffer | ((response: http.ServerResponse) => unknown);
type Handler = (call: UpstreamCall, response: http.ServerResponse) => Promise<void>;

export const event = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`;
export const DONE = 'data: [DONE]\n\n';
const COST = /^: x-purser-cost-usd=\d+\.\d{2,9} x-purser-available-usd=\d+\.\d{2,9}\n\n(?=data: \[DONE\]\n\n$)/m;
/** Removes from a complete stream the comment with its cost, which must stand right before its end. */
export function withoutCost(stream: string): string {
  if (stream.endsWith(DONE)) assert.match(stream, COST);
  return stream.replace(COST, '');
}

const head = { id: 'chatcmpl-test', object: 'chat.completion.chunk', created: 1, model: 'real/chat' };
/** A chunk with `content`. */
export const said = (content: string, more: object = {}): string =>
  event({ ...head, choices: [{ index: 0, delta: { content }, finish_reason: null }], ...more });
/** The chunk with the finish reason. */
export const FINISHED = event({ ...head, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] });
/** The last chunk, which has only the usage. */
export const counted = (usage: unknown = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }): string =>
  event({ ...head, choices: [], usage });

/** Writes a stream of server-sent events step by step, with back-pressure. */
export function streaming(...steps: Step[]): Handler {
  return async (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.flushHeaders();
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    for (const step of steps) {
      if (response.destroyed) return;
      if (typeof step === 'function') await step(response);
      else if (!response.write(step)) await once(response, 'drain', { signal: gone.signal }).catch(() => {});
    }
    response.end();
  };
}

/** A complete stream that says hello and reports `usage`. */
export const completionStream = (usage?: unknown): Handler =>
  streaming(said('hel'), said('lo'), FINISHED, counted(usage), DONE);

/** Resolves when everything written has been sent: loopback has delivered it by then. */
const flushed = (response: http.ServerResponse) => new Promise((resolve) => response.write(':\n\n', resolve));
/** A step that ends the connection without ending the answer. */
export async function breakOff(response: http.ServerResponse) {
  await flushed(response);
  response.socket?.destroy();
}
export async function resetIt(response: http.ServerResponse) {
  await flushed(response);
  resetConnection(response.socket);
}
/** A step that never ends; freed when the connection closes. */
export const forever = (response: http.ServerResponse) => new Promise((resolve) => response.once('close', resolve));

/** A stream from the client's side: nothing is read unless the test reads. */
export type Stream = {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  /** Returns the next event without its blank line, skipping the comment with the cost; undefined at the end. */
  next(): Promise<string | undefined>;
  /** Reads the rest, as text without the cost. Throws if the stream breaks off. */
  rest(): Promise<string>;
  /** Closes the connection from the client's side. */
  leave(): void;
  body: AsyncIterable<Buffer>;
};

/** Opens one connection per stream. */
const agent = new Agent({ connections: null, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 });

/** Posts a streamed chat, and resolves when the response headers have come. */
export async function openStream(
  url: string,
  token: string,
  body: object = {},
  {
    key,
    path = '/v1/router/chat/completions',
    headers = {},
  }: { key?: string; path?: string; headers?: Record<string, string> } = {},
): Promise<Stream> {
  const response = await send(`${url}${path}`, {
    method: 'POST',
    dispatcher: agent,
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      ...(key === undefined ? {} : { 'idempotency-key': key }),
      ...headers,
    },
    body: JSON.stringify({
      model: 'chat',
      messages: [{ role: 'user', content: 'hi' }],
      max_tokens: 100,
      stream: true,
      ...body,
    }),
  });
  response.body.on('error', () => {}); // The reader gets the error.
  const pieces = response.body[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let text = '';
  return {
    status: response.statusCode,
    headers: response.headers,
    body: response.body,
    async next() {
      for (;;) {
        const end = text.indexOf('\n\n');
        if (end !== -1) {
          const found = text.slice(0, end);
          text = text.slice(end + 2);
          if (found.startsWith(': x-purser-cost-usd=')) continue;
          return found;
        }
        const { value, done } = await pieces.next();
        if (done) return text ? text : undefined;
        text += value.toString();
      }
    },
    async rest() {
      for (;;) {
        const { value, done } = await pieces.next();
        if (done) return withoutCost(text);
        text += value.toString();
      }
    },
    leave: () => void response.body.destroy(),
  };
}
