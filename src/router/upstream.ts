import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';
import type { UpstreamConfig } from '../config/router.ts';
import { redact } from '../log.ts';
import { readBounded } from '../net/read-bounded.ts';
import { openWatchedPool } from '../net/watched-pool.ts';
import type { RefusalCode } from '../refusal.ts';
import { createEventSplitter, errorIn, type SseEvent } from './sse.ts';

/** Longer answers are not read to the end and count as unreadable. */
const ANSWER_BYTES_MAX = 32 * 1024 * 1024;
/** The largest request body kept in memory while its answer is streamed. */
const BODY_BYTES_KEPT = 16 * 1024;
const ERROR_BYTES_MAX = 64 * 1024;
const MESSAGE_CHARACTERS_MAX = 500;
const BUSY_RETRY_SECONDS = 1;
/** How long to wait for what follows the end of a stream. */
const REST_MILLISECONDS = 2000;

/** A definite refusal. `elsewhere` means that another upstream may do better, because the request is not at fault. */
export type Refused = {
  kind: 'refused';
  code: RefusalCode;
  reason: string;
  retryAfterSeconds?: number;
  elsewhere: boolean;
  /** What the operator has to correct if the configuration is at fault. For the log, never for the caller. */
  fault?: string;
};
/** The reply of an upstream. Only `answered` has certainly cost something; `unknown` may have. */
export type Reply =
  | { kind: 'answered'; body: Buffer; json: unknown }
  /**
   * The first events have arrived. Later errors are thrown while reading; the events must be read or returned. After
   * `endSoon`, the stream breaks within two seconds.
   */
  | { kind: 'streaming'; events: AsyncIterable<readonly SseEvent[]>; endSoon: () => void }
  | Refused
  | { kind: 'unknown'; reason: string };

/** The only upstream paths ever called. */
export type UpstreamPath = 'chat/completions' | 'embeddings';

export type Upstream = {
  /** Posts one request, with `operationId` as the Idempotency-Key. Never throws. */
  ask(path: UpstreamPath, body: Buffer, operationId: string, stream?: boolean): Promise<Reply>;
  close(): Promise<void>;
};

/** Statuses that say a time-out somewhere on the way: nobody knows whether anything was generated (design, section 8). */
const TIME_OUTS = new Set([408, 425, 499, 504, 522, 524]);

export function openUpstream(config: UpstreamConfig, apiKey: string | undefined): Upstream {
  const { origin, pathname } = new URL(config.base_url);
  const base = pathname.replace(/\/$/, '');
  const {
    connect_timeout_seconds: connect,
    timeout_seconds: whole,
    first_byte_timeout_seconds: first = whole,
  } = config;
  const { dispatcher, wasSent, close } = openWatchedPool(origin, {
    pipelining: 1,
    connectMilliseconds: Math.min(connect, first, whole) * 1000,
  });
  const headers = {
    'content-type': 'application/json',
    ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}),
  };
  const clean = (text: string) => {
    const struck = redact(apiKey && apiKey.length >= 4 ? text.replaceAll(apiKey, '[redacted]') : text);
    return struck.slice(0, MESSAGE_CHARACTERS_MAX); // Last: a truncated secret would not be recognised.
  };
  const name = `upstream ${config.name}`;
  let running = 0;

  function failure(error: unknown, limits: Limits): Reply {
    const { code, message } = error as NodeJS.ErrnoException;
    if (!wasSent(limits.signal))
      return {
        kind: 'refused',
        code: 'gateway_unavailable',
        reason: `The model server cannot be reached (${code ?? 'no connection'}). Nothing was charged.`,
        elsewhere: true,
      };
    return { kind: 'unknown', reason: `${name}: ${limits.exceeded() ?? clean(code ?? message)}` };
  }

  return {
    async ask(path, body, operationId, stream = false) {
      if (running >= (config.max_concurrent ?? Number.POSITIVE_INFINITY))
        return {
          kind: 'refused',
          code: 'rate_limited',
          reason: `The model server has ${running} requests in flight, the most that it may have. Nothing was charged.`,
          retryAfterSeconds: BUSY_RETRY_SECONDS,
          elsewhere: true,
        };
      running++;
      const limits = startLimits(config);
      const over = () => {
        limits.clear();
        running--;
      };
      let streams = false;
      try {
        const response = await dispatcher.request({
          path: `${base}/${path}`,
          method: 'POST',
          headers: {
            ...headers,
            accept: stream ? 'text/event-stream' : 'application/json',
            'content-length': String(body.length),
            'idempotency-key': operationId,
          },
          body: body.length > BODY_BYTES_KEPT ? once(body) : body,
          signal: limits.signal,
          headersTimeout: 0, // Replaced by our own limits, above.
          bodyTimeout: 0,
        });
        if (stream && response.statusCode === 200 && isEventStream(response)) {
          const reply = await begin(response, limits, clean, over);
          streams = reply.kind === 'streaming';
          return reply;
        }
        limits.firstByte();
        return await read(response, name, clean);
      } catch (error) {
        return failure(error, limits);
      } finally {
        if (!streams) over();
      }
    },
    close,
  };

  /** Waits for the first event: an error there is a definite refusal, before anything was forwarded. */
  async function begin(
    response: Dispatcher.ResponseData,
    limits: Limits,
    clean: (text: string) => string,
    over: () => void,
  ): Promise<Reply> {
    const source = eventsOf(response.body, limits);
    for (;;) {
      const { value: events } = await source.next();
      if (!events) return { kind: 'unknown', reason: `${name} answered 200 with an empty stream` };
      const at = events.findIndex(({ data }) => data !== undefined);
      if (at === -1) continue; // Comments, which keep the connection alive.
      const error = errorIn(parse(events[at]?.data as string));
      if (!error)
        return { kind: 'streaming', events: follow(events.slice(at), source, limits, over), endSoon: limits.endSoon };
      await source.return();
      return errorReply(error, name, clean);
    }
  }

  /**
   * Yields the events read so far, then the rest. Written by hand, because a generator around a generator would cost
   * more than all other work on a token.
   */
  function follow(first: SseEvent[], rest: Events, limits: Limits, over: () => void): AsyncIterable<SseEvent[]> {
    let waiting: SseEvent[] | undefined = first;
    const checkEnd = (result: IteratorResult<SseEvent[], void>) => {
      if (result.done) over();
      return result;
    };
    const broke = (error: unknown) => {
      over();
      const { code, message } = error as NodeJS.ErrnoException;
      throw new Error(`${name}: ${limits.exceeded() ?? clean(code ?? message)}`);
    };
    const iterator: AsyncIterator<SseEvent[], void> = {
      next() {
        if (!waiting) return rest.next().then(checkEnd, broke);
        const value = waiting;
        waiting = undefined;
        return Promise.resolve({ value, done: false });
      },
      return: () => rest.return().then(checkEnd, broke),
    };
    return { [Symbol.asyncIterator]: () => iterator };
  }
}

/**
 * Streams a body once. undici keeps a body until its answer has ended; this one leaves nothing behind once it is read.
 */
function once(body: Buffer): Readable {
  let left: Buffer | null = body;
  return new Readable({
    read() {
      this.push(left);
      left = null;
    },
  });
}

/** The time limits of one call: to its first byte, and as a whole. */
type Limits = {
  signal: AbortSignal;
  firstByte(): void;
  /** Limits the rest of the call to two seconds. */
  endSoon(): void;
  exceeded(): string | undefined;
  clear(): void;
};

function startLimits(config: UpstreamConfig): Limits {
  const controller = new AbortController();
  let exceeded: string | undefined;
  const after = (seconds: number, what: string) =>
    setTimeout(() => {
      exceeded = `${what} within ${seconds} s`;
      controller.abort();
    }, seconds * 1000);
  let end: NodeJS.Timeout | undefined;
  const whole = after(config.timeout_seconds, 'no answer');
  const first =
    config.first_byte_timeout_seconds === undefined
      ? undefined
      : after(config.first_byte_timeout_seconds, 'no first byte');
  return {
    signal: controller.signal,
    firstByte: () => clearTimeout(first),
    endSoon() {
      end ??= after(REST_MILLISECONDS / 1000, 'no end');
    },
    exceeded: () => exceeded,
    clear() {
      clearTimeout(whole);
      clearTimeout(first);
      clearTimeout(end);
    },
  };
}

/** Events as they arrive: those of one chunk at a time. */
type Events = AsyncGenerator<SseEvent[], void, void>;

/**
 * Yields the events of a body. When left early, it reads the little that remains, so that the connection can be reused.
 */
async function* eventsOf(body: Dispatcher.ResponseData['body'], limits: Limits): Events {
  const splitter = createEventSplitter();
  try {
    for await (const chunk of body.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      limits.firstByte();
      const events = splitter.push(chunk);
      if (events.length) yield events;
    }
    const last = splitter.end();
    if (last) yield [last];
  } finally {
    if (!body.readableEnded && !body.destroyed)
      void body.dump({ limit: ERROR_BYTES_MAX, signal: AbortSignal.timeout(REST_MILLISECONDS) }).catch(() => {});
  }
}

const isEventStream = ({ headers }: Dispatcher.ResponseData) =>
  /^text\/event-stream\b/i.test(String(headers['content-type'] ?? ''));

async function read(response: Dispatcher.ResponseData, name: string, clean: (text: string) => string): Promise<Reply> {
  const { statusCode: status, headers } = response;
  const reading = readBounded(response.body, status === 200 ? ANSWER_BYTES_MAX : ERROR_BYTES_MAX);
  // A redirect or a 4xx says all by its status, even when its body breaks off; an error of the server has to be whole.
  const bytes = await (status >= 300 && status < 500 ? reading.catch(() => undefined) : reading);
  const json = bytes && parse(bytes.toString('utf8'));
  if (status === 200) {
    if (!bytes || typeof json !== 'object' || json === null)
      return { kind: 'unknown', reason: `${name} answered 200 with a body that cannot be read` };
    const error = hasAnswer(json) ? undefined : errorIn(json);
    return error ? errorReply(error, name, clean) : { kind: 'answered', body: bytes, json };
  }
  if (status < 300 || TIME_OUTS.has(status)) return { kind: 'unknown', reason: `${name} answered ${status}` };
  if (hasAnswer(json)) return { kind: 'unknown', reason: `${name} answered ${status} with an answer in its body` };
  return refusal(status, clean(messageIn(json)), name, {
    retryAfter: retryAfter(headers['retry-after']),
    location: addressIn(headers.location, clean),
  });
}

/** Returns whether the body contains generated output or an embedding. */
function hasAnswer(json: unknown): boolean {
  const { choices, data } = (json ?? {}) as { choices?: unknown; data?: unknown };
  return [choices, data].some((it) => Array.isArray(it) && it.length > 0);
}

/** Maps a status 200 with an error in place of an answer to a refusal, by the status that the error names, if any. */
function errorReply(error: object, name: string, clean: (text: string) => string): Refused {
  const status = Number(codeIn(error));
  // A request that timed out may still be running: it is not charged, and no other upstream is asked.
  const elsewhere = !TIME_OUTS.has(status);
  if (elsewhere && status >= 400 && status < 500) return refusal(status, clean(messageIn(error)), name);
  const reason = 'The model server refused to answer. Nothing was charged.';
  return { kind: 'refused', code: 'gateway_unavailable', reason, elsewhere };
}

type ReplyHeaders = { retryAfter?: number | undefined; location?: string | undefined };

/**
 * Maps a complete answer with a status from 300 up and no generated output to a definite refusal, whichever server sent
 * it. The caller learns what they can fix; the rest is between the operator and the upstream.
 */
function refusal(status: number, message: string, name: string, { retryAfter, location }: ReplyHeaders = {}): Refused {
  const detail = message ? `: ${message}` : '.';
  const request = { kind: 'refused', elsewhere: false } as const;
  const server = { kind: 'refused', elsewhere: true } as const;
  if (status === 400 || status === 422)
    return { ...request, code: 'invalid_request', reason: `The model server refused the request${detail}` };
  if (status === 413)
    return { ...request, code: 'payload_too_large', reason: `The model server finds the request too large${detail}` };
  if (status === 404)
    return { ...server, code: 'model_not_found', reason: `The model server does not know the model${detail}` };
  if (status === 429) {
    const retryAfterSeconds = retryAfter ?? 5;
    return { ...server, code: 'rate_limited', reason: `The model server is busy${detail}`, retryAfterSeconds };
  }
  const code = 'gateway_unavailable';
  const operator = 'That is for the operator of this gateway to correct. Nothing was charged.';
  if (status < 400) {
    const fault = `${name} answered ${status}, a redirect${location ? ` to ${location}` : ''}: correct its base_url`;
    return { ...server, code, reason: `The model server answered ${status}, a redirect. ${operator}`, fault };
  }
  if (status === 401 || status === 403) {
    const fault = `${name} answered ${status}: its api_key is missing or wrong, or may not use the model`;
    return { ...server, code, reason: `The model server refused this gateway (${status}). ${operator}`, fault };
  }
  return { ...server, code, reason: `The model server answered ${status}. Nothing was charged.` };
}

/** Returns the target of a redirect without the parts of a URL that may be secret. */
function addressIn(location: string | string[] | undefined, clean: (text: string) => string): string | undefined {
  if (typeof location !== 'string' || !URL.canParse(location)) return undefined;
  const { origin, pathname } = new URL(location);
  return clean(origin + pathname);
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Returns the message in an error body, in the shapes that model servers use; empty when there is none. */
function messageIn(json: unknown): string {
  const body = json as { error?: unknown; message?: unknown; detail?: unknown } | undefined;
  const error = body?.error as { message?: unknown } | string | undefined;
  for (const it of [typeof error === 'object' ? error?.message : error, body?.message, body?.detail])
    if (typeof it === 'string' && it) return it;
  return '';
}

/** Returns the code in an error body: a status, a word, or nothing. */
function codeIn(json: object): unknown {
  const { error, code } = json as { error?: { code?: unknown } | string; code?: unknown };
  return typeof error === 'object' ? error.code : code;
}

function retryAfter(header: string | string[] | undefined): number | undefined {
  const seconds = Number(Array.isArray(header) ? header[0] : header);
  return Number.isFinite(seconds) && seconds >= 0 ? Math.ceil(seconds) : undefined;
}
