import * as v from 'valibot';
import type { Checkout as CheckoutRow } from '../ledger/checkout.ts';
import { Cents, Time, wholeNumber } from './parts.ts';

/** Body and answer of POST /v1/billing/checkout. */
export const CheckoutRequest = v.object({ amount_cents: wholeNumber(500, 100_000) });
export const Checkout = v.object({
  id: v.string(),
  /** The payment page; null once the checkout can no longer be paid. */
  url: v.nullable(v.string()),
  status: v.picklist(['open', 'pending', 'paid', 'expired', 'failed', 'mismatch', 'abandoned']),
  amount_cents: Cents,
  expires_at: Time,
});

/** Renders a checkout. Past `expires_at` it reads as expired even if the provider has not reported it yet. */
export function checkoutBody(it: CheckoutRow, now: number): v.InferOutput<typeof Checkout> {
  const hasExpired = it.status === 'open' && now >= it.expiresAt;
  return {
    id: it.id,
    url: hasExpired ? null : it.url,
    status: hasExpired ? 'expired' : (it.status as v.InferOutput<typeof Checkout>['status']),
    amount_cents: it.amountCents,
    expires_at: it.expiresAt,
  };
}
