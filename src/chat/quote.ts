import type { Config } from '../config/config.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Nanos } from '../money.ts';
import type { Bounded } from '../router/bound.ts';
import type { Catalogue, Model } from '../router/catalogue.ts';
import type { Circuits } from '../router/circuit.ts';
import type { Upstream } from '../router/upstream.ts';
import type { UpstreamOutages } from '../router/upstream-outages.ts';
import type { PaidApp, PaidRequest, Quote } from '../spend/spend.ts';
import type { Place } from './retry.ts';
import { type ChatTerms, fitting, orderOf } from './terms.ts';

export type ChatApp = PaidApp & {
  catalogue: Catalogue;
  upstreams: ReadonlyMap<string, Upstream>;
  circuits: Circuits;
  upstreamOutages: UpstreamOutages;
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
  /** The client's place in the attempt, where it sent no key and a retry is recognised by its body. */
  place?: Place | undefined;
};
export type Detail = ReturnType<ChatRequest['prepare']> & {
  /** Returns the seconds for which the answer is stored for replays, 0 to store none. Asked when it has come. */
  keptSeconds: () => number;
  /** The upstreams of the catalogue that the model came from: a reload does not change them once a request is priced. */
  upstreams: ChatApp['upstreams'];
};

/**
 * Prices a request at the most expensive of the model's routes, because any of them may answer. With `earlier`, whose hold
 * is to be taken over, an answer that can be shorter is made to fit it.
 */
export function quoteChat(
  { model, bounded }: ReturnType<ChatRequest['prepare']>,
  upstreams: ChatApp['upstreams'],
  keptSeconds: Detail['keptSeconds'],
  maxPrice: Nanos | undefined,
  earlier?: Pick<Operation, 'hold'>,
): Quote<Detail, ChatTerms> {
  const { choices, reducible } = bounded;
  const termsNow = (): ChatTerms => ({
    kind: model.kind,
    priceText: model.priceText,
    choices,
    routes: model.routes.map((route) => ({ price: route.price, usage: bounded.maxUsage(route) })),
    reducible,
    reducedTo: bounded.reducedTo(),
    maxPrice,
  });
  let terms = termsNow();
  const shorten = (left: Nanos) => {
    const fits = orderOf(terms).hold > left ? fitting(terms, left) : undefined;
    if (fits === undefined) return;
    bounded.reduceTo(fits);
    terms = termsNow();
  };
  // A limit that the caller named is cut to what the wallet has, not to what the key allows.
  if (maxPrice !== undefined && !reducible?.isNamed) shorten(maxPrice);
  if (earlier) shorten(earlier.hold);
  const { hold, price } = orderOf(terms);
  return {
    hold,
    price,
    subject: model.id,
    detail: { model, bounded, keptSeconds, upstreams },
    terms,
    reduceTo: bounded.reduceTo,
  };
}
