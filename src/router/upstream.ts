import { Readable } from 'node:stream';
import type { Dispatcher } from 'undici';
import { redact } from '../base/log.ts';
import type { UpstreamConfig } from '../config/router.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { readBounded } from '../net/read-bounded.ts';
import { type AnswerBody, type AnswerHead, openWatchedPool, type Whole } from '../net/watched-pool.ts';
import { type AnswerReader, LARGE_BYTES, READ_HERE } from './apart.ts';
import { beginStream } from './begun-stream.ts';
import { type CallLimits, startLimits } from './call-limits.ts';
import { type Api, PATHS } from './native.ts';
import { createPermits, type Permits } from './permits.ts';
import { answerBytesMax, type Reply, replyOf } from './reply.ts';

/** The largest request body kept in memory while its answer is streamed. */
const BODY_BYTES_KEPT = 16 * 1024;
const MESSAGE_CHARACTERS_MAX = 500;

/** The version of Anthropic's API whose answers are read, for clients that name none (docs.anthropic.com/en/api/versioning). */
const MESSAGES_VERSION = '2023-06-01';

/** A request to an upstream. */
export type UpstreamRequest = {
  api: Api;
  body: Buffer;
  /** Sent beside those of every request. */
  headers?: Readonly<Record<string, string>>;
  /** Reads the answer. Without a reader, the answer is read at once. */
  reader?: AnswerReader;
};

export type Upstream = {
  /**
   * Takes a permit for a call of a tenant, at a moment (Unix seconds). Returns a function that gives it back; undefined where
   * concurrent calls are limited and none is free. The caller of `ask` must have entered.
   */
  enter(tenant: () => Tenant, now: number): (() => void) | undefined;
  /** Returns the number of callers that have entered. */
  callCount(): number;
  /** The places of its calls, for the upstream that takes over its server. */
  places: Places;
  /**
   * Posts one request, with `operationId` as the Idempotency-Key. Never throws. Calls `onByte` when the answer begins, and
   * perhaps again; `onEnd` when the call has ended, which for a stream is when its events have been read or returned.
   * `cancelled` ends the call for a stream at any time, and its connection: data received by then can still be read, and
   * then reading throws.
   */
  ask(
    asked: UpstreamRequest,
    operationId: string,
    stream?: boolean,
    onByte?: () => void,
    onEnd?: () => void,
    cancelled?: AbortSignal,
  ): Promise<Reply>;
  close(): Promise<void>;
};

/** The places of the calls to the model server at an address, however often its other settings change while some of them last. */
type Places = { address: string; permits: Permits; callCount: number };

/** The connections to one model server. */
type ModelServer = {
  config: UpstreamConfig;
  pool: ReturnType<typeof openWatchedPool>;
  /** The path of its API. */
  base: string;
  apiKey: string | undefined;
  label: { name: string; clean: (text: string) => string };
};

/** A request that is posted, with the listeners of its call, as for `ask`. */
type UpstreamCall = {
  request: Dispatcher.DispatchOptions;
  api: Api;
  reader: AnswerReader;
  onByte: () => void;
  onEnd: () => void;
  cancelled: AbortSignal | undefined;
};

/**
 * Opens the connections to one model server. Its key is sent as a bearer token; to Messages in Anthropic's header. `before` has those
 * of its former settings.
 */
export function openUpstream(config: UpstreamConfig, before?: Upstream): Upstream {
  const server = connectTo(config);
  const { max_concurrent: countMax, base_url: address } = config;
  const places =
    before?.places.address === address ? before.places : { address, permits: createPermits(), callCount: 0 };
  return {
    enter(tenant, now) {
      const release = countMax === undefined ? () => {} : places.permits.take(tenant(), now, countMax);
      if (!release) return undefined;
      places.callCount++;
      let isOver = false;
      return () => {
        if (isOver) return;
        isOver = true;
        places.callCount--;
        release();
      };
    },
    callCount: () => places.callCount,
    places,
    async ask(asked, operationId, stream = false, onByte = () => {}, onEnd = () => {}, cancelled) {
      const { api, reader = READ_HERE } = asked;
      const call = { request: requestOf(server, asked, operationId, stream), api, reader, onByte, onEnd, cancelled };
      return stream ? askForStream(server, call) : askForWhole(server, call);
    },
    close: server.pool.close,
  };
}

function connectTo(config: UpstreamConfig): ModelServer {
  const apiKey = config.api_key?.reveal();
  const { origin, pathname } = new URL(config.base_url);
  const {
    connect_timeout_seconds: connect,
    timeout_seconds: whole,
    first_byte_timeout_seconds: first = whole,
  } = config;
  const clean = (text: string) => {
    const struck = redact(apiKey && apiKey.length >= 4 ? text.replaceAll(apiKey, '[redacted]') : text);
    return struck.slice(0, MESSAGE_CHARACTERS_MAX); // Last: a truncated secret would not be recognised.
  };
  return {
    config,
    pool: openWatchedPool(origin, {
      pipelining: 1,
      connectMilliseconds: Math.min(connect, first, whole) * 1000,
    }),
    base: pathname.replace(/\/$/, ''),
    apiKey,
    label: { name: `upstream ${config.name}`, clean },
  };
}

function requestOf(server: ModelServer, { api, body, headers }: UpstreamRequest, operationId: string, stream: boolean) {
  return {
    path: `${server.base}/${PATHS[api]}`,
    method: 'POST' as const,
    headers: {
      ...keyHeaders(server, api),
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
}

function keyHeaders({ apiKey }: ModelServer, api: Api): Record<string, string> {
  if (api === 'messages') return { 'anthropic-version': MESSAGES_VERSION, ...(apiKey ? { 'x-api-key': apiKey } : {}) };
  return apiKey ? { authorization: `Bearer ${apiKey}` } : {};
}

async function askForWhole(server: ModelServer, { request, api, reader, onByte, onEnd }: UpstreamCall): Promise<Reply> {
  const limits = startLimits(server.config, () => exchange.abort(), onByte);
  const exchange = server.pool.exchange(request, {
    onHead: limits.firstByte,
    bytesMax: answerBytesMax,
    room: { freeBytes: LARGE_BYTES, enter: () => entered(reader.enter(), onEnd, limits) },
  });
  try {
    return await replyOf(await exchange.answer, api, server.label, reader.apart);
  } catch (error) {
    return failure(server, error, exchange.wasSent(), limits);
  } finally {
    limits.clear();
    onEnd();
  }
}

async function askForStream(server: ModelServer, call: UpstreamCall): Promise<Reply> {
  const { api, reader, onEnd, cancelled } = call;
  const { config, label } = server;
  const ended = Promise.withResolvers<void>();
  const limits = startLimits(
    config,
    () => {
      exchange.abort();
      ended.resolve();
    },
    call.onByte,
  );
  const exchange = server.pool.open(call.request);
  const cut = () => {
    exchange.cut();
    ended.resolve();
  };
  cancelled?.addEventListener('abort', cut);
  const end = () => {
    limits.clear();
    cancelled?.removeEventListener('abort', cut);
    onEnd();
  };
  let streams = false;
  try {
    const head = await exchange.head;
    if (head.statusCode === 200 && isEventStream(head)) {
      const reply = await beginStream(head.body, { api, apart: reader.apart, label, limits, onEnd: end });
      streams = reply.kind === 'streaming';
      return reply;
    }
    limits.firstByte();
    const body = withRoom(head.body, () => Promise.race([entered(reader.enter(), onEnd, limits), ended.promise]));
    return await replyOf(await readWhole({ ...head, body }), api, label, reader.apart);
  } catch (error) {
    exchange.abort(); // The rest of an unreadable answer is not read.
    if (cancelled?.aborted)
      return { kind: 'cancelled', reason: `${label.name}: the call was ended from here`, isSent: exchange.wasSent() };
    return failure(server, error, exchange.wasSent(), limits);
  } finally {
    if (!streams) end();
  }
}

function failure({ label }: ModelServer, error: unknown, isSent: boolean, limits: CallLimits): Reply {
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
  return {
    kind: 'unknown',
    reason: `${label.name}: ${exceeded ?? label.clean(code ?? message)}`,
    ...(exceeded === undefined ? {} : { isLate: true }),
    ...(limits.wasHeldBack() ? { isAlive: true } : {}),
  };
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

const isEventStream = ({ headers }: AnswerHead) => /^text\/event-stream\b/i.test(String(headers['content-type'] ?? ''));

/** Gives back the permit of an answer that has to wait for its room, and does not count the wait: its server is done with it. */
function entered(
  entering: Promise<void> | undefined,
  onEnd: () => void,
  limits: CallLimits,
): Promise<void> | undefined {
  if (!entering) return undefined;
  onEnd();
  return limits.holdBack(entering);
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
