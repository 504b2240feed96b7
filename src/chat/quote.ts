import type { Config } from '../config/config.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Tenant } from '../ledger/tenant.ts';
import type { Nanos } from '../money.ts';
import type { RefusalData } from '../refusal.ts';
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
  /** Reads what a model server has sent to a tenant, in another thread where it is large: there tenants take turns. */
  readApart: (tenant: Tenant) => ReadApart;
  answerRooms: AnswerRooms;
  keptAnswers: KeptAnswers;
  /** What a tree of wallets has in memory. */
  memory: { open(treeId: string): TranscriptMemory & { close(): void } };
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
  /** Says why the caller may ask no more: its key was revoked while the request waited. */
  forbidden?: (() => RefusalData | undefined) | undefined;
  /** The client's place in the attempt, where it sent no key and a retry is recognised by its body. */
  place?: Place | undefined;
};
export type Detail = ReturnType<ChatRequest['prepare']> & {
  /** Returns the part of an outcome that stores the answer for replays, or does not. Asked when it has come. */
  keep: (answer: () => Buffer | null) => { answer: Buffer | null; keptSeconds: number };
  /** The upstreams of the catalogue that the model came from: a reload does not change them once a request is priced. */
  upstreams: ChatApp['upstreams'];
};

/** A caller that waits for its money is not cut below this while waiting would help, nor below what it asked for. */
const ENOUGH_TOKENS = 8192;

/**
 * Prices a request at the most expensive of the model's routes, because any of them may answer. With `earlier`, whose hold
 * is to be taken over, an answer that can be shorter is made to fit it. `waits`: it rather waits for money than is cut short.
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
    routes: model.routes.map((route) => ({ price: route.price, usage: bounded.maxUsage(route) })),
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
  // A limit that the caller named is cut to what the wallet has, not to what the key allows.
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
