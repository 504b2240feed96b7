import type Stripe from 'stripe';
import type { Dispatcher } from 'undici';
import { parseJson } from '../base/parse-json.ts';
import { readAnswerText } from '../net/read-bounded.ts';
import { openWatchedPool } from '../net/watched-pool.ts';

/** The time limit of a call, from the first byte sent to the last byte read. */
const CALL_MILLISECONDS = 10_000;
const CONNECT_MILLISECONDS = 5000;
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;

/** The only request headers that are sent: the library's others describe this machine. */
const SENT = new Set([
  'accept',
  'authorization',
  'content-type',
  'content-length',
  'idempotency-key',
  'stripe-version',
]);

/**
 * Opens an HTTP client for the Stripe library at `origin`. Each call has a total time limit and a bounded answer, and is
 * never retried here. Throws only Unanswered.
 */
export function openHttp(origin: string): { client: Stripe.HttpClient; close(): Promise<void> } {
  const pool = openWatchedPool(origin, { connectMilliseconds: CONNECT_MILLISECONDS, connections: 8 });

  const client: Stripe.HttpClient = {
    getClientName: () => 'undici',
    makeRequest(_host, _port, path, method, headers, body) {
      const request = { path, method: method as Dispatcher.HttpMethod, headers: plain(headers), body: body || null };
      return pool.ask(request, CALL_MILLISECONDS, async (response) =>
        answer(
          response.statusCode,
          response.headers['request-id'],
          await readAnswerText(response.body, ANSWER_BYTES_MAX),
        ),
      );
    },
  };
  return { client, close: pool.close };
}

function plain(headers: object): Record<string, string> {
  const entries = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), String(value)] as const);
  return { ...Object.fromEntries(entries.filter(([name]) => SENT.has(name))), 'user-agent': 'purser' };
}

function answer(status: number, requestId: string | string[] | undefined, text: string): Stripe.HttpClientResponse {
  return {
    getStatusCode: () => status,
    getHeaders: () => (requestId === undefined ? {} : { 'request-id': String(requestId) }),
    getRawResponse: () => ({}),
    toStream: () => undefined,
    toJSON: async () => parseJson(text),
  };
}
