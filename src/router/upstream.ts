import { buildConnector, type Dispatcher, Pool } from 'undici';
import type { UpstreamConfig } from '../config.ts';
import { redact } from '../log.ts';
import type { RefusalCode } from '../refusal.ts';

/** A longer answer is not read to its end: it counts as unreadable. */
const ANSWER_BYTES_MAX = 32 * 1024 * 1024;
const ERROR_BYTES_MAX = 64 * 1024;
const CONNECT_MILLISECONDS = 10_000;
const MESSAGE_CHARACTERS_MAX = 500;

/** What an upstream answered. Only `answered` has cost anything for certain; `unknown` may have. */
export type Reply =
  | { kind: 'answered'; body: Buffer; json: unknown }
  | { kind: 'refused'; code: RefusalCode; reason: string; retryAfterSeconds?: number }
  | { kind: 'unknown'; reason: string };

export type Upstream = {
  /** Posts one chat completion. `operationId` goes along as the Idempotency-Key. Never throws. */
  chat(body: Buffer, operationId: string): Promise<Reply>;
  close(): Promise<void>;
};

/**
 * Opens connections, and remembers which errors came of that: then not a byte of a request was sent, for certain. An error
 * code alone does not say so: Linux reports EHOSTUNREACH on an established connection too.
 */
function watchedConnector() {
  const neverSent = new WeakSet<object>();
  const connect = buildConnector({ timeout: CONNECT_MILLISECONDS });
  const connector: buildConnector.connector = (options, callback) =>
    connect(options, (...[error, socket]) => {
      if (error) neverSent.add(error);
      (callback as (error: Error | null, socket: unknown) => void)(error, socket);
    });
  return { connector, neverSent };
}

/** The model server's own clear no, when its body can be read; nothing was generated (design, section 8). */
const SAID_UNAVAILABLE = new Set([500, 503, 529]);

export function openUpstream(config: UpstreamConfig, apiKey: string | undefined): Upstream {
  const { origin, pathname } = new URL(config.base_url);
  const path = `${pathname.replace(/\/$/, '')}/chat/completions`;
  const { connector, neverSent } = watchedConnector();
  const pool = new Pool(origin, { pipelining: 1, connect: connector });
  const headers = {
    'content-type': 'application/json',
    accept: 'application/json',
    ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}),
  };
  const clean = (text: string) => {
    const struck = redact(apiKey && apiKey.length >= 4 ? text.replaceAll(apiKey, '[redacted]') : text);
    return struck.slice(0, MESSAGE_CHARACTERS_MAX); // Last: a secret that was cut first would not be recognised.
  };

  return {
    async chat(body, operationId) {
      const limit = new AbortController();
      const timer = setTimeout(() => limit.abort(), config.timeout_seconds * 1000);
      try {
        const response = await pool.request({
          path,
          method: 'POST',
          headers: { ...headers, 'idempotency-key': operationId },
          body,
          signal: limit.signal,
          headersTimeout: 0, // One limit for the whole call, above.
          bodyTimeout: 0,
        });
        return await read(response, config.name, clean);
      } catch (error) {
        const { code, message } = error as NodeJS.ErrnoException;
        const name = `upstream ${config.name}`;
        // What undici itself refuses to send (a key with a line feed in it) never left either.
        if (neverSent.has(error as object) || code === 'UND_ERR_INVALID_ARG')
          return {
            kind: 'refused',
            code: 'gateway_unavailable',
            reason: `The model server cannot be reached (${code ?? 'no connection'}). Nothing was charged.`,
          };
        if (limit.signal.aborted)
          return { kind: 'unknown', reason: `${name}: no answer within ${config.timeout_seconds} s` };
        return { kind: 'unknown', reason: `${name}: ${clean(code ?? message)}` };
      } finally {
        clearTimeout(timer);
      }
    },
    close: () => pool.destroy(),
  };
}

async function read(response: Dispatcher.ResponseData, name: string, clean: (text: string) => string): Promise<Reply> {
  const { statusCode: status } = response;
  const reading = readUpTo(response.body, status === 200 ? ANSWER_BYTES_MAX : ERROR_BYTES_MAX);
  // Of an error the status speaks, even when its body breaks off.
  const bytes = await (status === 200 ? reading : reading.catch(() => undefined));
  const json = bytes && parse(bytes);
  if (status === 200) {
    if (bytes && typeof json === 'object' && json !== null) return { kind: 'answered', body: bytes, json };
    return { kind: 'unknown', reason: `upstream ${name} answered 200 with a body that cannot be read` };
  }
  const said = clean(messageIn(json));
  if (status >= 400 && status < 500)
    return { kind: 'refused', ...refusal(status, said, retryAfter(response.headers['retry-after'])) };
  if (SAID_UNAVAILABLE.has(status) && said)
    return {
      kind: 'refused',
      code: 'gateway_unavailable',
      reason: `The model server answered ${status}. Nothing was charged.`,
    };
  return { kind: 'unknown', reason: `upstream ${name} answered ${status}` };
}

/** A 4xx is a clear no. The caller hears what it can mend; the rest is between the operator and the upstream. */
function refusal(status: number, said: string, retryAfterSeconds: number | undefined) {
  const told = said ? `: ${said}` : '.';
  if (status === 400 || status === 422)
    return { code: 'invalid_request' as const, reason: `The model server refused the request${told}` };
  if (status === 404)
    return { code: 'model_not_found' as const, reason: `The model server does not know the model${told}` };
  if (status === 413)
    return { code: 'payload_too_large' as const, reason: `The model server finds the request too large${told}` };
  if (status === 429)
    return {
      code: 'rate_limited' as const,
      reason: `The model server is busy${told}`,
      retryAfterSeconds: retryAfterSeconds ?? 5,
    };
  return {
    code: 'gateway_unavailable' as const,
    reason: `The model server refused this gateway (${status}). Nothing was charged.`,
  };
}

/** The body, or undefined when it is longer than `most` or ends early. What is too long is not read on. */
async function readUpTo(body: Dispatcher.ResponseData['body'], most: number): Promise<Buffer | undefined> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > most) return undefined;
    chunks.push(chunk);
  }
  return chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks);
}

function parse(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8'));
  } catch {
    return undefined;
  }
}

/** The sentence in an error body, in the shapes that model servers use; empty when there is none. */
function messageIn(json: unknown): string {
  const body = json as { error?: unknown; message?: unknown; detail?: unknown } | undefined;
  const error = body?.error as { message?: unknown } | string | undefined;
  for (const it of [typeof error === 'object' ? error?.message : error, body?.message, body?.detail])
    if (typeof it === 'string' && it) return it;
  return '';
}

function retryAfter(header: string | string[] | undefined): number | undefined {
  const seconds = Number(Array.isArray(header) ? header[0] : header);
  return Number.isFinite(seconds) && seconds >= 0 ? Math.ceil(seconds) : undefined;
}
