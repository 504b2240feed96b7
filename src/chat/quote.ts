import { formatUsd, type Nanos } from '../base/money.ts';
import { Refusal, type RefusalData, refusedFrom } from '../base/refusal.ts';
import type { Config } from '../config/config.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Tenant } from '../ledger/tenant.ts';
import type { AnswerRooms } from '../router/answer-room.ts';
import type { ReadApart } from '../router/apart.ts';
import type { Balancer } from '../router/balancer.ts';
import type { Bounded } from '../router/bound.ts';
import type { Catalogue, Model } from '../router/catalogue.ts';
import type { Circuits } from '../router/circuit.ts';
import type { TranscriptMemory } from '../router/transcript.ts';
import type { Upstream } from '../router/upstream.ts';
import type { UpstreamOutages } from '../router/upstream-outages.ts';
import type { PaidApp, PaidQuote, PaidRequest } from '../spend/spend.ts';
import type { KeptAnswers } from './kept-answers.ts';
import type { RetryClaim } from './retry.ts';
import { adviceOn, type ChatTerms, cutTo, cutToFunds, hasPricesOf, orderOf, termsOf } from './terms.ts';

export type ChatApp = PaidApp & {
  /** Reads the answers of model servers to a tenant, large ones in another thread, where tenants take turns. */
  readApart: (tenant: Tenant) => ReadApart;
  answerRooms: AnswerRooms;
  keptAnswers: KeptAnswers;
  /** The memory in use by a tree of wallets. */
  memory: { open(treeId: string): TranscriptMemory & { close(): void } };
  catalogue: Catalogue;
  upstreams: ReadonlyMap<string, Upstream>;
  balancer: Balancer;
  circuits: Circuits;
  upstreamOutages: UpstreamOutages;
  config: Pick<Config, 'router'>;
};
export type ChatRequest = Omit<PaidRequest, 'kind'> & {
  /**
   * Finds the model and bounds the request; throws a refusal if it is not offered, malformed or not priced. Not called for
   * a replay.
   */
  prepare: () => { model: Model; bounded: Bounded };
  /** The price limit of one request, if the caller's key has one. */
  maxPrice?: Nanos | undefined;
  /** Returns the reason why the caller may ask no more: its key was revoked while the request waited. */
  forbidden?: (() => RefusalData | undefined) | undefined;
  /** The conversation that it belongs to, as a hash: a pool of servers answers all of it by one of them. */
  conversation?: string | undefined;
  /** The client's claim to the attempt, if it sent no key and a retry is recognised by its body. */
  claim?: RetryClaim | undefined;
};
export type Detail = ReturnType<ChatRequest['prepare']> & {
  /** Returns the part of an outcome that decides whether the answer is stored for replays. Called when the answer has come. */
  keep: (answer: () => Buffer | null) => { answer: Buffer | null; keptSeconds: number };
  /** The upstreams of the catalogue that the model came from: a reload does not change them for a priced request. */
  upstreams: ChatApp['upstreams'];
};

type Prepared = ReturnType<ChatRequest['prepare']>;
/** The rules of the caller for what it pays. */
type Rules = Pick<ChatRequest, 'maxPrice' | 'forbidden' | 'waitsForFunds'>;
type ChatQuote<A> = PaidQuote<A, undefined>;
type Steps<A> = Pick<ChatQuote<A>, 'call' | 'enter' | 'leave'>;

/**
 * Prices a request at the most expensive of its model's routes, because any of them may answer. An answer that can be shorter is
 * cut to the money of its wallet where that is too little.
 */
export function quoteChat<A>(prepared: Prepared, rules: Rules, steps: Steps<A>): ChatQuote<A> {
  const { maxPrice, forbidden, waitsForFunds = false } = rules;
  const whole = termsFor(prepared, maxPrice);
  const refused = (available?: Nanos) =>
    forbidden?.() ?? (maxPrice === undefined ? undefined : tooDear(whole, maxPrice, available));
  return {
    ...quoteOf(whole, prepared, steps),
    forbidden: () => refused(),
    cut: (funds) => ({
      ...quoteOf(cutToFunds(whole, funds, waitsForFunds), prepared, steps),
      forbidden: () => refused(funds.available),
      advice: adviceOn(whole, funds.available),
    }),
  };
}

/**
 * Prices a request within the hold of an earlier attempt at it. Returns undefined if that hold does not cover it, or the prices
 * have changed.
 */
export function quoteWithin<A>(
  prepared: Prepared,
  { maxPrice, forbidden }: Rules,
  steps: Steps<A>,
  earlier: Operation,
): ChatQuote<A> | undefined {
  const terms = cutTo(termsFor(prepared, maxPrice), earlier.hold);
  const quote = { ...quoteOf(terms, prepared, steps), forbidden };
  return quote.order.hold <= earlier.hold && hasPricesOf(earlier, terms) ? quote : undefined;
}

/** Returns the terms of a request: cut to the price limit of the key, unless the caller named the output limit. */
function termsFor({ model, bounded }: Prepared, maxPrice: Nanos | undefined): ChatTerms {
  const terms = termsOf(model, bounded);
  return maxPrice === undefined || bounded.reducible?.isNamed ? terms : cutTo(terms, maxPrice);
}

function quoteOf<A>(terms: ChatTerms, { model, bounded }: Prepared, { call, ...steps }: Steps<A>): ChatQuote<A> {
  return {
    order: { ...orderOf(terms), subject: model.id },
    terms: undefined,
    call(operation, waiters) {
      if (terms.reducedTo !== undefined) bounded.reduceTo(terms.reducedTo);
      return call(operation, waiters);
    },
    ...steps,
  };
}

/** Returns the refusal of a request above the price limit of its key; undefined for others. */
function tooDear(terms: ChatTerms, maxPrice: Nanos, available: Nanos = maxPrice): RefusalData | undefined {
  const { hold } = orderOf(terms);
  if (hold <= maxPrice) return undefined;
  const message = `This request needs ${formatUsd(hold)} USD at most, and this gateway key allows ${formatUsd(maxPrice)} USD for one request.`;
  const advice = adviceOn(terms, available < maxPrice ? available : maxPrice);
  return refusedFrom(new Refusal('insufficient_funds', `${message} ${advice}`.trim()));
}
