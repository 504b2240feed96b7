import * as v from 'valibot';
import { Cents, Time, text, wholeNumber } from './parts.ts';

/** Body and answer of POST /v1/billing/checkout. */
export const CheckoutRequest = v.object({ amount_cents: wholeNumber(500, 100_000) });
export const Checkout = v.object({
  id: v.string(),
  url: v.string(),
  status: v.string(),
  amount_cents: Cents,
  expires_at: Time,
});

/** Body and answer of POST /v1/transfer/sign. */
export const SignRequest = v.object({
  object: text(1, 1024),
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
