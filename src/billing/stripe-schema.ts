import * as v from 'valibot';
import type { PaymentReport } from '../ledger/checkout.ts';
import type { ReversalReport, ReversalState } from '../ledger/reversal.ts';
import type { ProviderEvent, SaidPayment } from './provider.ts';

/**
 * What we read of Stripe's objects (docs.stripe.com/api: checkout sessions, refunds, disputes, events), in our own words.
 * Everything else in them, names and cards of people above all, is left where it is.
 */

const text = v.pipe(v.string(), v.maxLength(5000));
const amount = v.pipe(v.number(), v.safeInteger(), v.minValue(0));
/** An id, or where it was asked for the object with that id. */
const PaymentIntent = v.object({ id: text, status: v.optional(text) });

export const Session = v.object({
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
export type Session = v.InferOutput<typeof Session>;

/** How a session stands. `hasFailed` is what its own event says, and nothing in the session does. */
export function paymentOf(session: Session, hasFailed = false): SaidPayment {
  const intent = session.payment_intent ?? null;
  return {
    sessionId: session.id,
    // Not by client_reference_id: of a payment link the payer may set that.
    checkoutId: session.metadata?.checkout_id ?? null,
    outcome: outcomeOf(session, hasFailed),
    currency: session.currency ?? null,
    amountCents: session.amount_total ?? null,
    paymentIntent: typeof intent === 'string' ? intent : (intent?.id ?? null),
    installationId: session.metadata?.installation_id,
    accountId: session.metadata?.account_id,
  };
}

/** A payment that failed can be told from one that is on its way by its intent alone (docs.stripe.com/payments/paymentintents/lifecycle). */
const HAS_FAILED = new Set(['requires_payment_method', 'canceled']);

function outcomeOf({ status, payment_status: payment, payment_intent: intent }: Session, hasFailed: boolean) {
  // What needed no payment is reported as paid: its amount is not the one that was asked for.
  if (payment === 'paid' || (status === 'complete' && payment === 'no_payment_required')) return 'paid';
  if (status === 'expired') return 'expired';
  if (status !== 'complete') return 'open';
  const isOver = typeof intent === 'object' && intent !== null && HAS_FAILED.has(intent.status ?? '');
  return hasFailed || isOver ? 'failed' : ('pending' satisfies PaymentReport['outcome']);
}

const Reversal = v.object({
  id: v.pipe(text, v.minLength(1)),
  amount,
  currency: text,
  status: v.nullish(text),
  payment_intent: v.nullish(v.union([text, PaymentIntent])),
});
type Reversal = v.InferOutput<typeof Reversal>;

const refundState = (status: string | null | undefined): ReversalState =>
  status === 'failed' || status === 'canceled' ? 'returned' : 'taken';

/** Whatever we do not know is taken for undecided: the money is gone until somebody says otherwise. */
const DISPUTE_STATES: Record<string, ReversalState> = {
  warning_needs_response: 'inquiry',
  warning_under_review: 'inquiry',
  warning_closed: 'returned',
  prevented: 'returned',
  won: 'returned',
  lost: 'lost',
};
const disputeState = (status: string | null | undefined) => DISPUTE_STATES[status ?? ''] ?? 'taken';

/** In a currency that is not ours all that was paid counts: it is never more than that. */
const WHOLE_CENTS = 100_000_000_000;

function reversalOf(kind: ReversalReport['kind'], it: Reversal, asOf: number): ReversalReport | undefined {
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

type Reader = (object: unknown, at: number) => Pick<ProviderEvent, 'subject' | 'says'>;
const session =
  (hasFailed = false): Reader =>
  (object) => {
    const it = v.parse(Session, object);
    return { subject: it.id, says: { payment: paymentOf(it, hasFailed) } };
  };
const reversal =
  (kind: ReversalReport['kind']): Reader =>
  (object, at) => {
    const it = v.parse(Reversal, object);
    const said = reversalOf(kind, it, at);
    return { subject: it.id, says: said && { reversal: said } };
  };

/** The events of refunds and disputes. Not `charge.refunded`: its amount is that of all refunds together. */
export const REVERSAL_EVENTS: Record<string, Reader> = {
  'refund.created': reversal('refund'),
  'refund.updated': reversal('refund'),
  'refund.failed': reversal('refund'),
  'charge.dispute.created': reversal('dispute'),
  'charge.dispute.updated': reversal('dispute'),
  'charge.dispute.closed': reversal('dispute'),
};
/** Every event that concerns us; a webhook endpoint should send these. */
export const EVENTS: Record<string, Reader> = {
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

/** An event in our words; of another type it says nothing. Throws a ValiError when it is none. */
export function eventOf(value: unknown): ProviderEvent & { livemode: boolean } {
  const { id, type, created, livemode, data } = v.parse(Event, value);
  const read = Object.hasOwn(EVENTS, type) ? EVENTS[type] : undefined;
  const event = { id, type, at: created, livemode, subject: '', says: undefined };
  if (!read) return event;
  try {
    return { ...event, ...read(data.object, created) };
  } catch (error) {
    // A ValiError's own sentence would quote what stood there.
    const paths = error instanceof v.ValiError ? error.issues.map((issue) => v.getDotPath(issue)) : [];
    return { ...event, fault: `${type} is not as it is documented (${paths.join(', ')})` };
  }
}
