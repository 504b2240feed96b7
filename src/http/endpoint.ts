import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { HttpBindings } from '@hono/node-server';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { Context, ErrorHandler, Handler } from 'hono';
import * as v from 'valibot';
import { admit, type Principal, type PrincipalFor, refuseRevoked, type Scope } from '../access/principal.ts';
import type { Sessions } from '../access/sessions.ts';
import type { Tokens } from '../access/tokens.ts';
import { refuseFault, type ServerHealth } from '../base/health.ts';
import { newId } from '../base/id.ts';
import type { Limit } from '../base/limits.ts';
import { redactTokens } from '../base/log.ts';
import { REFUSALS, Refusal, type RefusalCode } from '../base/refusal.ts';
import type { Shares } from '../base/shares.ts';
import type { BillingApp } from '../billing/checkout.ts';
import type { StorageWatch } from '../books/storage-watch.ts';
import type { ChatApp } from '../chat/quote.ts';
import type { Retries } from '../chat/retry.ts';
import type { Config } from '../config/config.ts';
import type { DiskReserve } from '../db/disk-reserve.ts';
import type { Tenant } from '../ledger/tenant.ts';
import type { createAddressReader } from '../net/address.ts';
import { eventOf } from '../router/sse.ts';
import type { OnResponseEnd } from '../spend/audience.ts';
import type { Signer } from '../transfer/object-url.ts';
import type { CloseApp } from '../wallet/close.ts';
import type { OpenApp } from '../wallet/open.ts';
import type { AnswerReadings } from './answer-readings.ts';
import {
  mediaTypeOf,
  parseBody,
  readBody,
  readQuery,
  refuseMediaType,
  type StreamedBody,
  streamBody,
  validate,
} from './body.ts';
import { authenticateAndLimit, ownerOf, tenantFor } from './caller.ts';
import type { Concurrency } from './concurrency.ts';
import { messagesError } from './dialects/messages.ts';
import { type EventStream, openEventStream, writePieces } from './event-stream.ts';
import { type ContainedResponse, cutOff, lastAnswer, onceClosed } from './exchange.ts';
import type { Allowance, MemoryQuota } from './memory-quota.ts';
import { type ModelRequest, type ModelRequestKind, type ValidModelRequest, validRequest } from './model-request.ts';
import type { ModelRequests } from './model-requests.ts';
import {
  gatewayStatus,
  isGatewayRequest,
  isOfAnthropic,
  isPassing,
  openAiBody,
  RETRY_SECONDS_MAX,
} from './openai-error.ts';
import type { PortLinks } from './port-links.ts';
import type { PortProxy } from './port-proxy.ts';

/** The part of the App that the routes use. */
export type HttpApp = Omit<ChatApp, 'readApart' | 'memory'> &
  CloseApp &
  OpenApp &
  BillingApp & {
    config: Pick<Config, 'limits' | 'compute'>;
    state: {
      /** `{base_url}` of the interface, without a slash at the end. */
      baseUrl: string;
      /** The public address and host key of the SSH gateway, once it listens. */
      ssh: { host: string; port: number; hostKey: string } | undefined;
    };
    health: ServerHealth;
    diskReserve: Pick<DiskReserve, 'shortage'>;
    unsafeStorage: string | undefined;
    storage: Pick<StorageWatch, 'used' | 'failedRead'>;
    /** Signs the URLs of objects; undefined without configured transfer storage. */
    signer: Signer | undefined;
    tokens: Tokens;
    /** Signs people in; undefined without a configured identity provider. */
    sessions: Sessions | undefined;
    limits: ChatApp['limits'] & { wallet: Limit; account: Limit; failedAuth: Limit; webhook: Limit };
    /** The requests of each caller that are being read or answered: each has a connection that must not be cut off. */
    atOnce: Shares;
    /** The spend sums that are running for each caller. */
    sums: Shares;
    /** Counts the bodies and answers in memory. */
    memory: MemoryQuota;
    modelRequests: ModelRequests;
    /** Reads and translates the answers of model servers, large ones in another thread. */
    readApart: (tenant: Tenant) => AnswerReadings;
    /** Recognises retries of requests without a key. */
    retries: Retries;
    /** Commands and uploads that run inside resources. */
    concurrency: Concurrency;
    /** The proxy to ports of resources, and the links with which browsers open them. */
    portProxy: PortProxy;
    portLinks: PortLinks;
    /** The part of the ports' own host names after the first label, if configured. */
    portHost: string | undefined;
    /** Connections on which a valid token was shown. */
    authenticated: WeakSet<Socket>;
    /**
     * A client that reads nothing of its stream for this long is treated as disconnected, so it cannot hold the upstream's
     * connection.
     */
    stallMilliseconds: number;
    addressOf: ReturnType<typeof createAddressReader>;
    /** Notes that a key was used. */
    used: (keyId: string, now: number) => void;
  };

export type Env = {
  Bindings: HttpBindings;
  /** `routerWallet`: the wallet of the gateway key, for the rate limit headers. */
  Variables: { requestId?: string; allow?: string; routerWallet?: string };
};

/** The largest body of an endpoint without a limit of its own: 64 KiB (design 2.20). */
export const BODY_BYTES_MAX = 64 * 1024;
/** Responses up to this size fit into the kernel's buffers, so they are not counted while their client reads them. */
const ANSWER_BYTES_SMALL = 64 * 1024;
const NO_QUERY = v.strictObject({});
const IDEMPOTENCY_KEY = /^[\x20-\x7e]{1,128}$/;

export type Call<S extends Scope, B> = {
  principal: PrincipalFor<S>;
  body: B;
  /** The parsed body before defaults; the fingerprint is computed from it. */
  raw: unknown;
  /** The request to a model, at an endpoint that takes one; replaces `body` and `raw`. */
  request: ValidModelRequest;
  /** The Idempotency-Key on endpoints that take one, otherwise empty. */
  idempotencyKey: string;
  /** True when the caller sent no key: the request id replaces it, so no retry can match it. */
  isKeyMadeUp: boolean;
  requestId: string;
  params: Record<string, string>;
  query: Record<string, string>;
  headers: IncomingHttpHeaders;
  /** Counts the memory that this request uses until it is answered. */
  share: Allowance;
  /** The body as it comes, at an endpoint that takes its media type as such (`streams`). */
  streamed: StreamedBody & {
    mediaType: string;
    /** Throws where the caller's credential has been revoked since the request began. */
    refuseRevoked(): void;
  };
  /**
   * Calls `listener` when the response is over, written or not; at once if it already is. The argument is true if the
   * client got the whole response.
   */
  whenGone: OnResponseEnd;
};

export type EndpointReply =
  /** `status` overrides the endpoint's own. */
  | { body: Buffer | object; replayed?: boolean; status?: number; headers?: Headers }
  /**
   * Streams the response. An error thrown before the stream begins is answered like any other; `errorEvent` builds the last
   * event of a stream that breaks off later, in OpenAI's shape by default.
   */
  | {
      stream(events: EventStream, share: Allowance): Promise<void>;
      errorEvent?(refusal: Refusal, message: string, requestId: string): Iterable<string | Buffer>;
      /** The connection is ended where the stream breaks off: it is one of bytes, which have no event for that. */
      breaksOff?: boolean;
    };

/** An endpoint of the interface: its request, its response and its handler. The OpenAPI document is generated from these. */
export type Endpoint<S extends Scope = Scope, B extends v.GenericSchema = v.GenericSchema> = {
  summary: string;
  scope: S;
  body?: B;
  /** Treats a request without a body as one with an empty object. */
  isBodyOptional?: boolean;
  /** The body is a request to a model of this kind. */
  modelRequest?: ModelRequestKind;
  bodyBytesMax?: number;
  /** Maximum number of values of a body that may be large because one of them is a long text. */
  valuesMax?: number;
  query?: v.GenericSchema;
  /** Other media types of the body, which is then read as it comes. Each has a description, and the query that goes with it. */
  streams?: { [mediaType: string]: { description: string; query: v.GenericSchema } };
  /** `true` requires the Idempotency-Key header; `'optional'` accepts it. */
  idempotent?: boolean | 'optional';
  status?: 200 | 201;
  answer: v.GenericSchema;
  /** Headers of its answer beside those of every answer, each with a description. */
  headers?: Record<string, string>;
  /** Answers of other media types that the request may accept, each with a description. */
  otherAnswers?: Record<string, string>;
  /** The refusals of this endpoint, in addition to those of every endpoint. */
  refusals?: readonly RefusalCode[];
  example: { body?: unknown; answer: unknown };
  run(app: HttpApp, call: Call<S, v.InferOutput<B>>): Promise<EndpointReply> | EndpointReply;
};

/** Checks the types of one endpoint against each other; the route table erases them. */
export function endpoint<S extends Scope, B extends v.GenericSchema>(it: Endpoint<S, B>): Endpoint {
  return it as unknown as Endpoint;
}

/** Returns the value of `Allow` for a path with these methods: a path that answers GET also answers HEAD. */
export const allowOf = (methods: readonly string[]): string =>
  methods.flatMap((it) => (it === 'GET' ? ['GET', 'HEAD'] : [it])).join(', ');

/** Turns an endpoint into a Hono handler. */
export function open(app: HttpApp, it: Endpoint): Handler<Env> {
  return async function handle(c) {
    const requestId = requestIdOf(c);
    // Before authentication: if the books lost entries, a valid token may be missing and would wrongly get a 401.
    refuseFault(app.health);
    app.storage.used();
    const changes = app.ledger.changeCount();
    const principal = await authenticateAndLimit(app, c);
    const owner = ownerOf(app, principal);
    const share = app.memory.open(owner);
    try {
      const reply = await runEndpoint(app, it, c, { principal, changes }, share);
      if ('stream' in reply) return await respondWithEvents(app, c, reply, share);
      const headers = { ...headersOf(app, c, requestId), ...reply.headers };
      if (reply.replayed) headers['idempotent-replayed'] = 'true';
      const bytes = Buffer.isBuffer(reply.body) ? reply.body : JSON.stringify(reply.body);
      countAnswer(app, c, owner, bytes);
      return new Response(bytes as string, { status: reply.status ?? it.status ?? 200, headers });
    } finally {
      share.close();
    }
  };
}

/** The caller, and the number of changes before its credential was read. */
type Authenticated = { principal: Principal; changes: number };

/** Reads, checks and runs a request. The order of the checks is the documented precedence of errors (design 2.6). */
async function runEndpoint(
  app: HttpApp,
  it: Endpoint,
  c: Context<Env>,
  { principal, changes }: Authenticated,
  share: Allowance,
): Promise<EndpointReply> {
  const { incoming } = c.env;
  const requestId = requestIdOf(c);
  const caller = admit(principal, it.scope);

  const key = incoming.headers['idempotency-key'];
  let raw: unknown;
  let read: ModelRequest | undefined;
  let streamed: Call<Scope, unknown>['streamed'] | undefined;
  const mediaType = mediaTypeOf(incoming);
  if (it.streams?.[mediaType]) {
    refuseMediaType(incoming, Object.keys(it.streams));
    streamed = {
      ...streamBody(incoming, app.stallMilliseconds, share),
      mediaType,
      refuseRevoked() {
        if (app.ledger.changeCount() !== changes) refuseRevoked(app.ledger.read, principal);
      },
    };
  } else if (it.body) {
    if (!it.isBodyOptional) refuseMediaType(incoming, Object.keys(it.streams ?? {}));
    const bytes = await readBody(incoming, it.bodyBytesMax ?? BODY_BYTES_MAX, share);
    if (it.isBodyOptional && bytes.length) refuseMediaType(incoming);
    if (it.modelRequest)
      read = await app.modelRequests.read(
        bytes,
        { kind: it.modelRequest, isKeyed: isKeySent(it, key) },
        share,
        tenantFor(app, principal),
      );
    else if (it.isBodyOptional && !bytes.length) raw = {};
    else raw = parseBody(bytes, share, it.valuesMax).value;
    // A body may arrive slowly: a key that has been revoked by then must not complete its request.
    if (app.ledger.changeCount() !== changes) refuseRevoked(app.ledger.read, principal);
  }
  return invoke(app, it, {
    principal: caller,
    raw,
    read,
    streamed,
    key,
    requestId,
    params: c.req.param() as Record<string, string>,
    // Clients of other servers send parameters known to those servers, such as `beta=true` (decision 0072).
    query: it.scope === 'router' ? {} : readQuery(incoming),
    headers: incoming.headers,
    share,
    whenGone: (listener) => onceClosed(c, listener),
  });
}

/** A call before its key, its body and its query are checked. */
export type Invocation = Omit<
  Call<Scope, unknown>,
  'body' | 'request' | 'streamed' | 'idempotencyKey' | 'isKeyMadeUp'
> & {
  /** The body as it comes, if its media type is one that is read so. */
  streamed?: Call<Scope, unknown>['streamed'] | undefined;
  /** The request to a model as it was read, at an endpoint that takes one. */
  read?: ModelRequest | undefined;
  /** The idempotency key that the caller sent, if any. */
  key: unknown;
};

/** Checks the arguments of a call to an endpoint, then runs it. */
export async function invoke(
  app: HttpApp,
  it: Endpoint,
  { key, read, streamed, ...call }: Invocation,
): Promise<EndpointReply> {
  const isKeyMadeUp = isKeyOmitted(it, key);
  const idempotencyKey = isKeyMadeUp ? call.requestId : it.idempotent ? readIdempotencyKey(key) : '';
  const request = read && validRequest(read);
  const body = it.body && !request && !streamed ? validate(it.body, call.raw) : undefined;
  const taken = streamed ? it.streams?.[streamed.mediaType]?.query : it.query;
  const query = validate(taken ?? NO_QUERY, call.query, 'query parameter') as Record<string, string>;
  return it.run(app, {
    ...call,
    body,
    query,
    idempotencyKey,
    isKeyMadeUp,
    request: request as ValidModelRequest,
    streamed: streamed as NonNullable<typeof streamed>,
  });
}

/** Returns whether the caller left out an optional key. */
const isKeyOmitted = (it: Endpoint, key: unknown) => it.idempotent === 'optional' && key === undefined;

const isKeySent = (it: Endpoint, key: unknown) => it.idempotent !== undefined && !isKeyOmitted(it, key);

/** Counts a response as in memory until its client has read it or has disconnected. */
function keepUntilTaken(share: Allowance, c: Context<Env>, bytes: number): void {
  share.add(bytes);
  onceClosed(c, share.close);
}

/** Lets `owner` pay for the memory of an answer until its client has it, unless it is small. */
export function countAnswer(app: Pick<HttpApp, 'memory'>, c: Context<Env>, owner: string, body: string | Buffer): void {
  if (body.length > ANSWER_BYTES_SMALL) keepUntilTaken(app.memory.open(owner), c, Buffer.byteLength(body));
}

/** Returns the id of this request, which is in every response and in the log (design 2.21). */
export function requestIdOf(c: Context<Env>): string {
  const known = c.get('requestId');
  if (known !== undefined) return known;
  const id = newId('req');
  c.set('requestId', id);
  (c.env.outgoing as ContainedResponse).requestId = id;
  return id;
}

/** Streams a response. An error after its beginning is sent as the last event, without the end marker. */
async function respondWithEvents(
  app: HttpApp,
  c: Context<Env>,
  { stream, errorEvent, breaksOff = false }: Extract<EndpointReply, { stream: unknown }>,
  share: Allowance,
): Promise<Response> {
  const requestId = requestIdOf(c);
  const headers = () => headersOf(app, c, requestId);
  const events = openEventStream(c.env.outgoing as ServerResponse, headers, app.stallMilliseconds);
  const begin = (more?: Record<string, string>) => {
    share.close(); // The request has been forwarded by now, and a stream may last for an hour.
    events.begin(more);
  };
  try {
    await stream({ ...events, begin }, share);
  } catch (error) {
    if (!events.hasBegun()) throw error;
    const { refusal, message } = describeError(app, requestId, c.req.path, error);
    if (breaksOff) {
      cutOff(c.env.incoming);
      return RESPONSE_ALREADY_SENT;
    }
    const last = errorEvent?.(refusal, message, requestId) ?? [eventOf(openAiBody(refusal, message, requestId))];
    await writePieces(events, last);
  } finally {
    events.end(); // The attempt may continue without its client, but must no longer write to this response.
  }
  return RESPONSE_ALREADY_SENT;
}

type Headers = Record<string, string>;

function headersOf({ limits }: Pick<HttpApp, 'limits'>, c: Context<Env>, requestId: string): Headers {
  // Many responses carry a credential, and none of the others is worth caching.
  const headers: Headers = {
    'content-type': 'application/json',
    'x-request-id': requestId,
    'cache-control': 'no-store',
  };
  if (isOfAnthropic(c.req.path, c.env.incoming.headers)) headers['request-id'] = requestId; // The name that Anthropic's clients read.
  const routerWallet = c.get('routerWallet');
  const allowance = routerWallet && limits.wallet.remainingOf(routerWallet);
  if (allowance) {
    headers['x-ratelimit-limit-requests'] = String(allowance.limit);
    headers['x-ratelimit-remaining-requests'] = String(allowance.remaining);
    headers['x-ratelimit-reset-requests'] = `${allowance.fullInSeconds}s`;
  }
  return headers;
}

/** Returns the Idempotency-Key of a request. Throws `idempotency_key_required` and `invalid_idempotency_key`. */
export function readIdempotencyKey(key: unknown): string {
  if (key === undefined) throw new Refusal('idempotency_key_required');
  if (typeof key !== 'string' || !IDEMPOTENCY_KEY.test(key)) throw new Refusal('invalid_idempotency_key');
  return key;
}

/**
 * Builds the error response for requests that reach no route: unreadable as HTTP, refused by their head, or failed outside
 * `onError`. A `fault` that is not a Refusal is an internal error. `request` is the known part of it.
 */
export function unparsableRequest(
  app: Pick<HttpApp, 'events' | 'storage'>,
  fault: unknown,
  { method = '', url = '', headers }: Partial<Pick<IncomingMessage, 'method' | 'url' | 'headers'>> = {},
) {
  const requestId = newId('req');
  const { refusal, message } = describeError(app, requestId, '', fault);
  const path = url.split('?', 1)[0] as string;
  return lastAnswer(refusal.code, requestId, errorBody({ method, path, headers }, refusal, message, requestId));
}

/** Logs an error and returns what the caller may see of it. An internal error reveals no details; the disk's ends the server. */
export function describeError(
  app: Pick<HttpApp, 'events' | 'storage'>,
  requestId: string,
  path: string,
  error: unknown,
): { refusal: Refusal; message: string } {
  const known = error instanceof Refusal ? error : app.storage.failedRead(error);
  if (!known) app.events.faulted('request', error, { request_id: requestId, path });
  const refusal = known ?? new Refusal('internal_error');
  const message = redactTokens(refusal.message); // It may quote the caller's input, including a token in the wrong place.
  app.events.refused(refusal.code, requestId, message, path);
  return { refusal, message };
}

/** Builds the body of an error (interface, section 2); under the gateway's base URL, with the members that its clients read. */
function errorBody(
  { method, path, headers }: { method: string; path: string; headers: IncomingHttpHeaders | undefined },
  refusal: Refusal,
  message: string,
  requestId: string,
): object {
  if (!isGatewayRequest(method, path)) return { error: { code: refusal.code, message }, request_id: requestId };
  return (isOfAnthropic(path, headers) ? messagesError : openAiBody)(refusal, message, requestId);
}

/**
 * Returns Hono's error handler, which turns any error into an error response. `pathOf` returns the path in the form that
 * may be logged.
 */
export function onError(
  app: Pick<HttpApp, 'events' | 'limits' | 'storage'>,
  pathOf: (c: Context<Env>) => string = (c) => c.req.path,
): ErrorHandler<Env> {
  return (error, c) => {
    const requestId = requestIdOf(c);
    const { refusal, message } = describeError(app, requestId, pathOf(c), error);
    const { code, retryAfterSeconds } = refusal;
    const isGateway = isGatewayRequest(c.req.method, c.req.path);
    const headers = headersOf(app, c, requestId);
    if (isGateway) headers['x-should-retry'] = String(isPassing(code));
    if (retryAfterSeconds !== undefined)
      headers['retry-after'] = String(isGateway ? Math.min(retryAfterSeconds, RETRY_SECONDS_MAX) : retryAfterSeconds);
    // The unread rest of the body is not waited for.
    if (code === 'payload_too_large' || code === 'unsupported_media_type') headers.connection = 'close';
    if (code === 'unauthenticated') headers['www-authenticate'] = 'Bearer';
    if (c.var.allow) headers.allow = c.var.allow;
    if (code === 'upgrade_not_supported') headers.upgrade = 'HTTP/1.1'; // RFC 9110, 15.5.22.
    const { method, path } = c.req;
    const body = errorBody({ method, path, headers: c.env.incoming.headers }, refusal, message, requestId);
    const status = isGateway ? gatewayStatus(code) : REFUSALS[code].status;
    return new Response(JSON.stringify(body), { status, headers });
  };
}
