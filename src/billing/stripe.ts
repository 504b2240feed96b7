import Stripe from 'stripe';
import * as v from 'valibot';
import { redact } from '../base/log.ts';
import { Refusal } from '../base/refusal.ts';
import { type BillingSettings, isLive } from '../config/services.ts';
import type { Creation } from '../ledger/checkout.ts';
import { Unanswered } from '../net/watched-pool.ts';
import { type Provider, ProviderDown, type ProviderEvent } from './provider.ts';
import { openHttp } from './stripe-http.ts';
import { eventOf, paymentOf, REVERSAL_EVENTS, Session } from './stripe-schema.ts';

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
  const stripe = new Stripe(key, {
    httpClient: http.client,
    maxNetworkRetries: 0,
    telemetry: false,
  });
  /** Describes an error for a log. The answer may quote our key, so it is redacted before truncation could split the key. */
  function reasonOf(error: unknown): string {
    const { statusCode, type, code, message, detail } = error as Stripe.errors.StripeError & { detail?: unknown };
    if (detail instanceof Unanswered) return detail.message;
    const text = [statusCode, code ?? type, message].filter(Boolean).join(' ');
    return redact(text.replaceAll(key, '[redacted]')).slice(0, REASON_CHARACTERS_MAX);
  }

  function created(value: unknown): Creation {
    const session = v.safeParse(Session, value);
    if (!session.success || !session.output.url) return { kind: 'unknown', reason: 'the answer cannot be read' };
    return { kind: 'created', sessionId: session.output.id, url: session.output.url };
  }

  return {
    livemode,
    takesWebhooks: settings.webhook_secrets.length > 0,

    async create(checkout) {
      const metadata = {
        checkout_id: checkout.id,
        account_id: checkout.accountId,
        installation_id: marks.installationId,
      };
      try {
        const session = await stripe.checkout.sessions.create(
          {
            mode: 'payment',
            client_reference_id: checkout.id,
            metadata,
            payment_intent_data: { metadata },
            line_items: [
              {
                quantity: 1,
                price_data: {
                  currency: 'usd',
                  unit_amount: checkout.amountCents,
                  product_data: { name: 'Prepaid credit' },
                },
              },
            ],
            adaptive_pricing: { enabled: false }, // Otherwise it may be paid in another currency.
            expires_at: checkout.expiresAt,
            success_url: settings.success_url,
            ...(settings.cancel_url === undefined ? {} : { cancel_url: settings.cancel_url }),
          },
          { idempotencyKey: checkout.id },
        );
        return created(session);
      } catch (error) {
        return { kind: isRejection(error) ? 'refused' : 'unknown', reason: reasonOf(error) };
      }
    },

    async find(checkout) {
      try {
        let after: string | undefined;
        for (let page = 0; page < PAGE_COUNT_MAX; page++) {
          const more = after === undefined ? {} : { starting_after: after };
          const { data, has_more } = await stripe.checkout.sessions.list({
            created: { gte: checkout.createdAt - CLOCK_SECONDS },
            limit: PAGE_COUNT,
            ...more,
          });
          const found = data.find((it) => it.metadata?.checkout_id === checkout.id);
          if (found) return created(found);
          after = data.at(-1)?.id;
          if (!has_more || after === undefined) return undefined;
        }
      } catch {} // Then it is created again, which cannot make a second one.
      return undefined;
    },

    async read(sessionId) {
      const session = await reach(() => stripe.checkout.sessions.retrieve(sessionId, { expand: ['payment_intent'] }));
      return paymentOf(v.parse(Session, session));
    },

    async readEvents(since, now) {
      for (let until: number | undefined; ; ) {
        const events = await listEvents(since - CLOCK_SECONDS, until);
        if (events) return { events, until };
        until = since + Math.floor(((until ?? now) - since) / 2);
        if (until <= since)
          throw new Error(`more than ${PAGE_COUNT * PAGE_COUNT_MAX} refunds and disputes at once, at ${since}`);
      }
    },

    open(message, signature, now) {
      for (const secret of settings.webhook_secrets) {
        let value: unknown;
        try {
          value = stripe.webhooks.constructEvent(
            message,
            signature ?? '',
            secret.reveal(),
            TOLERANCE_SECONDS,
            undefined,
            now * 1000,
          );
        } catch {
          continue;
        }
        const event = eventOf(value);
        if (event.livemode !== livemode)
          throw new Refusal('invalid_request', `An event in ${event.livemode ? 'live' : 'test'} mode.`);
        return event;
      }
      throw new Refusal('invalid_request');
    },

    async check() {
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
      const mode = livemode ? 'live mode' : 'test mode: nobody pays real money, and what is paid is credited';
      const updates = settings.webhook_secrets.length ? 'webhooks and polling' : 'polling only: no webhook_secrets';
      return `the key is accepted (${mode}); ${updates}`;
    },

    close: () => http.close(),
  };

  /** Lists the events of a span of time, oldest first; undefined where they are too many. */
  async function listEvents(from: number, until: number | undefined): Promise<ProviderEvent[] | undefined> {
    const events: ProviderEvent[] = [];
    const created = { gte: from, ...(until === undefined ? {} : { lt: until }) };
    const types = Object.keys(REVERSAL_EVENTS);
    let after: string | undefined;
    for (let page = 0; page < PAGE_COUNT_MAX; page++) {
      const more = after === undefined ? {} : { starting_after: after };
      const { data, has_more } = await reach(() => stripe.events.list({ created, types, limit: PAGE_COUNT, ...more }));
      events.push(...data.map(eventOf));
      after = data.at(-1)?.id;
      if (!has_more || after === undefined) return events.reverse(); // Stripe lists the newest first.
    }
    return undefined;
  }

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
