import { formatUsd, type Nanos } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { Operation } from '../ledger/operation.ts';
import { available } from '../ledger/wallet.ts';
import type { Model } from '../router/catalogue.ts';
import { affordableCompletion, holdOf, type MaxUsage, type Price } from '../router/price.ts';
import { definePaidWrites } from '../spend/writes.ts';

/** The part of a chat's quote that the write of its hold needs. */
export type ChatTerms = {
  kind: Model['kind'];
  /** The model's part of the price snapshot: a JSON object that is still open. */
  priceText: string;
  /** The number of answers requested. */
  choices: number;
  /** The price and the largest possible usage of each of the model's routes, because any of them may answer. */
  routes: readonly { price: Price; usage: MaxUsage }[];
  /** Output tokens of one answer, and the smallest number to which they may be cut; undefined if they may not be cut. */
  reducible: { outputTokens: number; outputTokensMin: number } | undefined;
  /** The limit of output tokens per answer, if it was lowered. */
  reducedTo: number | undefined;
  /** The price limit of one request, if the caller's key has one. */
  maxPrice: Nanos | undefined;
  /**
   * Output tokens per answer below which the caller would rather wait for requests in flight than be cut; 0 if it does not
   * wait.
   */
  enough: number;
};

/** Returns the hold and the price snapshot of a request: those of the route that may cost most. */
export function orderOf({
  priceText,
  choices,
  routes,
  reducedTo,
}: Pick<ChatTerms, 'priceText' | 'choices' | 'routes' | 'reducedTo'>) {
  const { hold, max } = routes
    .map(({ price, usage }) => ({ max: usage, hold: holdOf(price, usage) }))
    .reduce((costliest, it) => (it.hold > costliest.hold ? it : costliest));
  const bounds = `"bound_prompt_tokens":${max.promptTokens},"bound_completion_tokens":${max.completionTokens}${max.isCachedForHour ? ',"cached_for_hour":true' : ''}${reducedTo === undefined ? '' : `,"reduced_to_tokens":${reducedTo}`}`;
  return { hold, price: `${priceText},${bounds}}`, outputTokens: max.completionTokens / choices };
}

/** Returns the limit of output tokens per answer if that of an operation was lowered to fit. */
export const reducedToOf = ({ price }: Pick<Operation, 'price'>): number | undefined =>
  (parseJson(price) as { reduced_to_tokens?: number }).reduced_to_tokens;

/** Returns the output tokens per answer that `left` pays for on every route: their number decides which route costs most. */
const affordable = ({ routes, choices }: ChatTerms, left: Nanos): number =>
  Math.min(...routes.map(({ price, usage }) => Math.floor(affordableCompletion(price, usage, left) / choices)));

/** Returns the output tokens per answer to which a request costing more than `left` is cut; undefined if it cannot be cut. */
export function fitting(terms: ChatTerms, left: Nanos): number | undefined {
  const { reducible } = terms;
  const fits = affordable(terms, left);
  if (!reducible || fits < reducible.outputTokensMin || fits >= reducible.outputTokens) return undefined;
  return fits;
}

function reduce(terms: ChatTerms, left: Nanos) {
  const to = fitting(terms, left);
  if (to === undefined || !terms.reducible) return undefined;
  const isShort = to < Math.min(terms.reducible.outputTokens, terms.enough);
  const cut = ({ price, usage }: ChatTerms['routes'][number]) => {
    const completionTokens = Math.min(usage.completionTokens, terms.choices * to);
    return { price, usage: { ...usage, completionTokens } };
  };
  return { ...orderOf({ ...terms, routes: terms.routes.map(cut), reducedTo: to }), to, isShort };
}

function advice(terms: ChatTerms, left: Nanos): string {
  if (terms.kind !== 'chat') return '';
  const fits = affordable(terms, left);
  const asked = `It asked for up to ${orderOf(terms).outputTokens} output tokens`;
  return fits >= 1 ? `${asked}; with max_tokens ${fits} it would fit.` : `${asked}; no max_tokens would make it fit.`;
}

export const chatWrites = definePaidWrites<ChatTerms>('chat', {
  advice,
  reduce,
  limits(_, wallet, { hold }, terms) {
    const { maxPrice } = terms;
    if (maxPrice === undefined || hold <= maxPrice) return;
    const left = available(wallet);
    throw new Refusal(
      'insufficient_funds',
      `This request needs ${formatUsd(hold)} USD at most, and this gateway key allows ${formatUsd(maxPrice)} USD for one request. ${advice(terms, left < maxPrice ? left : maxPrice)}`.trim(),
    );
  },
});
