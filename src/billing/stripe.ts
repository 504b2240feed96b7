import Stripe from 'stripe';
import * as v from 'valibot';
import { redact } from '../base/log.ts';
import { Refusal } from '../base/refusal.ts';
import { type BillingSettings, isLive } from '../config/services.ts';
import type { Checkout, Creation } from '../ledger/checkout.ts';
import { Unanswered } from '../net/watched-pool.ts';
import { type Provider, ProviderDown, type ProviderEvent } from './provider.ts';
import { openHttp } from './stripe-http.ts';
import { eventOf, paymentOf, REVERSAL_EVENTS, StripeSession } from './stripe-schema.ts';

/** The maximum age of a signed message; an older one may be a replay by an eavesdropper. */
const TOLERANCE_SECONDS = 300;
const PAGE_COUNT = 100;
/** The most pages read in search of a session or of events. */
const PAGE_COUNT_MAX = 20;
/** The assumed maximum difference between Stripe's clock and ours. */
const CLOCK_SECONDS = 300;
const REASON_CHARACTERS_MAX = 300;

/** Opens Stripe as the payment provider. `marks` go into each session's metadata to identify a stray one. */
export function openStripe({ stripe: settings }: BillingSettings, marks: { installationId: string }): Provider {
  const api = new URL(settings.api_base);
  const key = settings.secret_key.reveal();
  const livemode = isLive(settings);
  const http = openHttp(api.origin);
  const stripe = new Stripe(key, { httpClient: http.client, maxNetworkRetries: 0, telemetry: false });
  /** Describes an error for a log. The answer may quote our key, so it is redacted before truncation could split the key. */
  function reasonOf(error: unknown): string {
    const { statusCode, type, code, message, detail } = error as Stripe.errors.StripeError & { detail?: unknown };
    if (detail instanceof Unanswered) return detail.message;
    const text = [statusCode, code ?? type, message].filter(Boolean).join(' ');
    return redact(text.replaceAll(key, '[redacted]')).slice(0, REASON_CHARACTERS_MAX);
  }

  return {
    livemode,
    takesWebhooks: settings.webhook_secrets.length > 0,

    async create(checkout) {
      try {
        const session = await stripe.checkout.sessions.create(sessionOrder(checkout, settings, marks.installationId), {
          idempotencyKey: checkout.id,
        });
        return created(session);
      } catch (error) {
        return { kind: isRejection(error) ? 'refused' : 'unknown', reason: reasonOf(error) };
      }
    },

    async find(checkout) {
      try {
        const query = { created: { gte: checkout.createdAt - CLOCK_SECONDS }, limit: PAGE_COUNT };
        let session: Stripe.Checkout.Session | undefined;
        await readPages(
          (after) => stripe.checkout.sessions.list({ ...query, ...after }),
          (page) => {
            session = page.find((it) => it.metadata?.checkout_id === checkout.id);
            return session !== undefined;
          },
        );
        return session && created(session);
      } catch {
        return undefined; // Then it is created again, which cannot make a second one.
      }
    },

    async read(sessionId) {
      const session = await reach(() => stripe.checkout.sessions.retrieve(sessionId, { expand: ['payment_intent'] }));
      return paymentOf(v.parse(StripeSession, session));
    },

    readEvents: (since, now) => readEvents(stripe, reach, since, now),

    open(message, signature, now) {
      const event = signedEvent(stripe, settings, message, signature ?? '', now);
      if (!event) throw new Refusal('invalid_request');
      if (event.livemode !== livemode)
        throw new Refusal('invalid_request', `An event in ${event.livemode ? 'live' : 'test'} mode.`);
      return event;
    },

    check: () => checkAccess(stripe, reach, settings),

    close: () => http.close(),
  };

  /** Makes one call. Throws ProviderDown for errors of the connection or the key, an Error for those of the request. */
  async function reach<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      const { statusCode } = error as Stripe.errors.StripeError;
      if (statusCode === 404 || statusCode === 400) throw new Error(reasonOf(error));
      throw new ProviderDown(reasonOf(error));
    }
  }
}

function created(value: unknown): Creation {
  const session = v.safeParse(StripeSession, value);
  if (!session.success || !session.output.url) return { kind: 'unknown', reason: 'the answer cannot be read' };
  return { kind: 'created', sessionId: session.output.id, url: session.output.url };
}

type Reach = <T>(call: () => Promise<T>) => Promise<T>;

/**
 * Reads the events of a time, or of a first part of it that has not too many; see `Provider`. A part that ends before `since`, as
 * where many were refunded at once just before it, is followed by the next one: a read that goes no further would be repeated for
 * ever.
 */
async function readEvents(stripe: Stripe, reach: Reach, since: number, now: number) {
  const read: ProviderEvent[] = [];
  let from = since - CLOCK_SECONDS;
  for (let seconds: number | undefined; ; ) {
    const until = seconds === undefined ? undefined : from + seconds;
    const events = await listEvents(stripe, reach, from, until);
    if (events) {
      read.push(...events);
      if (until === undefined || until >= now) return { events: read, until: undefined };
      if (until > since) return { events: read, until };
      from = until;
    } else {
      seconds = Math.floor((seconds ?? now - from) / 2);
      if (seconds < 1)
        throw new Error(`more than ${PAGE_COUNT * PAGE_COUNT_MAX} refunds and disputes at once, at ${from}`);
    }
  }
}

/** Lists the events of a span of time, oldest first; undefined where they are too many. */
async function listEvents(
  stripe: Stripe,
  reach: Reach,
  from: number,
  until: number | undefined,
): Promise<ProviderEvent[] | undefined> {
  const events: ProviderEvent[] = [];
  const created = { gte: from, ...(until === undefined ? {} : { lt: until }) };
  const types = Object.keys(REVERSAL_EVENTS);
  const query = { created, types, limit: PAGE_COUNT };
  const isWhole = await readPages(
    (after) => reach(() => stripe.events.list({ ...query, ...after })),
    (page) => {
      events.push(...page.map(eventOf));
      return false;
    },
  );
  return isWhole ? events.reverse() : undefined; // Stripe lists the newest first.
}

/** Checks that the key has the needed permissions. Throws an error that describes the fault. */
async function checkAccess(stripe: Stripe, reach: Reach, settings: BillingSettings['stripe']): Promise<string> {
  const needed = {
    'read checkouts': () => stripe.checkout.sessions.list({ limit: 1, expand: ['data.payment_intent'] }),
    'read events': () => stripe.events.list({ limit: 1, types: ['refund.created'] }),
  };
  for (const [what, call] of Object.entries(needed))
    await reach<unknown>(call).catch((error: Error) => {
      const remedy = /^40[13] /.test(error.message)
        ? 'Check billing.stripe.secret_key and what it may do'
        : 'Can this machine reach it';
      throw new Error(`${settings.api_base} does not let us ${what}: ${error.message}. ${remedy}?`);
    });
  const mode = isLive(settings) ? 'live mode' : 'test mode: nobody pays real money, and what is paid is credited';
  const updates = settings.webhook_secrets.length ? 'webhooks and polling' : 'polling only: no webhook_secrets';
  return `the key is accepted (${mode}); ${updates}`;
}

/** Reads a list page by page until `take` returns true. Returns false if it has more pages than are read. */
async function readPages<T extends { id: string }>(
  list: (after: { starting_after?: string }) => Promise<{ data: T[]; has_more: boolean }>,
  take: (items: T[]) => boolean,
): Promise<boolean> {
  let after = {};
  for (let page = 0; page < PAGE_COUNT_MAX; page++) {
    const { data, has_more } = await list(after);
    const last = data.at(-1);
    if (take(data) || !has_more || !last) return true;
    after = { starting_after: last.id };
  }
  return false;
}

/** Describes a checkout as Stripe's session to pay at. */
function sessionOrder(
  { id, accountId, amountCents, expiresAt }: Checkout,
  settings: BillingSettings['stripe'],
  installationId: string,
): Stripe.Checkout.SessionCreateParams {
  const metadata = { checkout_id: id, account_id: accountId, installation_id: installationId };
  const price = { currency: 'usd', unit_amount: amountCents, product_data: { name: 'Prepaid credit' } };
  return {
    mode: 'payment',
    client_reference_id: id,
    metadata,
    payment_intent_data: { metadata },
    line_items: [{ quantity: 1, price_data: price }],
    adaptive_pricing: { enabled: false }, // Otherwise it may be paid in another currency.
    expires_at: expiresAt,
    success_url: settings.success_url,
    ...(settings.cancel_url === undefined ? {} : { cancel_url: settings.cancel_url }),
  };
}

/** Returns the event of a message that one of the webhook secrets has signed, undefined if none has. */
function signedEvent(
  stripe: Stripe,
  settings: BillingSettings['stripe'],
  message: Buffer,
  signature: string,
  now: number,
): ReturnType<typeof eventOf> | undefined {
  for (const secret of settings.webhook_secrets) {
    let value: unknown;
    try {
      const at = now * 1000;
      value = stripe.webhooks.constructEvent(message, signature, secret.reveal(), TOLERANCE_SECONDS, undefined, at);
    } catch {
      continue;
    }
    return eventOf(value);
  }
  return undefined;
}

const REJECTED_STATUSES = new Set([400, 401, 402, 403, 404, 429]);

/**
 * Returns whether an answer certainly means that nothing was created (docs.stripe.com/api/errors). An idempotency conflict
 * does not, as the earlier attempt may have created it; neither does any status from 500.
 */
function isRejection(error: unknown): boolean {
  const { statusCode, rawType, detail } = error as Stripe.errors.StripeError & { detail?: unknown };
  if (detail instanceof Unanswered) return !detail.sent;
  return rawType !== 'idempotency_error' && REJECTED_STATUSES.has(statusCode ?? 0);
}
