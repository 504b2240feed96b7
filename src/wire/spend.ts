import * as v from 'valibot';
import { formatUsd, sum } from '../base/money.ts';
import { SPEND_BY, type Spending, type SpendRest } from '../ledger/spending.ts';
import { numberInQuery, Usd } from './parts.ts';

/** Maximum number of rows of an answer over HTTP. */
export const SPEND_ROW_COUNT_MAX = 1000;

const SUMS = {
  operations: v.number(),
  prompt_tokens: v.number(),
  completion_tokens: v.number(),
  charged_usd: Usd,
};

/** The charged sums, by one of `SPEND_BY` (design, section 16). */
export const Spend = v.object({
  rows: v.array(
    v.object({
      key: v.pipe(
        v.string(),
        v.description('A model or slot, a wallet, an account, a UTC day, `name=value` (empty for no tag), or a kind'),
      ),
      ...SUMS,
    }),
  ),
  others: v.optional(
    v.pipe(
      v.object(SUMS),
      v.description(`The sums of all that has no row, where there is more than the ${SPEND_ROW_COUNT_MAX} largest`),
    ),
  ),
  total_usd: v.pipe(Usd, v.description('The sum of the charges')),
  rounding_usd: v.pipe(
    Usd,
    v.description('What wallets that were closed spent beyond their charges: up to a whole cent'),
  ),
  spent_usd: v.pipe(Usd, v.description('Both')),
});

/** Builds the body of a sum of spending. */
export function spendBody({ rows, others, total, rounding }: Spending): v.InferOutput<typeof Spend> {
  return {
    rows: rows.map(({ key, ...sums }) => ({ key, ...sumsOf(sums) })),
    ...(others ? { others: sumsOf(others) } : {}),
    total_usd: formatUsd(total),
    rounding_usd: formatUsd(rounding),
    spent_usd: formatUsd(sum(total, rounding)),
  };
}

const sumsOf = (it: SpendRest) => ({
  operations: it.operations,
  prompt_tokens: it.promptTokens,
  completion_tokens: it.completionTokens,
  charged_usd: formatUsd(it.charged),
});

/** The schema of a whole number of Unix seconds in a query. */
const QueryTime = numberInQuery(0, 99_999_999_999, 'must be Unix seconds');

const ONE_OF = `must be one of ${SPEND_BY.join(', ')}`;
export const SpendQuery = v.strictObject({
  by: v.optional(v.picklist(SPEND_BY, ONE_OF), 'model'),
  since: v.optional(QueryTime),
  until: v.optional(QueryTime),
});
