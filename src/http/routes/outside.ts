import { Refusal } from '../../refusal.ts';
import { Checkout, CheckoutRequest, RouterKey, RouterKeyRequest, SignedUrl, SignRequest } from '../../wire/outside.ts';
import { endpoint } from '../door.ts';

// Checkout, transfer and gateway keys have their routes and schemas; what stands behind them comes with their rooms.

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

export const signTransfer = endpoint({
  summary: 'Sign the URL of one exact object',
  scope: 'wallet',
  body: SignRequest,
  answer: SignedUrl,
  refusals: ['transfer_not_configured'],
  example: {
    body: { object: 'results/run-1.tar', operation: 'put', expires_seconds: 900 },
    answer: {
      url: 'https://s3.example/agents/…',
      method: 'PUT',
      object: 'results/run-1.tar',
      operation: 'put',
      headers: {},
      expires_at: 1795000900,
    },
  },
  run() {
    throw new Refusal('transfer_not_configured');
  },
});

export const createRouterKey = endpoint({
  summary: 'Get a wallet-scoped gateway key and its chat-completion-compatible base URL',
  scope: 'wallet',
  body: RouterKeyRequest,
  answer: RouterKey,
  refusals: ['provider_not_configured', 'wallet_closed', 'wallet_expired'],
  example: {
    body: {},
    answer: { api_key: 'svc_router_…', base_url: 'http://127.0.0.1:7420/v1/router', expires_at: 1795086400 },
  },
  run() {
    throw new Refusal(
      'provider_not_configured',
      'This version of Purser has no gateway keys yet: use the wallet token with /v1/chat/completions.',
    );
  },
});
