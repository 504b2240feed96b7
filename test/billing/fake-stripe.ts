import { randomBytes } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import Stripe from 'stripe';
import { resetConnection } from '../../src/net/reset.ts';
import { whenRead } from '../helper/listener.ts';
import type { Answer, TestServer } from '../helper/server.ts';

export const KEY = 'sk_test_51CanaryOfTheSecretKey0123456789';
export const WEBHOOK_SECRET = 'whsec_CanaryOfTheWebhookSecret0123456789';

export type StripeObject = { id: string } & Record<string, any>;
/** How a call goes wrong. What was `accepted` was done, and nobody heard of it. */
export type Fault =
  | { kind: 'hang' | 'reset' | 'half' | 'garbage'; accepted?: boolean }
  | { kind: 'status'; status: number; error?: object; accepted?: boolean };

type Kept = { params: string; status: number; body: string };

/**
 * A server that speaks the part of Stripe's API that we use, as docs.stripe.com documents it (checkout sessions, events,
 * idempotent requests, errors), in a test's hand: it misbehaves as it is told, and payers do as they are told.
 */
export type FakeStripe = {
  url: string;
  calls: {
    method: string;
    path: string;
    key: string | undefined;
    params: URLSearchParams;
    headers: http.IncomingHttpHeaders;
  }[];
  sessions: Map<string, StripeObject>;
  /** Everything that happened, oldest first; the API lists it, and webhooks tell of it. */
  events: StripeObject[];
  /** Consumed by the next calls, one each; undefined behaves. */
  faults: (Fault | undefined)[];
  /** Every call goes wrong like this until it is undefined again. */
  down: Fault | undefined;
  /** Resolves when `count` calls have arrived. */
  arrived(count: number): Promise<void>;
  /** Frees what hangs. */
  release(): void;
  session(checkoutId: string): StripeObject;
  /** The payer pays. Answers the event. */
  pay(checkoutId: string, change?: object): StripeObject;
  /** The payer promises to, by a delayed method. */
  promise(checkoutId: string): StripeObject;
  keepPromise(checkoutId: string): StripeObject;
  breakPromise(checkoutId: string): StripeObject;
  expire(checkoutId: string): StripeObject;
  refund(checkoutId: string, change?: object): StripeObject;
  dispute(checkoutId: string, change?: object): StripeObject;
  /** Something happened to an object that is there: an event of it with `change`. */
  tell(type: string, object: StripeObject, change?: object): StripeObject;
};

const MINUTE = 60;

/** `now` is the fake's own clock, in Unix seconds. */
export async function openStripe(t: Pick<TestContext, 'after'>, now: () => number, key = KEY): Promise<FakeStripe> {
  const kept = new Map<string, Kept | 'running'>();
  const waiting: { count: number; tell: () => void }[] = [];
  const hanging = new Set<() => void>();
  let count = 0;
  const newId = (prefix: string) => `${prefix}_${String(++count).padStart(4, '0')}${randomBytes(8).toString('hex')}`;

  const error = (status: number, body: object): [number, object] => [status, { error: body }];

  function createSession(params: URLSearchParams): [number, object] {
    const expiresAt = Number(params.get('expires_at'));
    const amount = Number(params.get('line_items[0][price_data][unit_amount]'));
    const invalid = (param: string) =>
      error(400, { type: 'invalid_request_error', param, message: `Invalid ${param}.` });
    if (params.get('mode') !== 'payment') return invalid('mode');
    if (!params.get('success_url')) return invalid('success_url');
    if (!(expiresAt >= now() + 30 * MINUTE && expiresAt <= now() + 24 * 60 * MINUTE)) return invalid('expires_at');
    if (!(amount >= 50)) return invalid('line_items[0][price_data][unit_amount]');
    const id = newId('cs_test');
    const session = {
      id,
      object: 'checkout.session',
      url: `https://checkout.stripe.example/c/pay/${id}#secret-fragment`,
      status: 'open',
      payment_status: 'unpaid',
      client_reference_id: params.get('client_reference_id'),
      metadata: metadataOf(params, 'metadata'),
      currency: params.get('line_items[0][price_data][currency]'),
      amount_total: amount * Number(params.get('line_items[0][quantity]')),
      payment_intent: null,
      customer_details: { email: 'payer@example.com', name: 'P. Ayer' },
      created: now(),
      expires_at: expiresAt,
      livemode: false,
    };
    fake.sessions.set(id, session);
    return [200, session];
  }

  function list(params: URLSearchParams, all: StripeObject[]): [number, object] {
    const since = Number(params.get('created[gte]') ?? 0);
    const before = Number(params.get('created[lt]') ?? Number.POSITIVE_INFINITY);
    const types = [...params].filter(([name]) => name.startsWith('types')).map(([, value]) => value);
    const isWanted = (it: StripeObject) => it.created >= since && it.created < before;
    const newest = all.filter((it) => isWanted(it) && (!types.length || types.includes(it.type))).reverse();
    const after = newest.findIndex((it) => it.id === params.get('starting_after')) + 1;
    const data = newest.slice(after, after + Number(params.get('limit') ?? 10));
    return [200, { object: 'list', data, has_more: after + data.length < newest.length, url: '/v1/x' }];
  }

  function retrieve(id: string, params: URLSearchParams): [number, object] {
    const session = fake.sessions.get(id);
    if (!session)
      return error(404, { type: 'invalid_request_error', code: 'resource_missing', message: `No such session: ${id}` });
    const isExpanded = [...params].some(([name, value]) => name.startsWith('expand') && value === 'payment_intent');
    const { intent_status: status, ...plain } = session;
    if (!isExpanded || !session.payment_intent) return [200, plain];
    return [200, { ...plain, payment_intent: { id: session.payment_intent, object: 'payment_intent', status } }];
  }

  function route(method: string, path: string, params: URLSearchParams, idempotencyKey: string | undefined) {
    if (method === 'POST' && path === '/v1/checkout/sessions') {
      // The first answer to a key is kept, and given again: failures too (docs.stripe.com/api/idempotent_requests).
      const earlier = idempotencyKey ? kept.get(idempotencyKey) : undefined;
      const text = params.toString();
      if (earlier === 'running') return error(409, { type: 'invalid_request_error', code: 'idempotency_key_in_use' });
      if (earlier && earlier.params !== text)
        return error(400, { type: 'idempotency_error', message: 'Keys for idempotent requests…' });
      if (earlier) return [earlier.status, JSON.parse(earlier.body)] as [number, object];
      const made = createSession(params);
      // What failed validation is not kept.
      if (idempotencyKey && made[0] === 200)
        kept.set(idempotencyKey, { params: text, status: made[0], body: JSON.stringify(made[1]) });
      return made;
    }
    if (method === 'GET' && path === '/v1/checkout/sessions') return list(params, [...fake.sessions.values()]);
    if (method === 'GET' && path === '/v1/events') return list(params, fake.events);
    const [, id] = /^\/v1\/checkout\/sessions\/(.+)$/.exec(path) ?? [];
    if (method === 'GET' && id) return retrieve(id, params);
    return error(404, { type: 'invalid_request_error', message: `Unrecognized request URL (${method}: ${path}).` });
  }

  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer(
    { keepAliveTimeout: 60_000 },
    whenRead(async (request, response, sent) => {
      const { pathname: path, searchParams } = new URL(request.url as string, fake.url);
      const method = request.method as string;
      const params = method === 'GET' ? searchParams : new URLSearchParams(sent.toString());
      const idempotencyKey = request.headers['idempotency-key'] as string | undefined;
      fake.calls.push({ method, path, key: idempotencyKey, params, headers: request.headers });
      for (const it of waiting) if (fake.calls.length >= it.count) it.tell();
      const fault = fake.down ?? fake.faults.shift();

      let [status, body] =
        request.headers.authorization === `Bearer ${key}`
          ? !fault || fault.accepted
            ? route(method, path, params, idempotencyKey)
            : [0, {}]
          : error(401, {
              type: 'invalid_request_error',
              message: `Invalid API Key provided: ${request.headers.authorization?.slice(7)}`,
            });
      if (fault?.kind === 'status') {
        status = fault.status;
        body = { error: fault.error ?? { type: 'api_error', message: 'An unexpected error occurred.' } };
        if (method === 'POST' && idempotencyKey && status >= 500)
          kept.set(idempotencyKey, { params: params.toString(), status, body: JSON.stringify(body) });
      }
      if (fault?.kind === 'reset') return resetConnection(request.socket);
      if (fault?.kind === 'hang') {
        await new Promise<void>((resolve) => hanging.add(resolve));
        if (!response.writable) return;
      }
      const text = fault?.kind === 'garbage' ? '<html>a proxy</html>' : JSON.stringify(body);
      response.writeHead(status || 200, {
        'content-type': 'application/json',
        'request-id': newId('req'),
        ...(fault?.kind === 'half' ? { 'content-length': text.length + 10 } : {}),
      });
      if (fault?.kind === 'half') return response.write(text.slice(0, 40), () => request.socket.destroy());
      return response.end(text);
    }),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));

  function record(type: string, object: StripeObject): StripeObject {
    const { intent_status: _, ...plain } = object;
    const event = {
      id: newId('evt'),
      object: 'event',
      api_version: '2026-10-28.endive',
      type,
      created: now(),
      livemode: false,
      pending_webhooks: 1,
      request: { id: null, idempotency_key: null },
      data: { object: structuredClone(plain) },
    };
    fake.events.push(event);
    return event;
  }
  const changed = (checkoutId: string, type: string, change: object) =>
    record(type, Object.assign(fake.session(checkoutId), change));

  const fake: FakeStripe = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls: [],
    sessions: new Map(),
    events: [],
    faults: [],
    down: undefined,
    arrived(wanted) {
      if (fake.calls.length >= wanted) return Promise.resolve();
      return new Promise((tell) => waiting.push({ count: wanted, tell }));
    },
    release() {
      for (const go of hanging) go();
      hanging.clear();
    },
    session: (checkoutId) =>
      [...fake.sessions.values()].find((it) => it.client_reference_id === checkoutId) as StripeObject,
    pay: (id, change = {}) =>
      changed(id, 'checkout.session.completed', {
        status: 'complete',
        payment_status: 'paid',
        payment_intent: newId('pi'),
        intent_status: 'succeeded',
        url: null,
        ...change,
      }),
    promise: (id) =>
      changed(id, 'checkout.session.completed', {
        status: 'complete',
        payment_status: 'unpaid',
        payment_intent: newId('pi'),
        intent_status: 'processing',
        url: null,
      }),
    keepPromise: (id) =>
      changed(id, 'checkout.session.async_payment_succeeded', { payment_status: 'paid', intent_status: 'succeeded' }),
    breakPromise: (id) =>
      changed(id, 'checkout.session.async_payment_failed', { intent_status: 'requires_payment_method' }),
    expire: (id) => changed(id, 'checkout.session.expired', { status: 'expired', url: null }),
    refund(id, change = {}) {
      const { amount_total: amount, payment_intent } = fake.session(id);
      const object = {
        object: 'refund',
        amount,
        currency: 'usd',
        status: 'succeeded',
        payment_intent,
        charge: newId('ch'),
      };
      return record('refund.created', { id: newId('re'), ...object, ...change });
    },
    dispute(id, change = {}) {
      const { amount_total: amount, payment_intent } = fake.session(id);
      const object = { object: 'dispute', amount, currency: 'usd', status: 'needs_response', payment_intent };
      return record('charge.dispute.created', { id: newId('du'), ...object, ...change });
    },
    tell: (type, object, change = {}) => record(type, { ...object, ...change }),
  };
  t.after(async () => {
    fake.release();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return fake;
}

function metadataOf(params: URLSearchParams, name: string): Record<string, string> {
  const members = [...params].filter(([it]) => it.startsWith(`${name}[`));
  return Object.fromEntries(members.map(([it, value]) => [it.slice(name.length + 1, -1), value]));
}

const { webhooks } = new Stripe('sk_test_nothing_is_asked_with_this');

/** The header of a body that is signed with `secret` at `timestamp`, Unix seconds. */
export const signatureOf = (payload: string, secret: string, timestamp: number) =>
  webhooks.generateTestHeaderString({ payload, secret, timestamp });

export type Delivery = { secret?: string; at?: number; body?: Buffer; headers?: Record<string, string> };

/** Sends an event to the webhook as Stripe does, signed by the library's own helper. */
export function deliver(purser: TestServer, event: object, delivery: Delivery = {}): Promise<Answer> {
  const payload = JSON.stringify(event, null, 2);
  const timestamp = delivery.at ?? Math.floor(purser.clock.wall() / 1000);
  const signature = signatureOf(payload, delivery.secret ?? WEBHOOK_SECRET, timestamp);
  return purser.ask('POST', '/webhooks/stripe', {
    body: delivery.body ?? payload,
    headers: { 'stripe-signature': signature, ...delivery.headers },
  });
}
