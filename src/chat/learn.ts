import type { Clock } from '../base/clock.ts';
import { parseJson } from '../base/parse-json.ts';
import type { Reader } from '../db/handle.ts';
import { keepLearnedBound, type LearnedBound, listLearnedBounds } from '../ledger/learned-bound.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { type Operation, operationOf } from '../ledger/operation.ts';
import type { Bounded } from '../router/bound.ts';
import { type Catalogue, fadedAt, type Learned, type Model, NOTHING_LEARNED, type Route } from '../router/catalogue.ts';
import type { Events } from '../telemetry/events.ts';

/** A prompt with a bound below this teaches the tokens added to each prompt; a longer one teaches a factor. */
const SHORT_TOKENS = 2000;
/** Caps on the learned values. A server that counts more is broken; the caps keep holds usable. */
const OVERHEAD_TOKENS_MAX = 64_000;
const PERMILLE_MAX = 64_000;
/** The largest context_length that the configuration accepts. */
const CONTEXT_TOKENS_MAX = 1e8;
/** Seconds after which a bound that is still seen is written again, so that it does not begin to fade. */
const KEPT_SECONDS = 3600;

export type LearnApp = { ledger: Ledger; clock: Clock; events: Events; catalogue: Catalogue };

/** Returns the settings that a route's bound is computed from; when one of them changes, learning starts over. */
const basisOf = ({ contextLength, tokensPerByte, promptOverheadTokens }: Route): string =>
  `context_length ${contextLength}, tokens_per_byte ${tokensPerByte}, prompt_overhead_tokens ${promptOverheadTokens}`;

/**
 * Returns whether the same is learned of two routes: several models may have one upstream model, with context lengths of their own,
 * and its row in the books is one.
 */
const areAlike = (a: Route, b: Route): boolean =>
  isOf(a, b) && a.tokensPerByte === b.tokensPerByte && a.promptOverheadTokens === b.promptOverheadTokens;

/**
 * Raises the bound of a route so that it covers `counted` prompt tokens, and renews the learned values as long as they are seen; so
 * does each other model that has the route. Does nothing where a reload has removed it, or changed what its bound is computed from.
 * The new bound applies at once, and is stored in the books: its write is queued before the settlement of the same request.
 * Requests with images, or with switches for the template, teach nothing about text: one image above `image_tokens`, or a template
 * that writes pages for a switch, would raise the bound of every caller's text, by as much as its sender likes.
 */
export function learnBound(
  { ledger, clock, events, catalogue }: LearnApp,
  operation: Operation,
  route: Route,
  bounded: Pick<Bounded, 'images' | 'isTemplated' | 'prompt'>,
  counted: number,
  bound: number,
): void {
  const { computed, added, count, isCut } = bounded.prompt(route);
  const excess = counted - added - computed;
  if (excess <= 0 && counted <= route.contextLength) return;
  const inForce = routesOf(catalogue).filter((it) => areAlike(it, route));
  const [first] = inForce;
  if (!first) return;
  const now = clock.now();
  const before = inForce.map((it) => it.learned).reduce((a, b) => mostOf(a, b, now));
  const learned = { ...before };
  // A count of several prompts does not show the longest one.
  if (count === 1 && counted > route.contextLength)
    learned.contextTokens = Math.min(Math.max(counted, before.contextTokens), CONTEXT_TOKENS_MAX);
  // If the context length cut the bound off, its real size is unknown; then the context length was wrong.
  if (!isCut && bounded.images === 0 && !bounded.isTemplated) {
    const { overheadTokens, permille } = fadedAt(before, now);
    if (computed < SHORT_TOKENS * count) {
      const tokens = Math.min(Math.ceil(excess / count), OVERHEAD_TOKENS_MAX);
      if (tokens > 0 && tokens >= overheadTokens) Object.assign(learned, { overheadTokens: tokens, overheadAt: now });
    } else {
      const text = counted - added - overheadTokens * count;
      const factor = Math.min(Math.ceil((1000 * text) / computed), PERMILLE_MAX);
      if (factor > 1000 && factor >= permille) Object.assign(learned, { permille: factor, factorAt: now });
    }
  }
  if (!isNews(before, learned)) return;
  for (const it of [route, ...inForce]) it.learned = fitting(learned, it);
  if (counted > bound) events.boundLearned(operation, route, counted, bound);
  const row = {
    upstream: route.upstream,
    upstreamModel: route.upstreamModel,
    basis: basisOf(first),
    ...learned,
    operationId: operation.id,
    learnedAt: now,
  };
  ledger.write(keepLearnedBound, row).catch((error) => events.failed('learned_bound', error));
}

const isNews = (before: Learned, after: Learned): boolean =>
  after.overheadTokens !== before.overheadTokens ||
  after.permille !== before.permille ||
  after.contextTokens !== before.contextTokens ||
  Math.max(after.overheadAt - before.overheadAt, after.factorAt - before.factorAt) >= KEPT_SECONDS;

/**
 * Loads the learned bounds from the database into the routes. A value learned since then is kept if more of it is left at
 * `now`.
 */
export function recallBounds(read: Reader, catalogue: Catalogue, now = 0): void {
  const rows = listLearnedBounds(read);
  const routes = routesOf(catalogue);
  for (const route of routes) {
    const row = rows.find((it) => isOf(route, it));
    if (!row || !routes.some((it) => areAlike(it, route) && basisOf(it) === row.basis)) continue;
    route.learned = fitting(mostOf(route.learned, learnedFrom(read, row, route), now), route);
  }
}

/** Returns of two learned bounds each value of which more is left at `now`. */
function mostOf(here: Learned, kept: Learned, now: number): Learned {
  const [current, stored] = [fadedAt(here, now), fadedAt(kept, now)];
  const { overheadTokens, overheadAt } = current.overheadTokens > stored.overheadTokens ? here : kept;
  const { permille, factorAt } = current.permille > stored.permille ? here : kept;
  const contextTokens = Math.max(here.contextTokens, kept.contextTokens);
  return { overheadTokens, overheadAt, permille, factorAt, contextTokens };
}

/** Returns the part of a learned bound that tells a route something. */
const fitting = (learned: Learned, { contextLength }: Route): Learned =>
  learned.contextTokens > contextLength ? learned : { ...learned, contextTokens: 0 };

/**
 * Returns the learned values of a row. A row of an earlier version has a factor, from a prompt of any length: it stays a
 * factor if the prompt was long, and becomes an overhead if it was short.
 */
function learnedFrom(read: Reader, row: LearnedBound, { promptOverheadTokens }: Route): Learned {
  const { permille, contextTokens, overheadTokens, overheadAt, factorAt, learnedAt } = row;
  if (overheadTokens !== null)
    return { overheadTokens, overheadAt: overheadAt ?? 0, permille, factorAt: factorAt ?? 0, contextTokens };
  const { usage } = operationOf(read, row.operationId);
  const { prompt_tokens: counted = 0 } = parseJson(usage ?? '{}') as { prompt_tokens?: number };
  const text = Math.max(0, counted - promptOverheadTokens);
  const computed = Math.floor((1000 * text) / permille);
  if (computed >= SHORT_TOKENS) return { ...NOTHING_LEARNED, permille, factorAt: learnedAt, contextTokens };
  const tokens = Math.min(text - computed, OVERHEAD_TOKENS_MAX);
  return { ...NOTHING_LEARNED, overheadTokens: tokens, overheadAt: learnedAt, contextTokens };
}

/** The learned bound of a route at the time when it was forgotten. */
type Forgotten = { upstream: string; upstreamModel: string } & Learned;

/** Forgets the learned bounds of a model's routes, in the books and in every model that has one of the routes. */
export async function forgetBounds(
  { ledger, clock, events }: Omit<LearnApp, 'catalogue'>,
  { routes }: Model,
  catalogue: () => Catalogue,
): Promise<Forgotten[]> {
  const now = clock.now();
  const forgotten: Forgotten[] = [];
  for (const row of listLearnedBounds(ledger.read)) {
    const route = routes.find((it) => isOf(it, row));
    if (!route) continue;
    const learned = learnedFrom(ledger.read, row, route);
    if (!isNews(NOTHING_LEARNED, learned)) continue;
    await ledger.write(keepLearnedBound, { ...row, ...NOTHING_LEARNED, learnedAt: now });
    for (const it of routesOf(catalogue())) if (isOf(it, row)) it.learned = NOTHING_LEARNED;
    const { upstream, upstreamModel } = row;
    events.boundForgotten(upstream, upstreamModel, learned);
    forgotten.push({ upstream, upstreamModel, ...learned });
  }
  return forgotten;
}

const routesOf = (catalogue: Catalogue): readonly Route[] => catalogue.list.flatMap(({ routes }) => routes);
const isOf = (route: Route, row: Pick<LearnedBound, 'upstream' | 'upstreamModel'>): boolean =>
  row.upstream === route.upstream && row.upstreamModel === route.upstreamModel;
