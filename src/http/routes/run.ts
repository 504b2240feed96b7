import { Refusal } from '../../refusal.ts';
import { close } from '../../wallet/close.ts';
import { RunClosed, walletRecord } from '../../wire/wallet.ts';
import { endpoint } from '../endpoint.ts';

const ID = 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f';

export const closeRun = endpoint({
  summary: 'Freeze the wallet’s spending and clean up; repeat until 200',
  scope: 'wallet',
  answer: RunClosed,
  refusals: ['cleanup_pending'],
  example: { answer: { wallet_id: ID, status: 'closed', cleanup: { pending: false, attempts: 0, last_error: null } } },
  async run(app, { principal }) {
    const wallet = await close(app, principal.wallet.id, 'agent_request');
    if (wallet.status !== 'closed') throw new Refusal('cleanup_pending', undefined, { retryAfterSeconds: 5 });
    const { id, status, cleanup } = walletRecord(wallet, app.clock.now());
    return { body: { wallet_id: id, status, cleanup } };
  },
});
