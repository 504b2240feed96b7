import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { Context } from 'hono';
import type * as v from 'valibot';
import { whenStopping } from '../../base/health.ts';
import { Refusal, type RefusalCode } from '../../base/refusal.ts';
import { turnWhenDue } from '../../base/turn.ts';
import { collectPieces } from '../../net/pieces.ts';
import { parseBody, readBody, streamBody, validate } from '../body.ts';
import { countAnswer, describeError, type Env, type HttpApp, requestIdOf } from '../endpoint.ts';
import { openEventStream, writePieces } from '../event-stream.ts';
import { onceClosed } from '../exchange.ts';
import type { Allowance } from '../memory-quota.ts';
import { GONE_STATUS, headersFor, isGone } from './errors.ts';

/** The protocol Connect with JSON, as E2B's SDKs speak it. */

/** Room for what is written to a program, and for its arguments. */
const BODY_BYTES_MAX = 8 * 1024 * 1024;
/** The most bytes of one message of a stream of them. */
const PART_BYTES_MAX = 1024 * 1024;
const HEAD_BYTES = 5;
/** About the length of a piece of a long answer. */
const PIECE_LENGTH = 64 * 1024;
const COMPRESSED = 1;
const LAST = 2;
/** Seconds of silence after which a stream sends a sign of life, unless the client asks for others. */
const KEEPALIVE_SECONDS = { standard: 50, min: 1, max: 90 };

/** The codes of Connect that are used here, with their statuses (connectrpc.com/docs/protocol). */
const STATUSES = {
  invalid_argument: 400,
  unauthenticated: 401,
  permission_denied: 403,
  not_found: 404,
  already_exists: 409,
  aborted: 409,
  resource_exhausted: 429,
  unknown: 500,
  internal: 500,
  unimplemented: 501,
  unavailable: GONE_STATUS,
  deadline_exceeded: 504,
} as const;
type ConnectCode = keyof typeof STATUSES;

/** An error with a code of Connect, where that of a refusal would not do. */
export class ConnectFault extends Error {
  readonly code: ConnectCode;

  constructor(code: ConnectCode, message: string) {
    super(message);
    this.code = code;
  }
}

const CODES: Partial<Record<RefusalCode, ConnectCode>> = {
  invalid_request: 'invalid_argument',
  invalid_json: 'invalid_argument',
  payload_too_large: 'invalid_argument',
  unauthenticated: 'unauthenticated',
  wrong_token_scope: 'permission_denied',
  not_found: 'not_found',
  conflict: 'already_exists',
  rate_limited: 'resource_exhausted',
  lease_limit_exceeded: 'resource_exhausted',
  read_only: 'aborted',
  internal_error: 'internal',
};

/** Returns the code of a refusal. A call into a machine that failed is unknown: it may have had its effect. */
const codeOf = (code: RefusalCode): ConnectCode => (isGone(code) ? 'unavailable' : (CODES[code] ?? 'unknown'));

type Fault = { code: ConnectCode; message: string };
function faultOf(app: HttpApp, c: Context<Env>, error: unknown): Fault {
  if (error instanceof ConnectFault) return { code: error.code, message: error.message };
  const { refusal, message } = describeError(app, requestIdOf(c), c.req.path, error);
  return { code: codeOf(refusal.code), message };
}

const STREAM = { 'content-type': 'application/connect+json' };
const isEnveloped = (c: Context<Env>) => /^application\/connect\+json\b/i.test(c.req.header('content-type') ?? '');

/**
 * Answers a call that failed before it began. Clients of a stream read the code in its last message alone: any status but 200 is
 * another code for them, as 429 is `unavailable`.
 */
export function answerFault(app: HttpApp, c: Context<Env>, error: unknown): Response {
  const { code, message } = faultOf(app, c, error);
  if (isEnveloped(c)) {
    const last = new Uint8Array(envelope(LAST, { error: { code, message } }));
    return new Response(last, { status: 200, headers: { ...headersFor(c), ...STREAM } });
  }
  return new Response(JSON.stringify({ code, message }), { status: STATUSES[code], headers: headersFor(c) });
}

/** Returns the one message of a request to a stream. */
function messageOf(bytes: Buffer): Buffer {
  const isWhole = bytes.length >= HEAD_BYTES && bytes.readUInt32BE(1) === bytes.length - HEAD_BYTES;
  if (!isWhole || (bytes[0] as number) & COMPRESSED)
    throw new Refusal('invalid_request', 'The body must be one message of Connect, not compressed.');
  return bytes.subarray(HEAD_BYTES);
}

/** Reads and checks the message of a call. `owner` pays for its memory while it is read. */
export async function readMessage<S extends v.GenericSchema>(
  app: HttpApp,
  c: Context<Env>,
  owner: string,
  schema: S,
): Promise<v.InferOutput<S>> {
  const share = app.memory.open(owner);
  try {
    const bytes = await readBody(c.env.incoming, BODY_BYTES_MAX, share);
    const body = isEnveloped(c) ? messageOf(bytes) : bytes;
    return validate(schema, body.length ? parseBody(body, share).value : {});
  } finally {
    share.close();
  }
}

/**
 * Yields the messages of a request that is a stream, as they come, with turns for others where many come at once. `owner` pays for
 * the memory of each until the next. `confirm` is called whenever more of the body has come, and may throw.
 */
export async function* readMessages<S extends v.GenericSchema>(
  app: HttpApp,
  c: Context<Env>,
  owner: string,
  schema: S,
  confirm: () => void,
): AsyncGenerator<v.InferOutput<S>> {
  const unread = app.memory.open(owner);
  const body = streamBody(c.env.incoming, app.stallMilliseconds, unread);
  let waiting: Buffer = Buffer.alloc(0);
  /** Reads on until this many bytes wait. Returns whether they do. */
  async function reach(count: number): Promise<boolean> {
    const pieces = collectPieces(); // Each may be a single byte.
    pieces.add(waiting);
    while (pieces.length() < count) {
      const piece = await body.next();
      if (!piece) break;
      confirm();
      unread.take(piece.length);
      pieces.add(piece);
    }
    waiting = pieces.whole();
    return waiting.length >= count;
  }
  try {
    for (;;) {
      const length = waiting.length < HEAD_BYTES ? 0 : waiting.readUInt32BE(1);
      if (length > PART_BYTES_MAX)
        throw new Refusal('payload_too_large', `A message of a stream has at most ${PART_BYTES_MAX} bytes.`);
      if (waiting.length >= HEAD_BYTES + length) {
        const read = app.memory.open(owner);
        try {
          const message = messageOf(waiting.subarray(0, HEAD_BYTES + length));
          yield validate(schema, parseBody(message, read).value);
        } finally {
          read.close();
        }
        waiting = waiting.subarray(HEAD_BYTES + length);
        unread.release(HEAD_BYTES + length);
        await turnWhenDue();
        continue;
      }
      if (!(await reach(HEAD_BYTES + length))) break;
    }
    if (waiting.length) throw new Refusal('invalid_request', 'The body breaks off in a message of Connect.');
  } finally {
    body.leave();
    unread.close();
  }
}

/** Answers a unary call. `owner` pays for the memory of a large answer until its client has it. */
export function answerMessage(app: HttpApp, c: Context<Env>, owner: string, message: object): Response {
  const text = JSON.stringify(message);
  countAnswer(app, c, owner, text);
  return new Response(text, { status: 200, headers: headersFor(c) });
}

/** A message whose list may be long, in pieces: to make it, or to join it, takes longer than a turn may. */
export class WrittenList {
  readonly pieces: readonly Buffer<ArrayBuffer>[];

  constructor(pieces: readonly Buffer<ArrayBuffer>[]) {
    this.pieces = pieces;
  }
}

/** Writes a message with one list, with turns for others. `count` is called with the bytes of each piece, and may throw. */
export async function writeList(
  name: string,
  items: Iterable<object> | AsyncIterable<object>,
  count: Allowance['take'],
): Promise<WrittenList> {
  const pieces: Buffer<ArrayBuffer>[] = [];
  let text = `{${JSON.stringify(name)}:[`;
  function cut() {
    const piece = Buffer.from(text);
    count(piece.length);
    pieces.push(piece);
    text = '';
  }
  let separator = '';
  for await (const item of items) {
    text += separator + JSON.stringify(item);
    separator = ',';
    if (text.length >= PIECE_LENGTH) cut();
    await turnWhenDue();
  }
  text += ']}';
  cut();
  return new WrittenList(pieces);
}

/** Answers a unary call with a list. `owner` pays for its memory until its client has it. */
export async function answerList(
  app: HttpApp,
  c: Context<Env>,
  owner: string,
  { pieces }: WrittenList,
): Promise<Response> {
  const [whole, ...more] = pieces;
  if (whole && !more.length) {
    countAnswer(app, c, owner, whole);
    return new Response(whole, { status: 200, headers: headersFor(c) });
  }
  const share = app.memory.open(owner);
  share.add(pieces.reduce((sum, it) => sum + it.length, 0));
  const outgoing = c.env.outgoing as Parameters<typeof openEventStream>[0];
  const events = openEventStream(outgoing, () => headersFor(c), app.stallMilliseconds);
  try {
    events.begin({ 'content-type': 'application/json' });
    await writePieces(events, pieces);
  } finally {
    events.end();
    share.close();
  }
  return RESPONSE_ALREADY_SENT;
}

/** Returns the bytes of a message of a stream, for one that is sent to several. */
export const encodeMessage = (message: object): Buffer => envelope(0, message);

function envelope(flags: number, message: object): Buffer {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(HEAD_BYTES);
  head[0] = flags;
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}

/** Returns the limit that a client gives a call, in milliseconds; undefined for none. */
export function timeLimitOf(c: Context<Env>): number | undefined {
  const text = c.req.header('connect-timeout-ms');
  if (text === undefined) return undefined;
  if (!/^\d{1,10}$/.test(text))
    throw new Refusal('invalid_request', 'Connect-Timeout-Ms: must be a number of milliseconds.');
  return Math.min(Number(text), 2 ** 31 - 1) || undefined;
}

export type ConnectStream = {
  /** Sends a message, or one that `encodeMessage` made. Resolves when the client has room for more, or has gone. */
  send(message: object | Buffer): Promise<void> | undefined;
  /** Resolves when the client has gone or the server stops. */
  interrupted: Promise<'gone' | 'stopping'>;
};

/**
 * Answers a stream: status 200 always, and a last message with the error if there is one. `run` gets the stream when all that is
 * refused before is checked; `keepalive` is sent in silence.
 */
export async function answerStream(
  app: HttpApp,
  c: Context<Env>,
  keepalive: object,
  run: (stream: ConnectStream) => Promise<void>,
): Promise<Response> {
  const outgoing = c.env.outgoing as Parameters<typeof openEventStream>[0];
  const events = openEventStream(outgoing, () => headersFor(c), app.stallMilliseconds);
  const interruption = Promise.withResolvers<'gone' | 'stopping'>();
  onceClosed(c, () => interruption.resolve('gone'));
  using _ = whenStopping(app.health, () => interruption.resolve('stopping'));
  const asked = Number(c.req.header('keepalive-ping-interval') ?? KEEPALIVE_SECONDS.standard);
  const { min, max, standard } = KEEPALIVE_SECONDS;
  const seconds = Number.isFinite(asked) ? Math.min(Math.max(asked, min), max) : standard;
  const begin = () => {
    if (!events.hasBegun()) events.begin(STREAM);
  };
  const silence = setInterval(() => {
    if (events.hasBegun()) void events.write(envelope(0, keepalive));
  }, seconds * 1000);
  try {
    await run({
      send(message) {
        begin();
        silence.refresh();
        return events.write(Buffer.isBuffer(message) ? message : encodeMessage(message));
      },
      interrupted: interruption.promise,
    });
    begin();
    await events.write(envelope(LAST, {}));
  } catch (error) {
    const fault = faultOf(app, c, error);
    begin();
    await events.write(envelope(LAST, { error: fault }));
  } finally {
    clearInterval(silence);
    events.end();
  }
  return RESPONSE_ALREADY_SENT;
}
