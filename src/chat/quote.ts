import type { Config } from '../config/config.ts';
import { available } from '../ledger/wallet.ts';
import { formatUsd, type Nanos } from '../money.ts';
import { Refusal } from '../refusal.ts';
import type { Bounded } from '../router/bound.ts';
import type { Catalogue, Model } from '../router/catalogue.ts';
import { affordableCompletion, holdOf } from '../router/price.ts';
import type { Upstream } from '../router/upstream.ts';
import type { PaidApp, PaidRequest, Quote } from '../spend/spend.ts';

export type ChatApp = PaidApp & {
  catalogue: Catalogue;
  upstreams: ReadonlyMap<string, Upstream>;
  config: Pick<Config, 'router'>;
};
export type ChatRequest = Omit<PaidRequest, 'kind'> & {
  /**
   * Finds the model and bounds the request; throws a refusal if it is not offered, malformed or not priced. Not called
   * for a replay.
   */
  prepare: () => { model: Model; bounded: Bounded };
  /** The price limit of one request, if the caller's key has one. */
  maxPrice?: Nanos | undefined;
  /**
   * Whether to store the answer for replays. Not needed for a key that was generated for one request and is never sent
   * again.
   */
  keep?: boolean;
};
export type Detail = ReturnType<ChatRequest['prepare']> & { keep: boolean };

/** Prices a request at the most expensive of the model's routes, because any of them may answer. */
export function quoteChat(
  { model, bounded }: ReturnType<ChatRequest['prepare']>,
  keep: boolean,
  maxPrice: Nanos | undefined,
): Quote<Detail> {
  const { choices, reducible } = bounded;
  const order = () => {
    const { hold, most } = model.routes
      .map((route) => ({ most: bounded.most(route), hold: holdOf(route.price, bounded.most(route)) }))
      .reduce((costliest, it) => (it.hold > costliest.hold ? it : costliest));
    const bounds = `"bound_prompt_tokens":${most.promptTokens},"bound_completion_tokens":${most.completionTokens}`;
    return { hold, price: `${model.priceText},${bounds}}`, outputTokens: most.completionTokens / choices };
  };
  // With fewer output tokens another route may be the most expensive: the answer must be affordable on all.
  const affordable = (left: Nanos) =>
    Math.min(
      ...model.routes.map((route) =>
        Math.floor(affordableCompletion(route.price, bounded.most(route), left) / choices),
      ),
    );
  const reduce = (left: Nanos) => {
    const fits = affordable(left);
    if (!reducible || fits < reducible.outputTokensMin || fits >= reducible.outputTokens) return undefined;
    bounded.reduceTo(fits);
    return order();
  };
  let { hold, price, outputTokens } = order();
  if (maxPrice !== undefined && hold > maxPrice) ({ hold, price, outputTokens } = reduce(maxPrice) ?? order());
  const advice = (left: Nanos) => {
    if (model.kind !== 'chat') return '';
    const fits = affordable(left);
    const asked = `It asked for up to ${outputTokens} output tokens`;
    return fits >= 1 ? `${asked}; with max_tokens ${fits} it would fit.` : `${asked}; no max_tokens would make it fit.`;
  };
  return {
    hold,
    price,
    subject: model.id,
    detail: { model, bounded, keep },
    advice,
    reduce,
    limits(_, wallet) {
      if (maxPrice === undefined || hold <= maxPrice) return;
      const left = available(wallet);
      throw new Refusal(
        'insufficient_funds',
        `This request needs ${formatUsd(hold)} USD at most, and this gateway key allows ${formatUsd(maxPrice)} USD for one request. ${advice(left < maxPrice ? left : maxPrice)}`.trim(),
      );
    },
  };
}
