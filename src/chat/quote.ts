import type { Nanos } from '../base/money.ts';
import type { RefusalData } from '../base/refusal.ts';
import type { Config } from '../config/config.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Tenant } from '../ledger/tenant.ts';
import type { AnswerRooms } from '../router/answer-room.ts';
import type { ReadApart } from '../router/apart.ts';
import type { Bounded } from '../router/bound.ts';
import type { Catalogue, Model } from '../router/catalogue.ts';
import type { Circuits } from '../router/circuit.ts';
import type { TranscriptMemory } from '../router/transcript.ts';
import type { Upstream } from '../router/upstream.ts';
import type { UpstreamOutages } from '../router/upstream-outages.ts';
import type { PaidApp, PaidRequest, Quote } from '../spend/spend.ts';
import type { KeptAnswers } from './kept-answers.ts';
import type { Place } from './retry.ts';
import { type ChatTerms, fitting, orderOf } from './terms.ts';

export type ChatApp = PaidApp & {
  /** Reads the answers of model servers to a tenant, large ones in another thread, where tenants take turns. */
  readApart: (tenant: Tenant) => ReadApart;
  answerRooms: AnswerRooms;
  keptAnswers: KeptAnswers;
  /** The memory in use by a tree of wallets. */
  memory: { open(treeId: string): TranscriptMemory & { close(): void } };
  catalogue: Catalogue;
  upstreams: ReadonlyMap<string, Upstream>;
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
  /** The client's place in the attempt, if it sent no key and a retry is recognised by its body. */
  place?: Place | undefined;
};
export type Detail = ReturnType<ChatRequest['prepare']> & {
  /** Returns the part of an outcome that decides whether the answer is stored for replays. Called when the answer has come. */
  keep: (answer: () => Buffer | null) => { answer: Buffer | null; keptSeconds: number };
  /** The upstreams of the catalogue that the model came from: a reload does not change them for a priced request. */
  upstreams: ChatApp['upstreams'];
};

/** An answer of a caller that waits for its money is not cut below this while waiting would help, unless less was requested. */
const ENOUGH_TOKENS = 8192;

/**
 * Prices a request at the most expensive of the model's routes, because any of them may answer. With `earlier`, whose hold
 * is to be taken over, an answer that can be shorter is cut to fit it. `waits`: the request waits for money rather than
 * being cut short.
 */
export function quoteChat(
  { model, bounded }: ReturnType<ChatRequest['prepare']>,
  upstreams: ChatApp['upstreams'],
  keep: Detail['keep'],
  maxPrice: Nanos | undefined,
  waits: boolean,
  earlier?: Pick<Operation, 'hold'>,
): Quote<Detail, ChatTerms> {
  const { choices, reducible } = bounded;
  const termsNow = (): ChatTerms => ({
    kind: model.kind,
    priceText: model.priceText,
    choices,
    routes: bounded.routes.map((route) => ({ price: route.price, usage: bounded.maxUsage(route) })),
    reducible,
    reducedTo: bounded.reducedTo(),
    maxPrice,
    enough: waits ? ENOUGH_TOKENS : 0,
  });
  let terms = termsNow();
  const shorten = (left: Nanos) => {
    const fits = orderOf(terms).hold > left ? fitting(terms, left) : undefined;
    if (fits === undefined) return;
    bounded.reduceTo(fits);
    terms = termsNow();
  };
  // A limit named by the caller is cut to the money in the wallet, not to the key's price limit.
  if (maxPrice !== undefined && !reducible?.isNamed) shorten(maxPrice);
  if (earlier) shorten(earlier.hold);
  const { hold, price } = orderOf(terms);
  return {
    hold,
    price,
    subject: model.id,
    detail: { model, bounded, keep, upstreams },
    terms,
    reduceTo: bounded.reduceTo,
  };
}
