import { Nanos } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import type { Config } from '../config/config.ts';
import { type ModelConfig, type NativeWire, type PricingConfig, routesOf } from '../config/router.ts';
import { describePrice, type Price, type Rates } from './price.ts';

/** A route to a model: an upstream, the model's name there, its limits and its price. */
export type Route = {
  upstream: string;
  upstreamModel: string;
  outputLimit: 'max_tokens' | 'max_completion_tokens';
  /** Limit of prompt and answer together. */
  contextLength: number;
  tokensPerByte: number;
  /** Prompt tokens that the server adds by itself. */
  promptOverheadTokens: number;
  price: Price;
  /** Members sent with every chat, so that the account's settings at the upstream do not decide them. */
  forced: Readonly<Record<string, unknown>>;
  /** True if writing a prompt to the upstream's cache has a price, so that requests may ask for it. */
  cachesPrompts: boolean;
  /** True if keeping it there for an hour has a price, too. */
  cachesForHour: boolean;
  /** The APIs beside chat completions that the upstream speaks. */
  wires: readonly NativeWire[];
  /** Members that this upstream gets in addition to the common ones. */
  forward: readonly string[];
  /** Learned from counts above the bound (src/chat/learn.ts); changes while the server runs. */
  learned: Learned;
};

/** The additions to a route's bound that counts above it have taught. */
export type Learned = {
  /** Tokens that the server adds to each prompt, and the time when this number was last seen (Unix seconds). */
  overheadTokens: number;
  overheadAt: number;
  /** Thousandths of the bound by bytes, and the time when this factor was last seen. */
  permille: number;
  factorAt: number;
  /** The longest prompt counted, if above the context length; else 0. */
  contextTokens: number;
};
export const NOTHING_LEARNED: Learned = {
  overheadTokens: 0,
  overheadAt: 0,
  permille: 1000,
  factorAt: 0,
  contextTokens: 0,
};

const DAY_SECONDS = 86_400;
const HALF_LIFE_DAYS = 7;

/**
 * Returns the part of the learned bound that is left at `now`: overhead and factor halve in seven days in which they are
 * not seen, day by day. At 0 nothing has faded.
 */
export function fadedAt(
  { overheadTokens, overheadAt, permille, factorAt }: Learned,
  now: number,
): Pick<Learned, 'overheadTokens' | 'permille'> {
  const left = (at: number) => 0.5 ** (Math.max(0, Math.floor((now - at) / DAY_SECONDS)) / HALF_LIFE_DAYS);
  return {
    overheadTokens: Math.round(overheadTokens * left(overheadAt)),
    permille: 1000 + Math.round((permille - 1000) * left(factorAt)),
  };
}

/**
 * Returns an upper bound of a prompt's tokens on this route. `tokens` is its bound by bytes; `addedTokens` is that of its
 * images and documents, and the learned bound is added.
 */
export function promptBound(
  route: Route,
  tokens: number,
  addedTokens: number,
  { overheadTokens, permille }: Pick<Learned, 'overheadTokens' | 'permille'>,
): number {
  const text = Math.ceil((tokens * permille) / 1000) + overheadTokens;
  return Math.min(text + addedTokens + route.promptOverheadTokens, contextOf(route));
}

/** Returns the largest number of tokens that a prompt on this route can have. */
export const contextOf = ({ contextLength, learned }: Route): number => Math.max(contextLength, learned.contextTokens);

export type Model = {
  id: string;
  kind: ModelConfig['kind'];
  contextLength: number;
  /** 0 for embeddings and for ranking. */
  maxOutputTokens: number;
  /** Limit of one answer if the caller sets none. */
  defaultOutputTokens: number;
  /** Upper bound of the prompt tokens of one image. Undefined if images are not sold. */
  imageTokens: number | undefined;
  /** True if an image may be an http(s) URL, which the model server fetches. */
  imageUrls: boolean;
  /** In the order in which they are tried; at least one. The first `poolSize` are equal: balancer.ts orders them. */
  routes: readonly [Route, ...Route[]];
  poolSize: number;
  balance: 'sticky' | 'least_busy';
  /** The prices of all routes, as the operation rows have them. */
  prices: Readonly<Record<string, unknown>>;
};

/** The names of a route in an operation's usage and price. */
export type RouteName = { upstream?: string; upstream_model?: string };

/** Returns the names that distinguish a route of a model from its others; none for the only one. */
export function routeNameOf({ routes }: Pick<Model, 'routes'>, { upstream, upstreamModel }: Route): RouteName {
  if (routes.length === 1) return {};
  const isOneOfSeveral = routes.filter((it) => it.upstream === upstream).length > 1;
  return { upstream, ...(isOneOfSeveral ? { upstream_model: upstreamModel } : {}) };
}

export type Catalogue = {
  list: readonly Model[];
  /** Returns the model with this id. Throws `model_not_found`, with `kind` also for a model of another kind. */
  find(id: string, kind?: Model['kind']): Model;
  get(id: string): Model | undefined;
};

const DEFAULT_OUTPUT_TOKENS = 4096;

/** Creates the catalogue of the configured models that have a price. Models without a price are not offered. */
export function createCatalogue(config: Pick<Config, 'router'>): Catalogue {
  const list = config.router.models.flatMap((it) => toModel(it, config.router.upstreams) ?? []);
  const byId = new Map(list.map((model) => [model.id, model]));
  return {
    list,
    get: (id) => byId.get(id),
    find(id, kind) {
      const model = byId.get(id);
      if (!model) throw new Refusal('model_not_found', undefined, { param: 'model' });
      if (kind && model.kind !== kind)
        throw new Refusal('model_not_found', `The model is offered for ${model.kind} only.`, { param: 'model' });
      return model;
    },
  };
}

/** Members that OpenAI's own API takes from a project's settings if a request lacks them; other servers may not know them. */
const OPENAI_FORCED = { store: false, service_tier: 'default' };
/** A member by which OpenAI's own API finds an earlier prompt in its cache, at no cost. */
const OPENAI_FORWARDED = ['prompt_cache_key'];
const OPENAI_HOST = /(^|\.)api\.openai\.com$/;

function toModel(it: ModelConfig, upstreams: Config['router']['upstreams']): Model | undefined {
  const { pool, fallbacks } = routesOf(it);
  const pricing = priceOf(it);
  if (!pricing) return undefined;
  const settingsOf = (name: string) => {
    const { forward = [], wires = [], base_url: url } = upstreams.find((upstream) => upstream.name === name) ?? {};
    const isOpenAi = url !== undefined && OPENAI_HOST.test(new URL(url).hostname);
    return isOpenAi
      ? { forward: [...new Set([...forward, ...OPENAI_FORWARDED])], wires, forced: OPENAI_FORCED }
      : { forward, wires, forced: {} };
  };
  const price = toPrice(pricing);
  const routes = [...pool, ...fallbacks].map((way): Route => {
    const own = pricingOf(way);
    return {
      upstream: way.upstream,
      upstreamModel: way.upstream_model ?? it.upstream_model ?? it.id,
      outputLimit: way.output_limit ?? it.output_limit ?? 'max_tokens',
      contextLength: way.context_length ?? it.context_length,
      tokensPerByte: way.tokens_per_byte ?? it.tokens_per_byte ?? 1,
      promptOverheadTokens: way.prompt_overhead_tokens ?? it.prompt_overhead_tokens ?? 0,
      price: own ? toPrice(own) : price,
      ...cachingAt(own ?? pricing),
      ...settingsOf(way.upstream),
      learned: NOTHING_LEARNED,
    };
  }) as [Route, ...Route[]];
  const sellsImages = [...pool, ...fallbacks].every((way) => (pricingOf(way) ?? pricing).image !== undefined);
  const prices =
    routes.length > 1
      ? { routes: routes.map((route) => ({ ...routeNameOf({ routes }, route), ...describePrice(route.price) })) }
      : describePrice(price);
  return {
    id: it.id,
    kind: it.kind,
    contextLength: it.context_length,
    maxOutputTokens: it.max_output_tokens ?? 0,
    defaultOutputTokens: it.default_output_tokens ?? Math.min(DEFAULT_OUTPUT_TOKENS, it.max_output_tokens ?? 0),
    imageTokens: sellsImages ? (it.image_tokens ?? it.context_length) : undefined,
    imageUrls: it.image_urls,
    routes,
    poolSize: pool.length,
    balance: it.balance ?? 'sticky',
    prices,
  };
}

/**
 * Returns the price of the routes that have none of their own. A model without one is not offered; with a pool it needs
 * none where all of its routes have a price.
 */
export function priceOf(it: ModelConfig): PricingConfig | undefined {
  const { pool, fallbacks } = routesOf(it);
  const own = pricingOf(it);
  if (own || !it.upstreams) return own;
  return [...pool, ...fallbacks].every(pricingOf) ? pricingOf(pool[0] as Priced) : undefined;
}

type Priced = { pricing?: PricingConfig | undefined; pricing_per_million?: PricingConfig | undefined };
const pricingOf = (it: Priced) => it.pricing ?? it.pricing_per_million;

function cachingAt({ tiers, ...plain }: PricingConfig): Pick<Route, 'cachesPrompts' | 'cachesForHour'> {
  const arePriced = (name: 'input_cache_write' | 'input_cache_write_1h') =>
    [plain, ...tiers].every((it) => it[name] !== undefined);
  const cachesPrompts = arePriced('input_cache_write');
  return { cachesPrompts, cachesForHour: cachesPrompts && arePriced('input_cache_write_1h') };
}

function toPrice({ tiers, request = 0n, image = 0n, ...plain }: PricingConfig): Price {
  return {
    tiers: [
      { above: 0, rates: toRates(plain) },
      ...tiers.map(({ above_tokens: above, ...it }) => ({ above, rates: toRates(it) })),
    ],
    request: Nanos(request),
    image: Nanos(image),
  };
}

/** Converts configured rates; a special rate that is not set equals the plain one. */
function toRates(it: Omit<PricingConfig, 'tiers' | 'request' | 'image'>): Rates {
  const { prompt = 0n, completion = 0n } = it;
  return {
    prompt,
    completion,
    cacheRead: it.input_cache_read ?? prompt,
    cacheWrite: it.input_cache_write ?? prompt,
    cacheWriteHour: it.input_cache_write_1h ?? it.input_cache_write ?? prompt,
    reasoning: it.internal_reasoning ?? completion,
  };
}
