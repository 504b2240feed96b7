import * as v from 'valibot';
import type { Checkout as CheckoutRow } from '../ledger/checkout.ts';
import { Cents, Time, wholeNumber } from './parts.ts';

/** Body and answer of POST /v1/billing/checkout. */
export const CheckoutRequest = v.object({ amount_cents: wholeNumber(500, 100_000) });
export const Checkout = v.object({
  id: v.string(),
  /** Where to pay; null once nobody can any more. */
  url: v.nullable(v.string()),
  status: v.picklist(['open', 'pending', 'paid', 'expired', 'failed', 'mismatch', 'abandoned']),
  amount_cents: Cents,
  expires_at: Time,
});

/** A checkout that was made, as it stands. Past its end it is expired, whoever has said so or not yet. */
export function checkoutBody(it: CheckoutRow, now: number): v.InferOutput<typeof Checkout> {
  const isOver = it.status === 'open' && now >= it.expiresAt;
  return {
    id: it.id,
    url: isOver ? null : it.url,
    status: isOver ? 'expired' : (it.status as v.InferOutput<typeof Checkout>['status']),
    amount_cents: it.amountCents,
    expires_at: it.expiresAt,
  };
}
