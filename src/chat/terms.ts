import { isDeepStrictEqual } from 'node:util';
import type { Nanos } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import type { Funds } from '../ledger/hold.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Bounded } from '../router/bound.ts';
import type { Model } from '../router/catalogue.ts';
import { affordableCompletion, holdOf, type MaxUsage, type Price } from '../router/price.ts';
import { definePaidWrites } from '../spend/writes.ts';

/** The writes of a chat: they do nothing but hold and settle. */
export const chatWrites = definePaidWrites<undefined>('chat', {});

/** A priced request to a model. */
export type ChatTerms = Pick<Model, 'kind' | 'prices'> &
  Pick<Bounded, 'choices' | 'reducible'> & {
    /** The price and the largest possible usage of each of the routes, because any of them may answer. */
    routes: readonly { price: Price; usage: MaxUsage }[];
    /** The limit of output tokens per answer, if it was lowered to fit an amount. */
    reducedTo: number | undefined;
  };

/** Prices a request at each of the routes that may answer it. */
export const termsOf = ({ kind, prices }: Model, { choices, reducible, routes, maxUsage }: Bounded): ChatTerms => ({
  kind,
  prices,
  choices,
  reducible,
  routes: routes.map((route) => ({ price: route.price, usage: maxUsage(route) })),
  reducedTo: undefined,
});

/** Returns the hold of a request, the smallest one to which it can be cut, and its price snapshot: the worst of all routes. */
export function orderOf({ prices, choices, reducible, routes, reducedTo }: ChatTerms) {
  const { hold, usage } = costliest(routes);
  const holdMin = reducible ? costliest(cutRoutes(routes, choices * reducible.outputTokensMin)).hold : hold;
  const bounds = {
    bound_prompt_tokens: usage.promptTokens,
    bound_completion_tokens: usage.completionTokens,
    ...(usage.isCachedForHour ? { cached_for_hour: true } : {}),
    ...(reducedTo === undefined ? {} : { reduced_to_tokens: reducedTo }),
  };
  return { hold, holdMin, price: JSON.stringify({ ...prices, ...bounds }) };
}

type Routes = ChatTerms['routes'];
const costliest = (routes: Routes) =>
  routes
    .map(({ price, usage }) => ({ usage, hold: holdOf(price, usage) }))
    .reduce((max, it) => (it.hold > max.hold ? it : max));
const cutRoutes = (routes: Routes, tokens: number): Routes =>
  routes.map(({ price, usage }) => {
    return { price, usage: { ...usage, completionTokens: Math.min(usage.completionTokens, tokens) } };
  });

type PriceNotes = {
  bound_prompt_tokens?: number;
  bound_completion_tokens?: number;
  cached_for_hour?: boolean;
  reduced_to_tokens?: number;
};
const snapshotOf = ({ price }: Pick<Operation, 'price'>) => parseJson(price) as PriceNotes;

/** Returns the limit of output tokens per answer if that of an operation was lowered to fit. */
export const reducedToOf = (operation: Pick<Operation, 'price'>): number | undefined =>
  snapshotOf(operation).reduced_to_tokens;

/** Returns whether an operation was made at the prices of these terms. */
export function hasPricesOf(operation: Pick<Operation, 'price'>, { prices }: Pick<ChatTerms, 'prices'>): boolean {
  const {
    bound_prompt_tokens: _,
    bound_completion_tokens: __,
    cached_for_hour: ___,
    reduced_to_tokens: ____,
    ...before
  } = snapshotOf(operation);
  return isDeepStrictEqual(before, prices);
}

/** Returns the output tokens per answer that an amount pays for on every route: their number decides which route costs most. */
const affordable = ({ routes, choices }: ChatTerms, amount: Nanos): number =>
  Math.min(...routes.map(({ price, usage }) => Math.floor(affordableCompletion(price, usage, amount) / choices)));

/** Returns the terms of an answer cut to an amount that is less than its hold; undefined if it cannot be cut so far. */
function cut(terms: ChatTerms, amount: Nanos): ChatTerms | undefined {
  const { reducible, routes, choices } = terms;
  const tokens = affordable(terms, amount);
  if (!reducible || tokens < reducible.outputTokensMin || tokens >= reducible.outputTokens) return undefined;
  return { ...terms, routes: cutRoutes(routes, choices * tokens), reducedTo: tokens };
}

/** Returns the terms cut to an amount, if they cost more and can be cut so far. */
export const cutTo = (terms: ChatTerms, amount: Nanos): ChatTerms =>
  costliest(terms.routes).hold > amount ? (cut(terms, amount) ?? terms) : terms;

/** An answer of a caller that waits for its money is not cut below this while waiting would help, unless less was requested. */
const ENOUGH_TOKENS = 8192;

/**
 * Returns the terms cut to the money of a wallet that lacks the money for them, if they can be cut so far. With `waits` the caller
 * waits while requests in flight hold the money for a longer answer.
 */
export function cutToFunds(terms: ChatTerms, { available, soon }: Funds, waits: boolean): ChatTerms {
  const now = cut(terms, available);
  if (!now || !terms.reducible || !waits) return now ?? terms;
  const isShort = (now.reducedTo as number) < Math.min(terms.reducible.outputTokens, ENOUGH_TOKENS);
  return isShort && costliest(cutTo(terms, soon).routes).hold > costliest(now.routes).hold ? terms : now;
}

/** Returns a sentence of advice for a caller that has only this amount for a request. */
export function adviceOn(terms: ChatTerms, amount: Nanos): string {
  if (terms.kind !== 'chat') return '';
  const fits = affordable(terms, amount);
  const requested = costliest(terms.routes).usage.completionTokens / terms.choices;
  const request = `It asked for up to ${requested} output tokens`;
  return fits >= 1
    ? `${request}; with max_tokens ${fits} it would fit.`
    : `${request}; no max_tokens would make it fit.`;
}
