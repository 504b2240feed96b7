import type { Clock } from '../clock.ts';
import type { Reader } from '../db/handle.ts';
import type { Events } from '../events.ts';
import { listLearnedBounds } from '../ledger/learned-bound.ts';
import type { Ledger } from '../ledger/ledger.ts';
import type { Operation } from '../ledger/operation.ts';
import { keepLearnedBound } from '../ledger/writes.ts';
import type { Bounded } from '../router/bound.ts';
import type { Catalogue, Route } from '../router/catalogue.ts';

/** Cap of the raised bound. A server that counts 64 times the computed bound is broken; the cap keeps holds usable. */
const PERMILLE_MAX = 64_000;
/** The largest context_length that the configuration accepts. */
const CONTEXT_TOKENS_MAX = 1e8;

export type LearnApp = { ledger: Ledger; clock: Clock; events: Events };

/** Returns the settings that a route's bound is computed from; when one of them changes, learning starts over. */
const basisOf = ({ contextLength, tokensPerByte, promptOverheadTokens }: Route): string =>
  `context_length ${contextLength}, tokens_per_byte ${tokensPerByte}, prompt_overhead_tokens ${promptOverheadTokens}`;

/**
 * Raises the bound of a route so that `counted` prompt tokens would have been within it. It holds at once, and is kept in
 * the books: it is queued before the settlement that it was found in. Nothing is learned of the text of a request with
 * images, or with switches for the template: one image above `image_tokens`, or a template that writes pages for a switch, would
 * raise the bound of everybody's text, by as much as its sender likes.
 */
export function learnBound(
  { ledger, clock, events }: LearnApp,
  operation: Operation,
  route: Route,
  bounded: Pick<Bounded, 'images' | 'isTemplated' | 'prompt'>,
  counted: number,
  bound: number,
): void {
  const before = route.learned;
  const { computed, added, count, isCut } = bounded.prompt(route);
  // A count of several prompts says nothing of the longest.
  const contextTokens =
    count === 1 && counted > route.contextLength
      ? Math.min(Math.max(counted, before.contextTokens), CONTEXT_TOKENS_MAX)
      : before.contextTokens;
  // If the context length cut the bound off, its real size is unknown; then the context length was wrong.
  const isTextUnknown = isCut || bounded.images > 0 || bounded.isTemplated;
  const permille = isTextUnknown
    ? before.permille
    : Math.min(Math.max(before.permille, Math.ceil((1000 * (counted - added)) / computed)), PERMILLE_MAX);
  if (permille === before.permille && contextTokens === before.contextTokens) return;
  route.learned = { permille, contextTokens };
  events.boundLearned(operation, route, counted, bound);
  const row = {
    upstream: route.upstream,
    upstreamModel: route.upstreamModel,
    basis: basisOf(route),
    ...route.learned,
    operationId: operation.id,
    learnedAt: clock.now(),
  };
  ledger.write(keepLearnedBound, row).catch((error) => events.failed('learned_bound', error));
}

/** Loads the learned bounds from the database into the routes. What a route has learned since is kept. */
export function recallBounds(read: Reader, catalogue: Catalogue): void {
  const rows = listLearnedBounds(read);
  for (const route of catalogue.list.flatMap((model) => model.routes)) {
    const row = rows.find((it) => it.upstream === route.upstream && it.upstreamModel === route.upstreamModel);
    if (row?.basis !== basisOf(route)) continue;
    const { permille, contextTokens } = route.learned;
    route.learned = {
      permille: Math.max(permille, row.permille),
      contextTokens: Math.max(contextTokens, row.contextTokens),
    };
  }
}
