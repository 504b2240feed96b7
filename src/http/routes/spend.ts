import * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import { type SpendOrder, type SpendScope, sumSpending } from '../../ledger/spending.ts';
import { walletOf } from '../../ledger/wallet.ts';
import { text } from '../../wire/parts.ts';
import { periodOf } from '../../wire/period.ts';
import { SPEND_ROW_COUNT_MAX, Spend, SpendQuery, spendBody } from '../../wire/spend.ts';
import { endpoint, type HttpApp } from '../endpoint.ts';

const RETRY_SECONDS = 2;

/**
 * Sums the charges for an owner. Throws what `periodOf` throws, and `rate_limited` when several of its sums are running: each keeps a
 * row for every key that it meets until it is answered.
 */
async function sumFor({ sums, ledger }: Pick<HttpApp, 'sums' | 'ledger'>, owner: string, order: SpendOrder) {
  const summed = { ...order, ...periodOf(order) };
  if (!sums.tryTake(owner, 1))
    throw new Refusal('rate_limited', 'Too many sums of what was spent are running. Retry when they are done.', {
      retryAfterSeconds: RETRY_SECONDS,
    });
  try {
    return { body: spendBody(await sumSpending(ledger.read, summed, SPEND_ROW_COUNT_MAX)) };
  } finally {
    sums.release(owner, 1);
  }
}

const EXAMPLE = {
  rows: [{ key: 'qwen3-8b', operations: 42, prompt_tokens: 5120, completion_tokens: 1980, charged_usd: '0.001304' }],
  total_usd: '0.001304',
  rounding_usd: '0.008696',
  spent_usd: '0.01',
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
    return sumFor(app, accountId, { ...order, scope });
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
    const { id } = principal.wallet;
    return sumFor(app, app.tenantOf(id).treeId, { ...order, scope: { wallet: id } });
  },
});
