import * as v from 'valibot';
import { formatDecimal, formatUsd, Nanos, parseDecimal } from '../base/money.ts';
import { Secret } from '../base/secret.ts';
import { writtenAs } from '../base/written.ts';

/** Schemas of the router's settings: upstreams, models and their prices (design, sections 4 and 8). */

export const wholeSeconds = (min: number, max: number) =>
  v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max));
const whole = wholeSeconds;

export const url = v.pipe(
  v.string(),
  v.check((text) => /^https?:\/\/[^\s]+$/.test(text) && URL.canParse(text), 'not an http:// or https:// address'),
  // The credentials would not be used, and addresses are printed.
  v.check((text) => !/^\w+:\/\/[^/?#]*@/.test(text), 'holds a user name or a password: give the key as api_key'),
  v.transform((text) => text.replace(/\/+$/, '')),
);

/** Prices are exact: kept as integer nano-dollars per million tokens (design, section 8). */
const NANOS_PER_MILLION_FROM_TOKEN = 15;
const NANOS_DECIMALS = 9;
const PRICE_MAX = 10n ** 13n; // USD 10,000 per million tokens, or per request; more is probably a typing error
const price = (decimals: number) =>
  v.pipe(
    v.string(),
    v.rawTransform(({ dataset, addIssue, NEVER }) => {
      try {
        const parsed = parseDecimal(dataset.value, decimals);
        if (parsed <= PRICE_MAX) return parsed;
        const isPerToken = decimals === NANOS_PER_MILLION_FROM_TOKEN;
        const meant = `: ${dataset.value} USD per token are ${formatUsd(Nanos(parsed))} USD per million tokens. Did you mean pricing_per_million?`;
        addIssue({ message: `not a believable price: more than USD 10,000${isPerToken ? meant : ''}` });
      } catch {
        const exact = `not an exact price: a plain decimal number with at most ${decimals} decimals`;
        addIssue({ message: decimals === NANOS_DECIMALS && isFine(dataset.value) ? `${exact}. ${PER_TOKEN}` : exact });
      }
      return NEVER;
    }),
    writtenAs((scaled: bigint) => formatDecimal(scaled, decimals, 2)),
  );

const PER_TOKEN = 'A price of one token belongs under pricing';
/** Returns whether a price has more decimals than one per million tokens may have, as prices per token do. */
function isFine(text: string): boolean {
  try {
    parseDecimal(text, NANOS_PER_MILLION_FROM_TOKEN);
    return true;
  } catch {
    return false;
  }
}

/** Token rates. A special rate that is not set falls back to the plain one: nothing is free by omission. */
const rates = (decimals: number) => ({
  prompt: v.optional(price(decimals)),
  completion: v.optional(price(decimals)),
  /** Rates of prompt tokens read from the upstream's cache or written to it, and of reasoning tokens in the completion. */
  input_cache_read: v.optional(price(decimals)),
  input_cache_write: v.optional(price(decimals)),
  /** Rate of prompt tokens written to be kept for an hour. */
  input_cache_write_1h: v.optional(price(decimals)),
  internal_reasoning: v.optional(price(decimals)),
});
/** A number, given as text: config.ts keeps every number under a price as it was written. */
const tokenCount = v.pipe(
  v.string(),
  v.regex(/^\d{1,9}$/, 'must be a whole number'),
  v.transform(Number),
  whole(1, 1e8),
);
const MISSING_PRICE = 'give prompt and completion, or request alone: a price that is left out would be a price of 0';
const pricing = (decimals: number) =>
  v.pipe(
    v.strictObject({
      ...rates(decimals),
      request: v.optional(price(NANOS_DECIMALS)),
      /** Price per image in the request. */
      image: v.optional(price(NANOS_DECIMALS)),
      /** A request whose prompt exceeds `above_tokens` is charged at these rates: the whole prompt and the completion. */
      tiers: v.optional(
        v.pipe(
          v.array(v.strictObject({ above_tokens: tokenCount, ...rates(decimals) })),
          v.check(
            (tiers) => tiers.every((it, i) => i === 0 || it.above_tokens > (tiers[i - 1]?.above_tokens as number)),
            'the tiers must be in ascending order of above_tokens',
          ),
          v.check(
            (tiers) => tiers.every(({ prompt, completion }) => prompt !== undefined && completion !== undefined),
            'a tier needs prompt and completion',
          ),
        ),
        [],
      ),
    }),
    v.check(
      ({ prompt, request, tiers, image: _, ...special }) =>
        prompt !== undefined || (request !== undefined && !tiers.length && !Object.keys(special).length),
      MISSING_PRICE,
    ),
  );

/** Members of a value that may have failed its schema. */
type UncheckedMembers = Readonly<Record<string, unknown>>;
const partsOf = (value: unknown): UncheckedMembers =>
  typeof value === 'object' && value !== null ? (value as UncheckedMembers) : {};
const listOf = (value: unknown): UncheckedMembers[] => (Array.isArray(value) ? value.map(partsOf) : []);
/** Returns a server of a pool, which may be written as its name alone. */
const memberOf = <T>(it: T | string) => (typeof it === 'string' ? { upstream: it } : it);
const membersOf = (value: unknown): UncheckedMembers[] => (Array.isArray(value) ? listOf(value.map(memberOf)) : []);

/** A route to a model: an upstream, the model's name there, and its price there. */
const route = {
  upstream: v.string(),
  upstream_model: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(500))),
  /** The request field in which the upstream expects the output limit. */
  output_limit: v.optional(v.picklist(['max_tokens', 'max_completion_tokens'])),
  /** Set above 1 for a tokenizer or template that makes more tokens of a prompt than its rendered text has bytes. */
  tokens_per_byte: v.optional(whole(1, 64)),
  /** Prompt tokens that the server adds by itself, for example a system prompt or a long template preamble. */
  prompt_overhead_tokens: v.optional(whole(0, 1e8)),
  pricing: v.optional(pricing(NANOS_PER_MILLION_FROM_TOKEN)),
  pricing_per_million: v.optional(pricing(NANOS_DECIMALS)),
};
const PRICED_TWICE = 'give pricing or pricing_per_million, not both';

const Fallback = v.pipe(
  v.strictObject({ ...route, context_length: v.optional(whole(1, 1e8)) }),
  v.partialCheck([['pricing'], ['pricing_per_million']], (it) => !(it.pricing && it.pricing_per_million), PRICED_TWICE),
);

/** A server of a pool: the name of an upstream, or a route whose other settings default to those of the model. */
const PoolMember = v.lazy((input) => (typeof input === 'string' ? v.string() : Fallback));

const Model = v.pipe(
  v.strictObject({
    id: v.pipe(v.string(), v.minLength(1), v.maxLength(200)),
    kind: v.optional(v.picklist(['chat', 'embeddings', 'rerank']), 'chat'),
    ...route,
    upstream: v.optional(v.string()),
    /** A pool of equal servers, in place of `upstream`. */
    upstreams: v.optional(v.pipe(v.array(PoolMember), v.minLength(1, 'names no upstream'))),
    /** The server of a pool that is asked first: that of the conversation, or the one with the fewest calls in flight. */
    balance: v.optional(v.picklist(['sticky', 'least_busy'])),
    /** Tried in this order when the earlier routes have clearly refused. Settings that are not given default to those above. */
    fallbacks: v.optional(v.array(Fallback), []),
    context_length: whole(1, 1e8),
    max_output_tokens: v.optional(whole(1, 1e8)),
    /** The limit set on a request that names none. Default: 4,096, or max_output_tokens if that is lower. */
    default_output_tokens: v.optional(whole(1, 1e8)),
    /** The maximum prompt tokens of one image. Default: the whole context length. */
    image_tokens: v.optional(whole(0, 1e8)),
    /** Allows images as http(s) URLs, which the model server fetches. Otherwise only `data:` URLs are allowed. */
    image_urls: v.optional(v.boolean(), false),
  }),
  v.partialCheck([['pricing'], ['pricing_per_million']], (it) => !(it.pricing && it.pricing_per_million), PRICED_TWICE),
  v.forward(
    v.partialCheck(
      [['kind'], ['max_output_tokens']],
      ({ kind, max_output_tokens: max }) => (kind === 'chat') === (max !== undefined),
      'is required for a chat model, and not allowed for one of another kind',
    ),
    ['max_output_tokens'],
  ),
  v.forward(
    v.partialCheck(
      [['max_output_tokens'], ['default_output_tokens']],
      ({ max_output_tokens: max = 0, default_output_tokens: standard = 0 }) => standard <= max,
      'is above max_output_tokens',
    ),
    ['default_output_tokens'],
  ),
  v.rawCheck(({ dataset, addIssue }) => {
    if (typeof dataset.value !== 'object' || dataset.value === null) return; // Another fault is reported.
    const model = partsOf(dataset.value);
    const fault = (key: 'upstream' | 'upstreams' | 'balance' | 'fallbacks', message: string) =>
      addIssue({ message, path: [{ type: 'object', origin: 'value', input: model, key, value: model[key] }] });
    if (model.upstream === undefined && model.upstreams === undefined) fault('upstream', 'is required, or upstreams');
    if (model.upstream !== undefined && model.upstreams !== undefined)
      fault('upstreams', 'give upstream or upstreams, not both');
    if (model.balance !== undefined && model.upstreams === undefined) fault('balance', 'is for a pool: give upstreams');
    const nameOf = (it: UncheckedMembers) => `${it.upstream}\n${it.upstream_model ?? model.upstream_model ?? model.id}`;
    const names = membersOf(model.upstreams).map(nameOf);
    if (new Set(names).size < names.length) fault('upstreams', 'names the same model of one upstream twice');
    if (listOf(model.fallbacks).some((it) => names.includes(nameOf(it))))
      fault('fallbacks', 'names a server that is in the pool already');
  }),
  v.rawCheck(({ dataset, addIssue }) => {
    const first = partsOf(dataset.value);
    if (first.kind !== 'chat') return;
    for (const it of [first, ...membersOf(first.upstreams), ...listOf(first.fallbacks)])
      for (const key of ['pricing', 'pricing_per_million'] as const) {
        const value = it[key];
        const { prompt, completion } = partsOf(value);
        if (prompt !== undefined && completion === undefined)
          addIssue({ message: MISSING_PRICE, path: [{ type: 'object', origin: 'value', input: it, key, value }] });
      }
  }),
);

/** The delay and the policy by which a chat with an uncertain outcome is resolved (design 2.9). */
const afterSeconds = whole(0, 30 * 86_400);
const policy = v.picklist(['charge', 'release']);

/** Stops a stream when the last of its clients has gone, or finishes it (docs/decisions/0075). */
const onCancel = v.picklist(['stop', 'finish']);

/** Members of a chat completion that Purser reads and rewrites, or accepts with one value only. */
export const HANDLED_MEMBERS = [
  ...['model', 'stream', 'n', 'max_tokens', 'max_completion_tokens'],
  ...['store', 'service_tier', 'modalities', 'metadata'],
] as const;
const NOT_TO_FORWARD = new Set<string>([...HANDLED_MEMBERS, 'messages', 'tools', 'stream_options', 'cache_control']);

/** APIs beside chat completions in which an upstream may be asked, where its settings name them. */
const WIRES = ['messages', 'responses'] as const;
export type NativeWire = (typeof WIRES)[number];
export const isWire = (name: string): name is NativeWire => (WIRES as readonly string[]).includes(name);

/** An address to which paths are appended. */
export const baseUrl = v.pipe(
  url,
  v.check((text) => !/[?#]/.test(text), 'must not have a query or a fragment'),
);

const Upstream = v.pipe(
  v.strictObject({
    name: v.pipe(v.string(), v.minLength(1)),
    base_url: baseUrl,
    api_key: v.optional(
      v.pipe(
        v.string(),
        v.trim(),
        v.regex(/^[\x20-\x7e]*$/, 'must be printable ASCII'),
        v.transform((text) => (text === '' ? undefined : new Secret(text))),
      ),
    ),
    /** Time limits of the whole call, of its first byte (default: the same) and of connecting. */
    timeout_seconds: v.optional(whole(1, 3600), 300),
    first_byte_timeout_seconds: v.optional(whole(1, 3600)),
    connect_timeout_seconds: v.optional(whole(1, 600), 10),
    /** Maximum number of concurrent calls. The next one is refused, or goes to the next upstream of its model. */
    max_concurrent: v.optional(whole(1, 1_000_000)),
    /** Members of a request, in any API, that this upstream accepts beside those that all accept. Nothing about them is priced. */
    forward: v.optional(
      v.array(
        v.pipe(
          v.string(),
          v.regex(/^\w{1,80}$/, 'must be the name of a member'),
          v.check((name) => !NOT_TO_FORWARD.has(name), 'is a member that Purser reads itself'),
        ),
      ),
    ),
    /** Requests in these APIs are passed on as they came. Others, and those for other upstreams, become chat completions. */
    wires: v.optional(
      v.pipe(
        v.array(v.picklist(WIRES)),
        v.check((list) => new Set(list).size === list.length, 'names one twice'),
      ),
    ),
    /** Overrides `router.uncertain` for calls to this upstream. */
    uncertain: v.optional(
      v.strictObject({ after_seconds: v.exactOptional(afterSeconds), policy: v.exactOptional(policy) }),
    ),
    /** Overrides `router.on_cancel` for calls to this upstream. */
    on_cancel: v.optional(onCancel),
  }),
  v.partialCheck(
    [['first_byte_timeout_seconds'], ['timeout_seconds']],
    (it) => (it.first_byte_timeout_seconds ?? 0) <= it.timeout_seconds,
    'first_byte_timeout_seconds is longer than timeout_seconds',
  ),
);

export const Router = v.pipe(
  v.strictObject({
    upstreams: v.optional(v.array(Upstream), []),
    models: v.optional(v.array(Model), []),
    uncertain: v.optional(
      v.strictObject({ after_seconds: v.optional(afterSeconds, 900), policy: v.optional(policy, 'charge') }),
      {},
    ),
    on_cancel: v.optional(onCancel, 'stop'),
    /** The seconds for which a stream continues without a client before it is stopped: the same request may come again. */
    cancel_grace_seconds: v.optional(whole(0, 600), 3),
  }),
  v.rawCheck(({ dataset, addIssue }) => {
    // Runs even when there are other faults: then a member may be missing or of any type, and only text can be compared.
    const input = partsOf(dataset.value);
    const [upstreams, models] = [listOf(input.upstreams), listOf(input.models)];
    const fault = (key: 'upstreams' | 'models', index: number, field: string, message: string) => {
      const list = input[key] as unknown[];
      addIssue({
        message,
        path: [
          { type: 'object', origin: 'value', input, key, value: list },
          { type: 'array', origin: 'value', input: list, key: index, value: list[index] },
          { type: 'object', origin: 'value', input: list[index] as object, key: field, value: undefined },
        ] as never,
      });
    };
    const isSecond = (list: UncheckedMembers[], i: number, field: string) =>
      typeof list[i]?.[field] === 'string' && list.findIndex((other) => other[field] === list[i]?.[field]) !== i;
    // Where a name is missing, it may be the one that a model asks for.
    const areNamed = Array.isArray(input.upstreams) && upstreams.every(({ name }) => typeof name === 'string');
    const isMissing = (name: unknown) =>
      areNamed && typeof name === 'string' && !upstreams.some((upstream) => upstream.name === name);
    upstreams.forEach(({ name }, i) => {
      if (isSecond(upstreams, i, 'name'))
        fault('upstreams', i, 'name', `a second upstream is named ${JSON.stringify(name)}`);
    });
    models.forEach(({ id, upstream, upstreams: pool, fallbacks }, i) => {
      if (isSecond(models, i, 'id')) fault('models', i, 'id', `a second model has the id ${JSON.stringify(id)}`);
      if (isMissing(upstream)) fault('models', i, 'upstream', `no upstream is named ${JSON.stringify(upstream)}`);
      for (const [field, routes] of [
        ['upstreams', membersOf(pool)],
        ['fallbacks', listOf(fallbacks)],
      ] as const)
        for (const other of routes)
          if (isMissing(other.upstream))
            fault('models', i, field, `no upstream is named ${JSON.stringify(other.upstream)}`);
    });
  }),
);

export type RouterConfig = v.InferOutput<typeof Router>;
export type ModelConfig = RouterConfig['models'][number];
type RouteConfig = v.InferOutput<typeof Fallback>;

/** Returns the routes to a model, as far as they are written: those of its pool or its only upstream, and its fallbacks. */
export function routesOf({ upstream, upstreams, fallbacks }: ModelConfig): {
  pool: RouteConfig[];
  fallbacks: RouteConfig[];
} {
  return { pool: (upstreams ?? [upstream as string]).map(memberOf), fallbacks };
}
export type PricingConfig = NonNullable<ModelConfig['pricing']>;
export type UpstreamConfig = RouterConfig['upstreams'][number];
export type UncertainPolicy = RouterConfig['uncertain'];
