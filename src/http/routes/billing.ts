import { fingerprint } from '../../base/fingerprint.ts';
import { checkout } from '../../billing/checkout.ts';
import { Checkout, CheckoutRequest, checkoutBody } from '../../wire/checkout.ts';
import { endpoint } from '../endpoint.ts';

export const createCheckout = endpoint({
  summary: 'Create a hosted checkout session of the payment provider',
  scope: 'session',
  idempotent: true,
  body: CheckoutRequest,
  answer: Checkout,
  refusals: [
    'idempotency_conflict',
    'idempotency_in_progress',
    'billing_not_configured',
    'provider_unavailable',
    'operation_uncertain',
  ],
  example: {
    body: { amount_cents: 2000 },
    answer: {
      id: 'chk_01k9v3c2mq8r5t7w1x4z6b0d2f',
      url: 'https://checkout.example/s/1',
      status: 'open',
      amount_cents: 2000,
      expires_at: 1795010800,
    },
  },
  async run(app, { principal, body, raw, idempotencyKey, requestId }) {
    const { checkout: it, replayed } = await checkout(app, {
      accountId: principal.accountId,
      amountCents: body.amount_cents,
      idempotencyKey,
      fingerprint: fingerprint(raw),
      requestId,
    });
    return { body: checkoutBody(it, app.clock.now()), replayed };
  },
});
