import * as v from 'valibot';
import { type SpendScope, sumSpending } from '../../ledger/spending.ts';
import { walletOf } from '../../ledger/wallet.ts';
import { text } from '../../wire/parts.ts';
import { Spend, SpendQuery, spendBody } from '../../wire/spend.ts';
import { endpoint } from '../endpoint.ts';

const EXAMPLE = {
  rows: [{ key: 'qwen3-8b', operations: 42, prompt_tokens: 5120, completion_tokens: 1980, charged_usd: '0.001304' }],
  total_usd: '0.001304',
};

export const readSpend = endpoint({
  summary: 'Sum what the account’s wallets were charged, by model, wallet, account, UTC day, tag or kind',
  scope: 'account',
  query: v.strictObject({ ...SpendQuery.entries, wallet_id: v.optional(text(0, 200)) }),
  answer: Spend,
  refusals: ['not_found'],
  example: { answer: EXAMPLE },
  async run(app, { principal: { accountId }, query }) {
    const { wallet_id: walletId, ...order } = query as unknown as v.InferOutput<typeof SpendQuery> & {
      wallet_id?: string;
    };
    const scope: SpendScope = walletId
      ? { wallet: walletOf(app.ledger.read, accountId, walletId).id }
      : { account: accountId };
    return { body: spendBody(await sumSpending(app.ledger.read, { ...order, scope })) };
  },
});

export const readRunSpend = endpoint({
  summary: 'Sum what the wallet and its children were charged, by model, wallet, account, UTC day, tag or kind',
  scope: 'wallet',
  query: SpendQuery,
  answer: Spend,
  example: { answer: EXAMPLE },
  async run(app, { principal, query }) {
    const order = query as unknown as v.InferOutput<typeof SpendQuery>;
    return {
      body: spendBody(await sumSpending(app.ledger.read, { ...order, scope: { wallet: principal.wallet.id } })),
    };
  },
});
