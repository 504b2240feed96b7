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

/** A call without an answer. `sent` is true if any byte of the request may have reached the provider. */
export class CallFailed extends Error {
  readonly sent: boolean;
  constructor(message: string, sent: boolean) {
    super(message);
    this.sent = sent;
  }
}

/**
 * Opens an HTTP client for the Stripe library at `origin`. Each call has a total time limit and a bounded answer, and is
 * never retried here. Throws only CallFailed.
 */
export function openHttp(origin: string): { client: Stripe.HttpClient; close(): Promise<void> } {
  const closing = new AbortController();
  const pool = openWatchedPool(origin, { connectMilliseconds: CONNECT_MILLISECONDS, connections: 8 });

  const client: Stripe.HttpClient = {
    getClientName: () => 'undici',
    async makeRequest(_host, _port, path, method, headers, body) {
      const signal = AbortSignal.any([closing.signal, AbortSignal.timeout(CALL_MILLISECONDS)]);
      try {
        const response = await pool.dispatcher.request({
          path,
          method: method as Dispatcher.HttpMethod,
          headers: plain(headers),
          body: body || null,
          signal,
        });
        const text = await readAnswerText(response.body, ANSWER_BYTES_MAX);
        return answer(response.statusCode, response.headers['request-id'], text);
      } catch (error) {
        const { code, message, name } = error as NodeJS.ErrnoException;
        const why = closing.signal.aborted
          ? 'the server is stopping'
          : name === 'TimeoutError'
            ? `no answer within ${CALL_MILLISECONDS / 1000} s`
            : (code ?? message);
        throw new CallFailed(why, pool.wasSent(signal));
      }
    },
  };
  return {
    client,
    async close() {
      if (closing.signal.aborted) return;
      closing.abort();
      await pool.close();
    },
  };
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
