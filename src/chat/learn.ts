import type { Clock } from '../clock.ts';
import type { Reader } from '../db/handle.ts';
import type { Events } from '../events.ts';
import { keepLearnedBound, listLearnedBounds } from '../ledger/learned-bound.ts';
import type { Ledger } from '../ledger/ledger.ts';
import type { Operation } from '../ledger/operation.ts';
import type { Catalogue, Route } from '../router/catalogue.ts';

/**
 * Cap of the raised bound. A server that counts 64 times the bytes of a prompt is broken; the cap keeps holds usable.
 */
const PERMILLE_MAX = 64_000;
/** The largest context_length that the configuration accepts. */
const CONTEXT_TOKENS_MAX = 1e8;

export type LearnApp = { ledger: Ledger; clock: Clock; events: Events };

/** Returns the settings that a route's bound is computed from; when one of them changes, learning starts over. */
const basisOf = ({ contextLength, tokensPerByte, promptOverheadTokens }: Route): string =>
  `context_length ${contextLength}, tokens_per_byte ${tokensPerByte}, prompt_overhead_tokens ${promptOverheadTokens}`;

/**
 * Raises the bound of a route so that `counted` prompt tokens would have been within it. Takes effect at once, and is
 * stored: the write is queued before the settlement that revealed the count, so no settlement is on disk without it.
 */
export function learnBound(
  { ledger, clock, events }: LearnApp,
  operation: Operation,
  route: Route,
  counted: number,
  bound: number,
): void {
  const before = route.learned;
  const contextTokens =
    counted > route.contextLength
      ? Math.min(Math.max(counted, before.contextTokens), CONTEXT_TOKENS_MAX)
      : before.contextTokens;
  // If the context length had capped the bound, the bound itself is not known to be wrong: the context length was.
  const wasCut = bound >= Math.max(route.contextLength, before.contextTokens);
  const permille = wasCut
    ? before.permille
    : Math.min(Math.max(before.permille, Math.ceil((before.permille * counted) / Math.max(bound, 1))), PERMILLE_MAX);
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
  ledger.write((tx) => keepLearnedBound(tx, row)).catch((error) => events.failed('learned_bound', error));
}

/** Loads the learned bounds from the database into the routes. */
export function recallBounds(read: Reader, catalogue: Catalogue): void {
  const rows = listLearnedBounds(read);
  for (const route of catalogue.list.flatMap((model) => model.routes)) {
    const row = rows.find((it) => it.upstream === route.upstream && it.upstreamModel === route.upstreamModel);
    if (row?.basis === basisOf(route)) route.learned = { permille: row.permille, contextTokens: row.contextTokens };
  }
}
