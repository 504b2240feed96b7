import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';
import { isWire, type UpstreamConfig } from '../config/router.ts';
import { redact } from '../log.ts';
import { readBounded } from '../net/read-bounded.ts';
import { type AnswerBody, type AnswerHead, openWatchedPool, type Whole } from '../net/watched-pool.ts';
import type { RefusalCode } from '../refusal.ts';
import { type Api, errorOf, isAnswerOf, isNativeEvent, isPreamble } from './native.ts';
import { createPlainText } from './plain-text.ts';
import { createEventSplitter, DONE, type SseRun } from './sse.ts';
import { readUsage } from './usage.ts';

/** Longer answers are not read to the end and count as unreadable. */
const ANSWER_MIB_MAX = 32;
const ANSWER_BYTES_MAX = ANSWER_MIB_MAX * 1024 * 1024;
/** The largest request body kept in memory while its answer is streamed. */
const BODY_BYTES_KEPT = 16 * 1024;
const ERROR_BYTES_MAX = 64 * 1024;
const MESSAGE_CHARACTERS_MAX = 500;
const BUSY_RETRY_SECONDS = 1;
/** How long, in milliseconds, and for how much to wait after the end of a stream, so that its connection can be reused. */
const REST = { bytesMax: 64 * 1024, milliseconds: 2000 };

/** A definite refusal. `elsewhere` means that another upstream may do better, because the request is not at fault. */
export type Refused = {
  kind: 'refused';
  code: RefusalCode;
  reason: string;
  retryAfterSeconds?: number;
  elsewhere: boolean;
  /** The correction that the operator has to make if the configuration is at fault. For the log, never for the caller. */
  fault?: string;
  /** No connection could be made. */
  isUnreachable?: true;
};
/** The reply of an upstream. Only `answered` has certainly cost something; `unknown` may have. */
export type Reply =
  | { kind: 'answered'; body: Buffer; json: unknown }
  /**
   * The first events have arrived. Later errors are thrown while reading; the events must be read or returned. After
   * `endSoon`, the stream breaks within two seconds.
   */
  | { kind: 'streaming'; events: AsyncIterable<readonly SseRun[]>; endSoon: () => void }
  | Refused
  /** `isAlive`: it has answered, and nobody knows what, as it is more than is read. */
  | { kind: 'unknown'; reason: string; isAlive?: true };

/** The only upstream paths ever called. */
const PATHS: Record<Api, string> = {
  chat: 'chat/completions',
  embeddings: 'embeddings',
  messages: 'messages',
  responses: 'responses',
};

/** The version of Anthropic's API whose answers are read, for clients that name none (docs.anthropic.com/en/api/versioning). */
const MESSAGES_VERSION = '2023-06-01';

/** A request to an upstream. */
export type Asked = {
  api: Api;
  body: Buffer;
  /** Sent beside those of every request. */
  headers?: Readonly<Record<string, string>>;
};

export type Upstream = {
  /**
   * Posts one request, with `operationId` as the Idempotency-Key. Never throws. Calls `onByte` when the answer begins, and
   * perhaps again.
   */
  ask(asked: Asked, operationId: string, stream?: boolean, onByte?: () => void): Promise<Reply>;
  close(): Promise<void>;
};

/** Statuses that say a time-out somewhere on the way: nobody knows whether anything was generated (design, section 8). */
const TIME_OUTS = new Set([408, 425, 499, 504, 522, 524]);

/** Opens the connections to one model server. `apiKey` is sent as a bearer token; to Messages as Anthropic wants it. */
export function openUpstream(config: UpstreamConfig, apiKey: string | undefined): Upstream {
  const { origin, pathname } = new URL(config.base_url);
  const base = pathname.replace(/\/$/, '');
  const {
    connect_timeout_seconds: connect,
    timeout_seconds: whole,
    first_byte_timeout_seconds: first = whole,
  } = config;
  const { exchange, open, close } = openWatchedPool(origin, {
    pipelining: 1,
    connectMilliseconds: Math.min(connect, first, whole) * 1000,
  });
  const headersFor = (api: Api): Record<string, string> => {
    if (api === 'messages')
      return { 'anthropic-version': MESSAGES_VERSION, ...(apiKey ? { 'x-api-key': apiKey } : {}) };
    return apiKey ? { authorization: `Bearer ${apiKey}` } : {};
  };
  const clean = (text: string) => {
    const struck = redact(apiKey && apiKey.length >= 4 ? text.replaceAll(apiKey, '[redacted]') : text);
    return struck.slice(0, MESSAGE_CHARACTERS_MAX); // Last: a truncated secret would not be recognised.
  };
  const name = `upstream ${config.name}`;
  let running = 0;

  function failure(error: unknown, isSent: boolean, limits: Limits): Reply {
    const { code, message } = error as NodeJS.ErrnoException;
    if (!isSent)
      return {
        kind: 'refused',
        code: 'gateway_unavailable',
        reason: `The model server cannot be reached (${code ?? 'no connection'}). Nothing was charged.`,
        elsewhere: true,
        isUnreachable: true,
      };
    return { kind: 'unknown', reason: `${name}: ${limits.exceeded() ?? clean(code ?? message)}` };
  }

  return {
    async ask({ api, body, headers }, operationId, stream = false, onByte = () => {}) {
      if (running >= (config.max_concurrent ?? Number.POSITIVE_INFINITY))
        return {
          kind: 'refused',
          code: 'rate_limited',
          reason: `The model server has ${running} requests in flight, the most that it may have. Nothing was charged.`,
          retryAfterSeconds: BUSY_RETRY_SECONDS,
          elsewhere: true,
        };
      running++;
      const request = {
        path: `${base}/${PATHS[api]}`,
        method: 'POST' as const,
        headers: {
          ...headersFor(api),
          ...headers,
          'content-type': 'application/json',
          accept: stream ? 'text/event-stream' : 'application/json',
          'content-length': String(body.length),
          'idempotency-key': operationId,
        },
        body: body.length > BODY_BYTES_KEPT ? once(body) : body,
        headersTimeout: 0, // Replaced by our own limits.
        bodyTimeout: 0,
      };
      return stream ? askForStream(request, api, onByte) : askForWhole(request, api, onByte);
    },
    close,
  };

  async function askForWhole(request: Dispatcher.DispatchOptions, api: Api, onByte: () => void): Promise<Reply> {
    const limits = startLimits(config, () => call.abort(), onByte);
    const call = exchange(request, { onHead: limits.firstByte, bytesMax: answerBytesMax });
    try {
      return replyOf(await call.answer, api, name, clean);
    } catch (error) {
      return failure(error, call.wasSent(), limits);
    } finally {
      limits.clear();
      running--;
    }
  }

  async function askForStream(request: Dispatcher.DispatchOptions, api: Api, onByte: () => void): Promise<Reply> {
    const limits = startLimits(config, () => call.abort(), onByte);
    const call = open(request);
    const over = () => {
      limits.clear();
      running--;
    };
    let streams = false;
    try {
      const head = await call.head;
      if (head.statusCode === 200 && isEventStream(head)) {
        const reply = await begin(head.body, api, limits, over);
        streams = reply.kind === 'streaming';
        return reply;
      }
      limits.firstByte();
      return replyOf(await readWhole(head), api, name, clean);
    } catch (error) {
      call.abort(); // What cannot be read is not read any further.
      return failure(error, call.wasSent(), limits);
    } finally {
      if (!streams) over();
    }
  }

  /** Waits for the first event that says something: an error there is a definite refusal, before anything was forwarded. */
  async function begin(body: AnswerBody, api: Api, limits: Limits, over: () => void): Promise<Reply> {
    const next = eventsOf(body, limits, api);
    const held: SseRun[] = [];
    const empty = { kind: 'unknown', reason: `${name} answered 200 with a stream that holds no answer` } as const;
    for (;;) {
      const events = await next();
      if (!events) return empty;
      for (const [at, event] of events.entries()) {
        const { data, textBytes } = event;
        if (data === undefined && textBytes === undefined) continue; // A comment, which keeps the connection alive.
        const json = parse(data ?? '');
        const error = errorOf(api, json);
        if (error) {
          body.leave(REST);
          return errorReply(error, name, clean);
        }
        if (data === DONE) {
          body.leave(REST);
          return empty;
        }
        if (textBytes === undefined && isBeforeAnswer(api, json)) held.push(event);
        else {
          const first = [...held, ...events.slice(at)];
          return { kind: 'streaming', events: follow(first, next, body, limits, over), endSoon: limits.endSoon };
        }
      }
    }
  }

  /** Yields the events read so far, then the rest. */
  async function* follow(
    first: SseRun[],
    next: () => Promise<SseRun[] | undefined>,
    body: AnswerBody,
    limits: Limits,
    over: () => void,
  ): AsyncGenerator<readonly SseRun[], void, void> {
    try {
      for (let events: SseRun[] | undefined = first; events; events = await next()) yield events;
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      throw new Error(`${name}: ${limits.exceeded() ?? clean(code ?? message)}`);
    } finally {
      over();
      body.leave(REST);
    }
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
  firstByte(): void;
  /** Limits the rest of the call to two seconds. */
  endSoon(): void;
  exceeded(): string | undefined;
  clear(): void;
};

function startLimits(config: UpstreamConfig, abort: () => void, onByte: () => void): Limits {
  let exceeded: string | undefined;
  const after = (seconds: number, what: string) =>
    setTimeout(() => {
      exceeded = `${what} within ${seconds} s`;
      abort();
    }, seconds * 1000);
  let end: NodeJS.Timeout | undefined;
  const whole = after(config.timeout_seconds, 'no answer');
  const first =
    config.first_byte_timeout_seconds === undefined
      ? undefined
      : after(config.first_byte_timeout_seconds, 'no first byte');
  return {
    firstByte() {
      clearTimeout(first);
      onByte();
    },
    endSoon() {
      end ??= after(REST.milliseconds / 1000, 'no end');
    },
    exceeded: () => exceeded,
    clear() {
      clearTimeout(whole);
      clearTimeout(first);
      clearTimeout(end);
    },
  };
}

/** Returns a function that waits for the next events of a body: those of all that has arrived. Undefined at the end. */
function eventsOf(body: AnswerBody, limits: Limits, api: Api): () => Promise<SseRun[] | undefined> {
  const splitter = createEventSplitter(isWire(api) ? undefined : createPlainText());
  let isOver = false;
  return async () => {
    while (!isOver) {
      const chunk = await body.next();
      limits.firstByte();
      if (!chunk) break;
      const events = splitter.push(chunk);
      if (events.length) return events;
    }
    const last = isOver ? undefined : splitter.end();
    isOver = true;
    return last && [last];
  };
}

const isEventStream = ({ headers }: AnswerHead) => /^text\/event-stream\b/i.test(String(headers['content-type'] ?? ''));

const answerBytesMax = (status: number) => (status === 200 ? ANSWER_BYTES_MAX : ERROR_BYTES_MAX);

async function readWhole({ statusCode, headers, body }: AnswerHead & { body: AnswerBody }): Promise<Whole> {
  try {
    return { statusCode, headers, bytes: await readBounded(body, answerBytesMax(statusCode)), error: undefined };
  } catch (error) {
    return { statusCode, headers, bytes: undefined, error: error as Error };
  }
}

/** Judges a complete answer. Throws its error when it broke off and its status does not say all. */
function replyOf(
  { statusCode: status, headers, bytes, error: broken }: Whole,
  api: Api,
  name: string,
  clean: (text: string) => string,
): Reply {
  // A redirect or a 4xx says all by its status, even when its body breaks off; an error of the server has to be whole.
  if (broken && !(status >= 300 && status < 500)) throw broken;
  const json = bytes && parse(bytes.toString('utf8'));
  if (status === 200) {
    if (!bytes)
      return { kind: 'unknown', reason: `${name} answered 200 with more than ${ANSWER_MIB_MAX} MiB`, isAlive: true };
    if (typeof json !== 'object' || json === null)
      return { kind: 'unknown', reason: `${name} answered 200 with a body that cannot be read` };
    const error = hasAnswer(json) ? undefined : errorOf(api, json);
    if (!error && !holdsAnswer(api, json))
      return { kind: 'unknown', reason: `${name} answered 200 with something else than an answer of ${PATHS[api]}` };
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
  const { choices, data, content, output } = (json ?? {}) as Record<string, unknown>;
  return [choices, data, content, output].some(isFilled);
}

const isFilled = (it: unknown) => Array.isArray(it) && it.length > 0;

/** Returns whether a body or a chunk is what this API answers. What says only what it has used was done as well. */
function holdsAnswer(api: Api, json: unknown): boolean {
  if (isWire(api)) return isAnswerOf(api, json);
  const { choices, data } = (json ?? {}) as Record<string, unknown>;
  return isFilled(api === 'chat' ? choices : data) || readUsage(json, api) !== undefined;
}

/** Returns whether an event comes before any of the answer: an error right after it is a definite refusal. */
const isBeforeAnswer = (api: Api, json: unknown) =>
  isWire(api) ? !isNativeEvent(json) || isPreamble(json) : !holdsAnswer(api, json);

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
