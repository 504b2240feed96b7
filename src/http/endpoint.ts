import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { HttpBindings } from '@hono/node-server';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { Context, ErrorHandler, Handler } from 'hono';
import type * as v from 'valibot';
import type { Limit } from '../access/limits.ts';
import {
  admit,
  authenticate,
  bearerOf,
  type Principal,
  type PrincipalFor,
  refuseRevoked,
  type Scope,
} from '../access/principal.ts';
import type { Sessions } from '../access/sessions.ts';
import type { BillingApp } from '../billing/checkout.ts';
import type { ChatApp } from '../chat/quote.ts';
import type { DiskReserve } from '../db/disk-reserve.ts';
import type { Health } from '../health.ts';
import { newId } from '../id.ts';
import { redactTokens } from '../log.ts';
import { type createAddressReader, networkOf } from '../net/address.ts';
import { REFUSALS, Refusal, type RefusalCode } from '../refusal.ts';
import { eventOf } from '../router/sse.ts';
import type { Signer } from '../transfer/object-url.ts';
import type { CloseApp } from '../wallet/close.ts';
import type { OpenApp } from '../wallet/open.ts';
import { parseJson, readBody, refuseMediaType, validate } from './body.ts';
import type { Concurrency } from './concurrency.ts';
import { type EventStream, openEventStream } from './event-stream.ts';
import type { Allowance, MemoryQuota } from './memory-quota.ts';
import { isOpenAiPath, isPassing, openAiBody, openAiStatus, RETRY_SECONDS_MAX } from './openai-error.ts';

/** What the routes use of the App. */
export type HttpApp = ChatApp &
  CloseApp &
  OpenApp &
  BillingApp & {
    state: {
      /** `{base_url}` of the interface, without a slash at the end. */
      baseUrl: string;
      /** Where the SSH gateway is reached, once it listens. */
      ssh: { host: string; port: number; hostKey: string } | undefined;
    };
    health: Health;
    diskReserve: Pick<DiskReserve, 'shortage'>;
    /** Signs the URLs of objects, where transfer storage is configured. */
    signer: Signer | undefined;
    /** Signs people in, where an identity provider is configured. */
    sessions: Sessions | undefined;
    limits: ChatApp['limits'] & { wallet: Limit; account: Limit; failedAuth: Limit; webhook: Limit };
    /** Bodies and answers that are in memory. */
    memory: MemoryQuota;
    /** Commands and uploads that run inside resources. */
    concurrency: Concurrency;
    /** Connections on which a valid token was shown. */
    authenticated: WeakSet<Socket>;
    /** A client that takes nothing of its stream for so long is gone: the upstream's connection is not kept open for it. */
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

/** The largest body unless the endpoint says otherwise: 64 KiB (design 2.20). */
const BODY_BYTES_MAX = 64 * 1024;
/** Responses up to this size fit into the kernel's buffers, so they are not counted until they are read. */
const ANSWER_BYTES_SMALL = 64 * 1024;
const UNREADABLE = 'The request cannot be read as HTTP, or its head is too long, or it came too slowly.';
const IDEMPOTENCY_KEY = /^[\x20-\x7e]{1,128}$/;

export type Call<S extends Scope, B> = {
  principal: PrincipalFor<S>;
  body: B;
  /** The parsed body before defaults; the fingerprint is computed from it. */
  raw: unknown;
  /** The Idempotency-Key on endpoints that take one, otherwise empty. */
  idempotencyKey: string;
  /** True when the caller sent no key: the request id stands in for it, so no retry can match it. */
  isKeyMadeUp: boolean;
  requestId: string;
  params: Record<string, string>;
  query: Record<string, string>;
  /** Counts the memory that this request uses until it is answered. */
  share: Allowance;
  /** Calls `listener` when the client disconnects before its response; at once if it already has. */
  whenGone(listener: () => void): void;
};

export type Reply =
  | { body: Buffer | object; replayed?: boolean }
  /** Streams the response. An error thrown before the stream begins is answered like any other. */
  | { stream(events: EventStream, share: Allowance): Promise<void> };

/** One endpoint of the interface: its request, its response and its handler. The OpenAPI document is generated from these. */
export type Endpoint<S extends Scope = Scope, B extends v.GenericSchema = v.GenericSchema> = {
  summary: string;
  scope: S;
  body?: B;
  /** Treats a request without a body as one with an empty object. */
  isBodyOptional?: boolean;
  bodyBytesMax?: number;
  /** Numbers directly in lists that are exempt from the limit of 50,000 values per body. */
  bodyNumbersMax?: number;
  query?: v.GenericSchema;
  /** `true` requires the Idempotency-Key header; `'optional'` accepts it. */
  idempotent?: boolean | 'optional';
  status?: 200 | 201;
  answer: v.GenericSchema;
  /** The refusals of this endpoint, in addition to those that every endpoint has. */
  refusals?: readonly RefusalCode[];
  example: { body?: unknown; answer: unknown };
  run(app: HttpApp, call: Call<S, v.InferOutput<B>>): Promise<Reply> | Reply;
};

/** Checks the types of one endpoint against each other; the route table erases them. */
export function endpoint<S extends Scope, B extends v.GenericSchema>(it: Endpoint<S, B>): Endpoint {
  return it as unknown as Endpoint;
}

/** Turns an endpoint into a Hono handler. */
export function open(app: HttpApp, it: Endpoint): Handler<Env> {
  return async function handle(c) {
    const requestId = requestIdOf(c);
    // Before authentication: if the books lost entries, a valid token may be missing and would wrongly get a 401.
    if (app.health.fault) throw new Refusal('read_only', `This installation is not served: ${app.health.fault}`);
    const principal = await authenticateAndLimit(app, c);
    const share = app.memory.open(callerOf(principal));
    try {
      const reply = await runEndpoint(app, it, c, principal, share);
      if ('stream' in reply) return await respondWithEvents(app, c, reply.stream, share);
      const headers = headersOf(app, c, requestId);
      if (reply.replayed) headers['idempotent-replayed'] = 'true';
      const bytes = Buffer.isBuffer(reply.body) ? reply.body : JSON.stringify(reply.body);
      if (bytes.length > ANSWER_BYTES_SMALL)
        keepUntilTaken(app.memory.open(callerOf(principal)), c, Buffer.byteLength(bytes));
      return new Response(bytes as string, { status: it.status ?? 200, headers });
    } finally {
      share.close();
    }
  };
}

/** Reads, checks and runs a request. The order of the checks is the documented precedence of errors (design 2.6). */
async function runEndpoint(
  app: HttpApp,
  it: Endpoint,
  c: Context<Env>,
  principal: Principal,
  share: Allowance,
): Promise<Reply> {
  const { incoming } = c.env;
  const requestId = requestIdOf(c);
  const caller = admit(principal, it.scope);

  let raw: unknown;
  if (it.body) {
    if (!it.isBodyOptional) refuseMediaType(incoming);
    const bytes = await readBody(incoming, it.bodyBytesMax ?? BODY_BYTES_MAX, share);
    if (it.isBodyOptional && bytes.length) refuseMediaType(incoming);
    raw = it.isBodyOptional && !bytes.length ? {} : parseJson(bytes, it.bodyNumbersMax ?? 0, share);
    // A body may arrive slowly: a key that was revoked meanwhile must not complete its request.
    refuseRevoked(app.ledger.read, principal);
  }
  const key = it.idempotent ? c.req.header('idempotency-key') : undefined;
  const isKeyMadeUp = it.idempotent === 'optional' && key === undefined;
  const idempotencyKey = isKeyMadeUp ? requestId : it.idempotent ? readIdempotencyKey(key) : '';
  const body = it.body ? validate(it.body, raw) : undefined;
  const query = it.query ? (validate(it.query, c.req.query()) as Record<string, string>) : {};

  const params = c.req.param() as Record<string, string>;
  const whenGone = (listener: () => void) => whenOver(c, listener);
  const asked = { body, raw, idempotencyKey, isKeyMadeUp, requestId, params, query, share, whenGone };
  return it.run(app, { principal: caller, ...asked });
}

/** Calls `listener` when the response has been written or its client has disconnected; at once if that has happened. */
function whenOver(c: Context<Env>, listener: () => void): void {
  const response = c.env.outgoing as ServerResponse;
  if (response.closed || response.destroyed) listener();
  else response.once('close', listener);
}

/** Counts a response as in memory until its client has read it or has disconnected. */
function keepUntilTaken(share: Allowance, c: Context<Env>, bytes: number): void {
  share.add(bytes);
  whenOver(c, share.close);
}

/** Returns the id of this request, which is in every response and in the log (design 2.21). */
export function requestIdOf(c: Context<Env>): string {
  const id = c.var.requestId ?? newId('req');
  c.set('requestId', id);
  return id;
}

/** Streams a response. An error after its beginning is sent as the last event, without the end marker. */
async function respondWithEvents(
  app: HttpApp,
  c: Context<Env>,
  stream: (events: EventStream, share: Allowance) => Promise<void>,
  share: Allowance,
): Promise<Response> {
  const requestId = requestIdOf(c);
  const headers = () => headersOf(app, c, requestId);
  const events = openEventStream(c.env.outgoing as ServerResponse, headers, app.stallMilliseconds);
  const begin = (more?: Record<string, string>) => {
    share.close(); // By now the request has been forwarded, and a stream may last for an hour.
    events.begin(more);
  };
  try {
    await stream({ ...events, begin }, share);
  } catch (error) {
    if (!events.hasBegun()) throw error;
    const { refusal, message } = describeError(app, c, error);
    await events.write(eventOf(openAiBody(refusal, message, requestId)));
  } finally {
    events.end(); // The attempt may continue without its client, but must not write to this response any more.
  }
  return RESPONSE_ALREADY_SENT;
}

type Headers = Record<string, string>;

/** The id that limits count by: the wallet, the account of a session, or the key. */
const callerOf = (principal: Principal) =>
  'wallet' in principal ? principal.wallet.id : principal.kind === 'session' ? principal.accountId : principal.keyId;

function headersOf({ limits }: Pick<HttpApp, 'limits'>, c: Context<Env>, requestId: string): Headers {
  // Many responses carry a credential, and none of the others is worth caching.
  const headers: Headers = {
    'content-type': 'application/json',
    'x-request-id': requestId,
    'cache-control': 'no-store',
  };
  const left = c.var.routerWallet && limits.wallet.left(c.var.routerWallet);
  if (left) {
    headers['x-ratelimit-limit-requests'] = String(left.limit);
    headers['x-ratelimit-remaining-requests'] = String(left.remaining);
    headers['x-ratelimit-reset-requests'] = `${left.fullInSeconds}s`;
  }
  return headers;
}

/** Authenticates and applies rate limits: a valid token against its own, a failure against that of its network. */
async function authenticateAndLimit(app: HttpApp, c: Context<Env>): Promise<Principal> {
  const { incoming } = c.env;
  try {
    const found = authenticate(app.ledger.read, bearerOf(incoming.headers.authorization), app.sessions);
    const principal = found instanceof Promise ? await found : found;
    app.authenticated.add(incoming.socket);
    if (principal.kind === 'router') c.set('routerWallet', principal.wallet.id);
    if ('wallet' in principal) app.limits.wallet.take(principal.wallet.id);
    else {
      app.limits.account.take(callerOf(principal));
      if (principal.kind !== 'session') app.used(principal.keyId, app.clock.now());
    }
    return principal;
  } catch (error) {
    // A wrong credential may be a guess; a missing one is not.
    if (error instanceof Refusal && error.code === 'unauthenticated' && incoming.headers.authorization !== undefined)
      app.limits.failedAuth.take(callerNetwork(app, incoming));
    throw error;
  }
}

/** Returns the network of the client, also behind trusted proxies. Unauthenticated requests are limited by it. */
export function callerNetwork(app: Pick<HttpApp, 'addressOf'>, incoming: HttpBindings['incoming']): string {
  const forwarded = incoming.headers['x-forwarded-for'];
  const forwardedFor = Array.isArray(forwarded) ? forwarded.join(',') : forwarded;
  return networkOf(app.addressOf(incoming.socket.remoteAddress, forwardedFor));
}

function readIdempotencyKey(key: string | undefined): string {
  if (key === undefined) throw new Refusal('idempotency_key_required');
  if (!IDEMPOTENCY_KEY.test(key)) throw new Refusal('invalid_idempotency_key');
  return key;
}

/**
 * Builds the error response for requests that never reach a route: unreadable as HTTP, refused by their head, or failed
 * outside `onError`. A `fault` that is not a Refusal is an internal error.
 */
export function unparsableRequest(
  app: Pick<HttpApp, 'events'>,
  fault: unknown = new Refusal('invalid_request', UNREADABLE),
) {
  const requestId = newId('req');
  if (!(fault instanceof Refusal)) app.events.failed('request', fault, { request_id: requestId });
  const { code, message } = fault instanceof Refusal ? fault : new Refusal('internal_error');
  app.events.refused(code, requestId, message, '');
  const body = JSON.stringify({ error: { code, message }, request_id: requestId });
  return {
    status: REFUSALS[code].status as number,
    headers: {
      'content-type': 'application/json',
      'content-length': String(Buffer.byteLength(body)),
      'x-request-id': requestId,
      connection: 'close',
    },
    body,
  };
}

/** Logs an error and returns what the caller may see of it. An internal error reveals no details. */
function describeError(
  app: Pick<HttpApp, 'events'>,
  c: Context<Env>,
  error: unknown,
): { refusal: Refusal; message: string } {
  const requestId = requestIdOf(c);
  if (!(error instanceof Refusal)) app.events.failed('request', error, { request_id: requestId, path: c.req.path });
  const refusal = error instanceof Refusal ? error : new Refusal('internal_error');
  const message = redactTokens(refusal.message); // It may quote what the caller sent, a token in the wrong place included.
  app.events.refused(refusal.code, requestId, message, c.req.path);
  return { refusal, message };
}

/** Returns Hono's error handler, which turns anything thrown into an error response. */
export function onError(app: Pick<HttpApp, 'events' | 'limits'>): ErrorHandler<Env> {
  return (error, c) => {
    const requestId = requestIdOf(c);
    const { refusal, message } = describeError(app, c, error);
    const { code, retryAfterSeconds } = refusal;
    const isOpenAi = isOpenAiPath(c.req.path);
    const headers = headersOf(app, c, requestId);
    if (isOpenAi) headers['x-should-retry'] = String(isPassing(code));
    if (retryAfterSeconds !== undefined)
      headers['retry-after'] = String(isOpenAi ? Math.min(retryAfterSeconds, RETRY_SECONDS_MAX) : retryAfterSeconds);
    // The unread rest of the body is not waited for.
    if (code === 'payload_too_large' || code === 'unsupported_media_type') headers.connection = 'close';
    if (code === 'unauthenticated') headers['www-authenticate'] = 'Bearer';
    if (c.var.allow) headers.allow = c.var.allow;
    const body = isOpenAi
      ? openAiBody(refusal, message, requestId)
      : { error: { code, message }, request_id: requestId };
    const status = isOpenAi ? openAiStatus(code) : REFUSALS[code].status;
    return new Response(JSON.stringify(body), { status, headers });
  };
}
