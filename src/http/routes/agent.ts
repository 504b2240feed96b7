import { openOperations } from '../../ledger/operation.ts';
import { findWallet, type Wallet } from '../../ledger/wallet.ts';
import { Refusal } from '../../refusal.ts';
import { close } from '../../spend/close.ts';
import { Budget, budget } from '../../wire/budget.ts';
import { RunClosed, walletRecord } from '../../wire/wallet.ts';
import { endpoint } from '../door.ts';

const ID = 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f';

export const readBudget = endpoint({
  summary: 'Read what the wallet may still spend, and what it holds',
  scope: 'wallet',
  answer: Budget,
  example: {
    answer: {
      wallet_id: ID,
      status: 'active',
      budget_usd: '5.00',
      used_usd: '0.1203',
      held_usd: '0.002',
      available_usd: '4.8777',
      expires_at: 1795086400,
      holds: [
        {
          id: 'op_01k9v3c2mq8r5t7w1x4z6b0d2f',
          kind: 'chat',
          amount_usd: '0.002',
          state: 'reserved',
          resource_id: null,
          created_at: 1795000300,
        },
      ],
    },
  },
  run(app, { principal: { wallet } }) {
    const now = app.clock.now();
    return {
      body: budget(findWallet(app.ledger.read, wallet.id) as Wallet, openOperations(app.ledger.read, wallet.id), now),
    };
  },
});

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
