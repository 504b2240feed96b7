import { Refusal } from '../../refusal.ts';
import { Checkout, CheckoutRequest } from '../../wire/outside.ts';
import { endpoint } from '../door.ts';

// Checkout has its route and schemas; what stands behind it comes with its room.

export const createCheckout = endpoint({
  summary: 'Create a hosted checkout session of the payment provider',
  scope: 'session',
  idempotent: true,
  body: CheckoutRequest,
  answer: Checkout,
  refusals: ['billing_not_configured'],
  example: {
    body: { amount_cents: 2000 },
    answer: {
      id: 'chk_01k9v3c2mq8r5t7w1x4z6b0d2f',
      url: 'https://checkout.example/s/1',
      status: 'open',
      amount_cents: 2000,
      expires_at: 1795086400,
    },
  },
  run() {
    throw new Refusal(
      'billing_not_configured',
      'This installation has no payment provider configured; the operator credits accounts with `purser account credit`.',
    );
  },
});
