import * as v from 'valibot';
import type { PaymentReport } from '../ledger/checkout.ts';
import type { ReversalReport, ReversalState } from '../ledger/reversal.ts';
import type { MarkedPayment, ProviderEvent } from './provider.ts';

/**
 * The members of Stripe's objects that Purser reads (docs.stripe.com/api: checkout sessions, refunds, disputes, events),
 * converted to its own terms. Everything else is ignored, above all names and card details.
 */

const text = v.pipe(v.string(), v.maxLength(5000));
const amount = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
/** A payment intent where it was expanded; otherwise Stripe sends only its id. */
const PaymentIntent = v.object({ id: text, status: v.optional(text) });

export const StripeSession = v.object({
  id: v.pipe(text, v.minLength(1)),
  object: v.literal('checkout.session'),
  url: v.nullish(text),
  status: v.nullish(text),
  payment_status: text,
  metadata: v.nullish(v.record(v.string(), v.string())),
  currency: v.nullish(text),
  amount_total: v.nullish(v.pipe(v.number(), v.safeInteger())),
  payment_intent: v.nullish(v.union([text, PaymentIntent])),
});
export type StripeSession = v.InferOutput<typeof StripeSession>;

/** Converts a session to a payment report. `hasFailed` comes from the event type, as the session does not contain it. */
export function paymentOf(session: StripeSession, hasFailed = false): MarkedPayment {
  const intent = session.payment_intent ?? null;
  return {
    sessionId: session.id,
    // Not client_reference_id: on a payment link the payer can set that.
    checkoutId: session.metadata?.checkout_id ?? null,
    outcome: outcomeOf(session, hasFailed),
    currency: session.currency ?? null,
    amountCents: session.amount_total ?? null,
    paymentIntent: typeof intent === 'string' ? intent : (intent?.id ?? null),
    installationId: session.metadata?.installation_id,
    accountId: session.metadata?.account_id,
  };
}

/**
 * States of an intent whose payment has failed: the session alone does not show that
 * (docs.stripe.com/payments/paymentintents/lifecycle).
 */
const HAS_FAILED = new Set(['requires_payment_method', 'canceled']);

function outcomeOf({ status, payment_status: payment, payment_intent: intent }: StripeSession, hasFailed: boolean) {
  // A session that needed no payment counts as paid; the amount check then finds the mismatch.
  if (payment === 'paid' || (status === 'complete' && payment === 'no_payment_required')) return 'paid';
  if (status === 'expired') return 'expired';
  if (status !== 'complete') return 'open';
  const hasIntentFailed = typeof intent === 'object' && intent !== null && HAS_FAILED.has(intent.status ?? '');
  return hasFailed || hasIntentFailed ? 'failed' : ('pending' satisfies PaymentReport['outcome']);
}

const StripeReversal = v.object({
  id: v.pipe(text, v.minLength(1)),
  amount,
  currency: text,
  status: v.nullish(text),
  payment_intent: v.nullish(v.union([text, PaymentIntent])),
});
type StripeReversal = v.InferOutput<typeof StripeReversal>;

const refundState = (status: string | null | undefined): ReversalState =>
  status === 'failed' || status === 'canceled' ? 'returned' : 'taken';

/** Unknown states count as `taken`: the money is gone until an event reports otherwise. */
const DISPUTE_STATES: Record<string, ReversalState> = {
  warning_needs_response: 'inquiry',
  warning_under_review: 'inquiry',
  warning_closed: 'returned',
  prevented: 'returned',
  won: 'returned',
  lost: 'lost',
};
const disputeState = (status: string | null | undefined) => DISPUTE_STATES[status ?? ''] ?? 'taken';

/** The amount of a reversal in another currency: above any payment, and capped at what was paid. */
const WHOLE_CENTS = 100_000_000_000;

function reversalOf(kind: ReversalReport['kind'], it: StripeReversal, asOf: number): ReversalReport | undefined {
  const intent = typeof it.payment_intent === 'object' ? it.payment_intent?.id : it.payment_intent;
  if (!intent) return undefined;
  return {
    id: it.id,
    kind,
    paymentIntent: intent,
    amountCents: it.currency === 'usd' ? it.amount : WHOLE_CENTS,
    state: kind === 'refund' ? refundState(it.status) : disputeState(it.status),
    asOf,
  };
}

type EventReader = (object: unknown, at: number) => Pick<ProviderEvent, 'subject' | 'content'>;
const session =
  (hasFailed = false): EventReader =>
  (object) => {
    const it = v.parse(StripeSession, object);
    return { subject: it.id, content: { payment: paymentOf(it, hasFailed) } };
  };
const reversal =
  (kind: ReversalReport['kind']): EventReader =>
  (object, at) => {
    const it = v.parse(StripeReversal, object);
    const report = reversalOf(kind, it, at);
    return { subject: it.id, content: report && { reversal: report } };
  };

/** The events of refunds and disputes. `charge.refunded` is left out, as its amount is the sum of all refunds. */
export const REVERSAL_EVENTS: Record<string, EventReader> = {
  'refund.created': reversal('refund'),
  'refund.updated': reversal('refund'),
  'refund.failed': reversal('refund'),
  'charge.dispute.created': reversal('dispute'),
  'charge.dispute.updated': reversal('dispute'),
  'charge.dispute.closed': reversal('dispute'),
};
/** Every relevant event; a webhook endpoint should send these. */
const EVENTS: Record<string, EventReader> = {
  'checkout.session.completed': session(),
  'checkout.session.async_payment_succeeded': session(),
  'checkout.session.async_payment_failed': session(true),
  'checkout.session.expired': session(),
  ...REVERSAL_EVENTS,
};

const Event = v.object({
  id: v.pipe(text, v.minLength(1)),
  object: v.literal('event'),
  type: text,
  created: amount,
  livemode: v.boolean(),
  data: v.object({ object: v.unknown() }),
});

/** Parses an event; one of an irrelevant type has no content. Throws a ValiError when the value is not an event. */
export function eventOf(value: unknown): ProviderEvent & { livemode: boolean } {
  const { id, type, created, livemode, data } = v.parse(Event, value);
  const read = Object.hasOwn(EVENTS, type) ? EVENTS[type] : undefined;
  const event = { id, type, at: created, livemode, subject: '', content: undefined };
  if (!read) return event;
  try {
    return { ...event, ...read(data.object, created) };
  } catch (error) {
    // A ValiError's own message would quote the input.
    const paths = error instanceof v.ValiError ? error.issues.map((issue) => v.getDotPath(issue)) : [];
    return { ...event, fault: `${type} is not as it is documented (${paths.join(', ')})` };
  }
}
