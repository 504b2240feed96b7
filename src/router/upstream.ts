import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';
import { redact } from '../base/log.ts';
import type { RefusalCode } from '../base/refusal.ts';
import { isWire, type UpstreamConfig } from '../config/router.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { readBounded } from '../net/read-bounded.ts';
import { type AnswerBody, type AnswerHead, openWatchedPool, type Whole } from '../net/watched-pool.ts';
import { type AnswerReader, isLarge, LARGE_BYTES, READ_HERE, type ReadApart } from './apart.ts';
import type { Api } from './native.ts';
import { createPlaces } from './places.ts';
import { createPlainText } from './plain-text.ts';
import { createEventSplitter, DONE, type SseRun } from './sse.ts';
import { readEvent, type SaidRun, type ToldAnswer, type ToldError } from './told.ts';
import { toldIn } from './usage.ts';

/** Longer answers are not read to the end and count as unreadable. */
const ANSWER_MIB_MAX = 32;
const ANSWER_BYTES_MAX = ANSWER_MIB_MAX * 1024 * 1024;
/** The largest request body kept in memory while its answer is streamed. */
const BODY_BYTES_KEPT = 16 * 1024;
const ERROR_BYTES_MAX = 64 * 1024;
const MESSAGE_CHARACTERS_MAX = 500;
/** Limits on the wait, in milliseconds and bytes, after the end of a stream, so that its connection can be reused. */
const REST = { bytesMax: 64 * 1024, milliseconds: 2000 };

/** A definite refusal. `elsewhere` means that another upstream may do better, because the request is not at fault. */
export type Refused = {
  kind: 'refused';
  code: RefusalCode;
  reason: string;
  retryAfterSeconds?: number;
  elsewhere: boolean;
  /** The correction needed if the configuration is at fault. For the operator's log, never for the caller. */
  fault?: string;
  /** No connection could be made. */
  isUnreachable?: true;
};
/** The reply of an upstream. Only `answered` has certainly cost money; `unknown` may have. */
export type Reply =
  | { kind: 'answered'; body: Buffer; told: ToldAnswer }
  /**
   * The first events have arrived. Later errors are thrown while reading; the events must be read or returned. After
   * `endSoon`, the stream breaks within two seconds.
   */
  | { kind: 'streaming'; events: AsyncIterable<readonly SaidRun[]>; endSoon: () => void }
  | Refused
  /**
   * `isAlive`: the server works, but its answer is unknown, as it is longer than the limit or takes longer than the call
   * may. `isLate`: the time of the call was over, here or at a server on the way.
   */
  | { kind: 'unknown'; reason: string; isAlive?: true; isLate?: true }
  /** Purser ended the call before an answer began. `isSent`: the server may have begun to work. */
  | { kind: 'cancelled'; reason: string; isSent: boolean };

/** The only upstream paths ever called. */
const PATHS: Record<Api, string> = {
  chat: 'chat/completions',
  completions: 'completions',
  embeddings: 'embeddings',
  rerank: 'rerank',
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
  /** Reads the answer. Without a reader, the answer is read at once. */
  reader?: AnswerReader;
};

export type Upstream = {
  /**
   * Takes a place for a call of a tenant, at a moment (Unix seconds). Returns a function that gives it back; undefined where
   * the number of concurrent calls is limited and none is free for this tenant. The caller of `ask` must have entered.
   */
  enter(tenant: () => Tenant, now: number): (() => void) | undefined;
  /** Returns the number of callers that have entered. */
  callCount(): number;
  /**
   * Posts one request, with `operationId` as the Idempotency-Key. Never throws. Calls `onByte` when the answer begins, and
   * perhaps again; `over` when the call is over, which for a stream is when its events have been read or returned.
   * `cancelled` ends the call for a stream at any time, and its connection: data received by then can still be read, and
   * then reading throws.
   */
  ask(
    asked: Asked,
    operationId: string,
    stream?: boolean,
    onByte?: () => void,
    over?: () => void,
    cancelled?: AbortSignal,
  ): Promise<Reply>;
  close(): Promise<void>;
};

/** Statuses of a time-out somewhere on the way: it is unknown whether anything was generated (design, section 8). */
const TIME_OUTS = new Set([408, 425, 499, 504, 522, 524]);

/** Opens the connections to one model server. Its key is sent as a bearer token; to Messages in Anthropic's header. */
export function openUpstream(config: UpstreamConfig): Upstream {
  const apiKey = config.api_key?.reveal();
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
    const exceeded = limits.exceeded();
    if (exceeded !== undefined) return { kind: 'unknown', reason: `${name}: ${exceeded}`, isLate: true };
    return { kind: 'unknown', reason: `${name}: ${clean(code ?? message)}` };
  }

  const places = config.max_concurrent === undefined ? undefined : createPlaces(config.max_concurrent);
  let callCount = 0;
  return {
    enter(tenant, now) {
      const over = places?.take(tenant(), now);
      if (places && !over) return undefined;
      callCount++;
      let isOver = false;
      return () => {
        if (isOver) return;
        isOver = true;
        callCount--;
        over?.();
      };
    },
    callCount: () => callCount,
    async ask(asked, operationId, stream = false, onByte = () => {}, over = () => {}, cancelled) {
      const { api, body, headers, reader = READ_HERE } = asked;
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
      return stream
        ? askForStream(request, api, reader, onByte, over, cancelled)
        : askForWhole(request, api, reader, onByte, over);
    },
    close,
  };

  async function askForWhole(
    request: Dispatcher.DispatchOptions,
    api: Api,
    { apart, enter }: AnswerReader,
    onByte: () => void,
    over: () => void,
  ): Promise<Reply> {
    const limits = startLimits(config, () => call.abort(), onByte);
    const call = exchange(request, {
      onHead: limits.firstByte,
      bytesMax: answerBytesMax,
      room: { freeBytes: LARGE_BYTES, enter: () => entered(enter(), over) },
    });
    try {
      return await replyOf(await call.answer, api, name, clean, apart);
    } catch (error) {
      return failure(error, call.wasSent(), limits);
    } finally {
      limits.clear();
      over();
    }
  }

  async function askForStream(
    request: Dispatcher.DispatchOptions,
    api: Api,
    { apart, enter }: AnswerReader,
    onByte: () => void,
    over: () => void,
    cancelled?: AbortSignal,
  ): Promise<Reply> {
    const ended = Promise.withResolvers<void>();
    const limits = startLimits(
      config,
      () => {
        call.abort();
        ended.resolve();
      },
      onByte,
    );
    const call = open(request);
    const cut = () => {
      call.cut();
      ended.resolve();
    };
    cancelled?.addEventListener('abort', cut);
    const end = () => {
      limits.clear();
      cancelled?.removeEventListener('abort', cut);
      over();
    };
    let streams = false;
    try {
      const head = await call.head;
      if (head.statusCode === 200 && isEventStream(head)) {
        const reply = await begin(head.body, api, apart, limits, end);
        streams = reply.kind === 'streaming';
        return reply;
      }
      limits.firstByte();
      const body = withRoom(head.body, () => Promise.race([entered(enter(), over), ended.promise]));
      return await replyOf(await readWhole({ ...head, body }), api, name, clean, apart);
    } catch (error) {
      call.abort(); // The rest of an unreadable answer is not read.
      if (cancelled?.aborted)
        return { kind: 'cancelled', reason: `${name}: the call was ended from here`, isSent: call.wasSent() };
      return failure(error, call.wasSent(), limits);
    } finally {
      if (!streams) end();
    }
  }

  /**
   * Waits for the first event with content: an error there is a definite refusal, before anything was forwarded. A stream
   * that ends before such an event counts as begun if it has reported its prompt: that part of its cost is known.
   */
  async function begin(body: AnswerBody, api: Api, apart: ReadApart, limits: Limits, over: () => void): Promise<Reply> {
    const next = eventsOf(body, limits, api, apart);
    const held: SaidRun[] = [];
    const isPromptTold = () =>
      held.some(({ said }) => typeof said === 'object' && toldIn(said.usage, api).promptTokens);
    const empty = { kind: 'unknown', reason: `${name} answered 200 with a stream that holds no answer` } as const;
    const streaming = (more: SaidRun[], rest = next): Reply => ({
      kind: 'streaming',
      events: follow([...held, ...more], rest, body, limits, over),
      endSoon: limits.endSoon,
    });
    try {
      for (;;) {
        const events = await next();
        if (!events) return isPromptTold() ? streaming([]) : empty;
        for (const [at, event] of events.entries()) {
          const said = event.textBytes === undefined ? (event.said ?? readEvent(event, api)) : 'text';
          if (said === undefined) continue; // A comment, which keeps the connection alive.
          if (said === DONE) {
            if (isPromptTold()) return streaming([event]);
            body.leave(REST);
            return empty;
          }
          if (said !== 'text' && said.error) {
            body.leave(REST);
            return errorReply(said.error, name, clean);
          }
          if (said === 'text' || !said.isBeforeAnswer) return streaming(events.slice(at));
          held.push({ raw: event.raw, data: undefined, said });
        }
      }
    } catch (error) {
      if (!isPromptTold()) throw error;
      return streaming([], () => Promise.reject(error));
    }
  }

  /** Yields the events read so far, then the rest. */
  async function* follow(
    first: SaidRun[],
    next: () => Promise<SaidRun[] | undefined>,
    body: AnswerBody,
    limits: Limits,
    over: () => void,
  ): AsyncGenerator<readonly SaidRun[], void, void> {
    try {
      for (let events: SaidRun[] | undefined = first; events; events = await next()) yield events;
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      throw new Error(`${name}: ${limits.exceeded() ?? clean(code ?? message)}`);
    } finally {
      over();
      body.leave(REST);
    }
  }
}

/** Streams a body once. undici keeps a body until its answer has ended; this one frees it once it is read. */
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
    // The connection keeps the process alive while needed; the limit of a call that is no longer followed must not.
    setTimeout(() => {
      exceeded = `${what} within ${seconds} s`;
      abort();
    }, seconds * 1000).unref();
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

/** Returns a function that waits for the next events of a body: all that have arrived. Undefined at the end. */
function eventsOf(body: AnswerBody, limits: Limits, api: Api, apart: ReadApart): () => Promise<SaidRun[] | undefined> {
  const splitter = createEventSplitter(isWire(api) ? undefined : createPlainText());
  let isOver = false;
  /** Reads nothing more before a large event has been read: this keeps the order, and bounds the unread part of a stream. */
  async function withLarge(events: SseRun[]): Promise<SaidRun[]> {
    const all: SaidRun[] = [];
    for (const event of events) {
      const { raw } = event;
      const isApart = isLarge(raw) && event.textBytes === undefined;
      all.push(isApart ? { raw, data: undefined, said: await apart('event', raw, api) } : event);
    }
    return all;
  }
  return async () => {
    while (!isOver) {
      const chunk = await body.next();
      limits.firstByte();
      if (!chunk) break;
      const events = splitter.push(chunk);
      if (events.length) return events.some(({ raw }) => isLarge(raw)) ? withLarge(events) : events;
    }
    const last = isOver ? undefined : splitter.end();
    isOver = true;
    return last && [{ raw: last.raw, data: undefined, said: await apart('last', last.raw, api) }];
  };
}

const isEventStream = ({ headers }: AnswerHead) => /^text\/event-stream\b/i.test(String(headers['content-type'] ?? ''));

const answerBytesMax = (status: number) => (status === 200 ? ANSWER_BYTES_MAX : ERROR_BYTES_MAX);

/** Gives back the place of an answer that has to wait for its room: its server is done with it. */
function entered(entering: Promise<void> | undefined, over: () => void): Promise<void> | undefined {
  if (entering) over();
  return entering;
}

/** Yields the bytes of a body. A large body waits for its room after the first bytes. */
async function* withRoom(body: AnswerBody, enter: () => Promise<void>): AsyncGenerator<Buffer, void, void> {
  let length = 0;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > LARGE_BYTES) await enter();
    yield chunk;
  }
}

async function readWhole({ statusCode, headers, body }: AnswerHead & { body: AsyncIterable<Buffer> }): Promise<Whole> {
  try {
    return { statusCode, headers, bytes: await readBounded(body, answerBytesMax(statusCode)), error: undefined };
  } catch (error) {
    return { statusCode, headers, bytes: undefined, error: error as Error };
  }
}

/** Judges a complete answer. Throws its error if it broke off, unless its status is conclusive. */
async function replyOf(
  { statusCode: status, headers, bytes, error: broken }: Whole,
  api: Api,
  name: string,
  clean: (text: string) => string,
  apart: ReadApart,
): Promise<Reply> {
  // The status of a redirect or a 4xx is conclusive, even if its body breaks off; an error of the server has to be whole.
  if (broken && !(status >= 300 && status < 500)) throw broken;
  const told = bytes && (await apart('answer', bytes, api));
  if (status === 200) {
    if (!bytes)
      return { kind: 'unknown', reason: `${name} answered 200 with more than ${ANSWER_MIB_MAX} MiB`, isAlive: true };
    if (!told) return { kind: 'unknown', reason: `${name} answered 200 with a body that cannot be read` };
    const error = told.isFilled ? undefined : told.error;
    if (!error && !told.isAnswer)
      return { kind: 'unknown', reason: `${name} answered 200 with something else than an answer of ${PATHS[api]}` };
    return error ? errorReply(error, name, clean) : { kind: 'answered', body: bytes, told };
  }
  if (TIME_OUTS.has(status)) return { kind: 'unknown', reason: `${name} answered ${status}`, isLate: true };
  if (status < 300) return { kind: 'unknown', reason: `${name} answered ${status}` };
  if (told?.isFilled) return { kind: 'unknown', reason: `${name} answered ${status} with an answer in its body` };
  return refusal(status, clean(told?.message ?? ''), name, {
    isContextFull: told?.isContextFull ?? false,
    retryAfter: retryAfter(headers['retry-after']),
    location: addressIn(headers.location, clean),
  });
}

/** Maps a status 200 with an error in place of an answer to a refusal, by the status that the error names, if any. */
function errorReply(
  { status, message, isContextFull }: ToldError,
  name: string,
  clean: (text: string) => string,
): Refused {
  // A request that timed out may still be running: it is not charged, and no other upstream is asked.
  const elsewhere = !TIME_OUTS.has(status);
  if (elsewhere && status >= 400 && status < 500) return refusal(status, clean(message), name, { isContextFull });
  const reason = 'The model server refused to answer. Nothing was charged.';
  return { kind: 'refused', code: 'gateway_unavailable', reason, elsewhere };
}

type ReplyDetails = { isContextFull: boolean; retryAfter?: number | undefined; location?: string | undefined };

/**
 * Maps a complete answer with a status from 300 up and no generated output to a definite refusal, for any server. The
 * caller sees only faults that they can fix; the rest is between the operator and the upstream.
 */
function refusal(
  status: number,
  message: string,
  name: string,
  { isContextFull, retryAfter, location }: ReplyDetails,
): Refused {
  const detail = message ? `: ${message}` : '.';
  const request = { kind: 'refused', elsewhere: false } as const;
  const server = { kind: 'refused', elsewhere: true } as const;
  if (isContextFull && [400, 413, 422].includes(status))
    return { ...request, code: 'context_length_exceeded', reason: `The model server refused the request${detail}` };
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

function retryAfter(header: string | string[] | undefined): number | undefined {
  const seconds = Number(Array.isArray(header) ? header[0] : header);
  return Number.isFinite(seconds) && seconds >= 0 ? Math.ceil(seconds) : undefined;
}
