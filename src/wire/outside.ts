import * as v from 'valibot';
import type { Checkout as CheckoutRow } from '../ledger/checkout.ts';
import { Cents, Time, text, wholeNumber } from './parts.ts';

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

/** Body and answer of POST /v1/transfer/sign. */
export const SignRequest = v.object({
  object: v.pipe(
    text(1, 1024),
    v.description(
      'the name of one object: no control characters, no part that is . or .., no slash at its beginning; with the prefix that keeps wallets apart at most 1024 bytes of UTF-8',
    ),
  ),
  operation: v.picklist(['get', 'put'], 'must be get or put'),
  expires_seconds: v.optional(wholeNumber(1, 604_800), 900),
});
export const SignedUrl = v.object({
  url: v.string(),
  method: v.picklist(['GET', 'PUT']),
  object: v.string(),
  operation: v.picklist(['get', 'put']),
  headers: v.record(v.string(), v.string()),
  expires_at: Time,
});
