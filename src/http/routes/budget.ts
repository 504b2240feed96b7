import { openOperations } from '../../ledger/operation.ts';
import { findWallet, type Wallet } from '../../ledger/wallet.ts';
import { Budget, budget } from '../../wire/budget.ts';
import { endpoint } from '../endpoint.ts';

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
      delegated_usd: '0.00',
      available_usd: '4.8777',
      frozen_at: null,
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
    const { read } = app.ledger;
    const known = findWallet(read, wallet.id) as Wallet;
    return { body: budget(read, known, openOperations(read, wallet.id), app.clock.now()) };
  },
});
