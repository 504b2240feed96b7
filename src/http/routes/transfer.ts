import { Refusal } from '../../base/refusal.ts';
import { findWallet, refuseInactive, type Wallet } from '../../ledger/wallet.ts';
import { keyOfObject } from '../../transfer/object-url.ts';
import { SignedUrl, SignRequest } from '../../wire/transfer.ts';
import { endpoint } from '../endpoint.ts';

export const signTransfer = endpoint({
  summary: 'Sign the URL of one exact object',
  scope: 'wallet',
  body: SignRequest,
  answer: SignedUrl,
  refusals: ['transfer_not_configured', 'wallet_closed', 'wallet_expired'],
  example: {
    body: { object: 'results/run-1.tar', operation: 'put', expires_seconds: 900 },
    answer: {
      url: 'https://s3.example/agents/wallets/wal_01k9v3c2mq8r5t7w1x4z6b0d2f/results/run-1.tar?X-Amz-Algorithm=…',
      method: 'PUT',
      object: 'results/run-1.tar',
      operation: 'put',
      headers: {},
      expires_at: 1795000900,
    },
  },
  async run(app, { principal, body }) {
    const key = keyOfObject(principal.wallet.id, body.object);
    if (!app.signer) throw new Refusal('transfer_not_configured');
    const now = app.clock.now();
    const wallet = findWallet(app.ledger.read, principal.wallet.id) as Wallet;
    refuseInactive(app.ledger.read, wallet, now);
    // Never past the wallet's expiry: a signed URL cannot be revoked.
    const seconds = Math.min(body.expires_seconds, (wallet.expiresAt ?? Number.POSITIVE_INFINITY) - now);
    const method = body.operation === 'get' ? 'GET' : 'PUT';
    return {
      body: {
        url: await app.signer.sign(method, key, now, seconds),
        method,
        object: body.object,
        operation: body.operation,
        headers: {},
        expires_at: now + seconds,
      },
    };
  },
});
