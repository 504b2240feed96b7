import * as v from 'valibot';
import { parseDecimal } from '../money.ts';

/** The settings of the router: upstreams, models and their prices (design, sections 4 and 8). */

export const wholeSeconds = (least: number, most: number) =>
  v.pipe(v.number(), v.integer(), v.minValue(least), v.maxValue(most));
const whole = wholeSeconds;

export const url = v.pipe(
  v.string(),
  v.check((text) => /^https?:\/\/[^\s]+$/.test(text) && URL.canParse(text), 'not an http:// or https:// address'),
  // Nothing would use them, and an address is printed.
  v.check((text) => !/^\w+:\/\/[^/?#]*@/.test(text), 'holds a user name or a password: give the key as api_key'),
  v.transform((text) => text.replace(/\/+$/, '')),
);

/** Prices are exact: kept as integer nano-dollars per million tokens (design, section 8). */
const NANOS_PER_MILLION_FROM_TOKEN = 15;
const NANOS_DECIMALS = 9;
const PRICE_MAX = 10n ** 13n; // USD 10,000 per million tokens, or per request: beyond is a slip of the pen
const price = (decimals: number) =>
  v.pipe(
    v.string(),
    v.rawTransform(({ dataset, addIssue, NEVER }) => {
      try {
        const parsed = parseDecimal(dataset.value, decimals);
        if (parsed <= PRICE_MAX) return parsed;
        addIssue({ message: 'not a believable price: more than USD 10,000' });
      } catch {
        addIssue({ message: `not an exact price: a plain decimal number with at most ${decimals} decimals` });
      }
      return NEVER;
    }),
  );

/** Rates of tokens. A special rate that is left out is the plain one: nothing is free by omission. */
const rates = (decimals: number) => ({
  prompt: v.optional(price(decimals)),
  completion: v.optional(price(decimals)),
  /** Prompt tokens that the upstream read from its cache, or wrote to it; reasoning among the completion tokens. */
  input_cache_read: v.optional(price(decimals)),
  input_cache_write: v.optional(price(decimals)),
  internal_reasoning: v.optional(price(decimals)),
});
/** Under a price every number comes as it was written (config.ts), this one too. */
const tokenCount = v.pipe(
  v.string(),
  v.regex(/^\d{1,9}$/, 'must be a whole number'),
  v.transform(Number),
  whole(1, 1e8),
);
const LEFT_OUT = 'give prompt and completion, or request alone: a price that is left out would be a price of 0';
const pricing = (decimals: number) =>
  v.pipe(
    v.strictObject({
      ...rates(decimals),
      request: v.optional(price(NANOS_DECIMALS)),
      /** For each image of the request. */
      image: v.optional(price(NANOS_DECIMALS)),
      /** A prompt longer than `above_tokens` is charged at these rates, all of it, its completion too. */
      tiers: v.optional(
        v.pipe(
          v.array(v.strictObject({ above_tokens: tokenCount, ...rates(decimals) })),
          v.check(
            (tiers) => tiers.every((it, i) => i === 0 || it.above_tokens > (tiers[i - 1]?.above_tokens as number)),
            'the tiers must stand in ascending order of above_tokens',
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
      LEFT_OUT,
    ),
  );

/** One way to a model: an upstream, the name it has there, and what it costs there. */
const way = {
  upstream: v.string(),
  upstream_model: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(500))),
  /** The name by which the upstream knows the limit that was reserved for. */
  output_limit: v.optional(v.picklist(['max_tokens', 'max_completion_tokens'])),
  /** Above 1 for a tokenizer or template that makes more tokens of a prompt than it has bytes as rendered. */
  tokens_per_byte: v.optional(whole(1, 64)),
  /** Prompt tokens that the server adds by itself: a system prompt of its own, a long preamble of its template. */
  prompt_overhead_tokens: v.optional(whole(0, 1e8)),
  pricing: v.optional(pricing(NANOS_PER_MILLION_FROM_TOKEN)),
  pricing_per_million: v.optional(pricing(NANOS_DECIMALS)),
};
const PRICED_TWICE = 'give pricing or pricing_per_million, not both';

const Fallback = v.pipe(
  v.strictObject({ ...way, context_length: v.optional(whole(1, 1e8)) }),
  v.check((it) => !(it.pricing && it.pricing_per_million), PRICED_TWICE),
);

const Model = v.pipe(
  v.strictObject({
    id: v.pipe(v.string(), v.minLength(1), v.maxLength(200)),
    kind: v.optional(v.picklist(['chat', 'embeddings']), 'chat'),
    ...way,
    /** Asked in this order when the ones before have clearly refused; what is left out is as above. */
    fallbacks: v.optional(v.array(Fallback), []),
    context_length: whole(1, 1e8),
    max_output_tokens: v.optional(whole(1, 1e8)),
    /** Written into a request that names no limit; 4,096, or max_output_tokens if that is lower. */
    default_output_tokens: v.optional(whole(1, 1e8)),
    /** The most prompt tokens that one image can become; the whole context where it is left out. */
    image_tokens: v.optional(whole(0, 1e8)),
    /** Images by http(s) address, which the model server fetches; else only `data:` addresses. */
    image_urls: v.optional(v.boolean(), false),
  }),
  v.check((it) => !(it.pricing && it.pricing_per_million), PRICED_TWICE),
  v.forward(
    v.partialCheck(
      [['kind'], ['max_output_tokens']],
      ({ kind, max_output_tokens: most }) => (kind === 'chat') === (most !== undefined),
      'is required of a chat model, and one of kind embeddings has none',
    ),
    ['max_output_tokens'],
  ),
  v.forward(
    v.partialCheck(
      [['max_output_tokens'], ['default_output_tokens']],
      ({ max_output_tokens: most = 0, default_output_tokens: standard = 0 }) => standard <= most,
      'is above max_output_tokens',
    ),
    ['default_output_tokens'],
  ),
  v.rawCheck(({ dataset, addIssue }) => {
    if (!dataset.typed || dataset.value.kind === 'embeddings') return;
    const { fallbacks, ...first } = dataset.value;
    for (const it of [first, ...fallbacks])
      for (const key of ['pricing', 'pricing_per_million'] as const) {
        const value = it[key];
        if (value && value.prompt !== undefined && value.completion === undefined)
          addIssue({ message: LEFT_OUT, path: [{ type: 'object', origin: 'value', input: it, key, value }] });
      }
  }),
);

/** What becomes of a chat whose outcome nobody knows (design 2.9). */
const afterSeconds = whole(0, 30 * 86_400);
const policy = v.picklist(['charge', 'release']);

const Upstream = v.pipe(
  v.strictObject({
    name: v.pipe(v.string(), v.minLength(1)),
    base_url: v.pipe(
      url,
      v.check((text) => !/[?#]/.test(text), 'must not have a query or a fragment'),
    ),
    api_key: v.optional(v.pipe(v.string(), v.trim(), v.regex(/^[\x20-\x7e]*$/, 'must be printable ASCII'))),
    /** For a whole call; to its first byte (default: the same); to a connection. */
    timeout_seconds: v.optional(whole(1, 3600), 300),
    first_byte_timeout_seconds: v.optional(whole(1, 3600)),
    connect_timeout_seconds: v.optional(whole(1, 600), 10),
    /** So many calls at once at most; the next one is refused, or goes to the next upstream of its model. */
    max_concurrent: v.optional(whole(1, 1_000_000)),
    /** In place of `router.uncertain`, for what this upstream was asked. */
    uncertain: v.optional(
      v.strictObject({ after_seconds: v.exactOptional(afterSeconds), policy: v.exactOptional(policy) }),
    ),
  }),
  v.check(
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
  }),
  v.rawCheck(({ dataset, addIssue }) => {
    if (!dataset.typed) return;
    const { upstreams, models } = dataset.value;
    const fault = (list: unknown[], key: 'upstreams' | 'models', index: number, field: string, message: string) =>
      addIssue({
        message,
        path: [
          { type: 'object', origin: 'value', input: dataset.value, key, value: list },
          { type: 'array', origin: 'value', input: list, key: index, value: list[index] },
          { type: 'object', origin: 'value', input: list[index] as object, key: field, value: undefined },
        ] as never,
      });
    const isThere = (name: string) => upstreams.some((upstream) => upstream.name === name);
    upstreams.forEach((it, i) => {
      if (upstreams.findIndex((other) => other.name === it.name) !== i)
        fault(upstreams, 'upstreams', i, 'name', `a second upstream is named ${JSON.stringify(it.name)}`);
    });
    models.forEach((it, i) => {
      if (models.findIndex((other) => other.id === it.id) !== i)
        fault(models, 'models', i, 'id', `a second model has the id ${JSON.stringify(it.id)}`);
      if (!isThere(it.upstream))
        fault(models, 'models', i, 'upstream', `no upstream is named ${JSON.stringify(it.upstream)}`);
      for (const { upstream } of it.fallbacks)
        if (!isThere(upstream))
          fault(models, 'models', i, 'fallbacks', `no upstream is named ${JSON.stringify(upstream)}`);
    });
  }),
);

type Parsed = v.InferOutput<typeof Router>;
export type ModelConfig = Parsed['models'][number];
export type PricingConfig = NonNullable<ModelConfig['pricing']>;
export type UpstreamConfig = Omit<Parsed['upstreams'][number], 'api_key'>;
export type UncertainPolicy = Parsed['uncertain'];
