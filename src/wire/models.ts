import * as v from 'valibot';
import { formatDecimal, formatUsd, Nanos } from '../base/money.ts';
import type { Model, Route } from '../router/catalogue.ts';
import type { Price, Rates } from '../router/price.ts';
import { PriceUsd, Time } from './parts.ts';

/** A model in the shape of OpenAI's list, with its limits and prices (design, section 3). */
export const ModelRecord = v.object({
  id: v.string(),
  object: v.literal('model'),
  created: Time,
  owned_by: v.string(),
  context_length: v.pipe(v.number(), v.integer()),
  max_output_tokens: v.pipe(v.number(), v.integer()),
  pricing: v.object({
    prompt: PriceUsd,
    completion: PriceUsd,
    request: PriceUsd,
    image: v.optional(PriceUsd),
    input_cache_read: v.optional(PriceUsd),
    input_cache_write: v.optional(PriceUsd),
    internal_reasoning: v.optional(PriceUsd),
  }),
});
export const ModelList = v.object({ object: v.literal('list'), data: v.array(ModelRecord) });

const perToken = (perMillion: bigint) => formatDecimal(perMillion, 15, 2);

/**
 * Renders a model with the prices of its first route in the lowest tier. Of a pool, each price is that of the server at which it
 * is highest: no server costs more.
 */
export function modelRecord(model: Model, created: number): v.InferOutput<typeof ModelRecord> {
  const ratesOf = ({ price }: Route) => (price.tiers[0] as Price['tiers'][number]).rates;
  const pool = model.routes.slice(0, model.poolSize);
  const highest = (of: (route: Route) => bigint) => pool.map(of).reduce((a, b) => (b > a ? b : a));
  const rate = (name: keyof Rates) => highest((it) => ratesOf(it)[name]);
  const [prompt, completion] = [rate('prompt'), rate('completion')];
  const special = (name: string, value: bigint, plain: bigint) => (value === plain ? {} : { [name]: perToken(value) });
  return {
    id: model.id,
    object: 'model',
    created,
    owned_by: 'purser',
    context_length: model.contextLength,
    max_output_tokens: model.maxOutputTokens,
    pricing: {
      prompt: perToken(prompt),
      completion: perToken(completion),
      request: formatUsd(Nanos(highest((it) => it.price.request))),
      ...(model.imageTokens === undefined ? {} : { image: formatUsd(Nanos(highest((it) => it.price.image))) }),
      ...special('input_cache_read', rate('cacheRead'), prompt),
      ...special('input_cache_write', rate('cacheWrite'), prompt),
      ...special('internal_reasoning', rate('reasoning'), completion),
    },
  };
}

/** A model in the shape of Anthropic's list. */
export const AnthropicModel = v.object({
  type: v.literal('model'),
  id: v.string(),
  display_name: v.string(),
  created_at: v.string(),
  max_input_tokens: v.pipe(v.number(), v.integer()),
  max_tokens: v.pipe(v.number(), v.integer()),
  capabilities: v.null(),
  lifecycle: v.literal('active'),
  line: v.null(),
  deprecated_at: v.null(),
  retires_at: v.null(),
});
export const AnthropicModelList = v.object({
  data: v.array(AnthropicModel),
  has_more: v.literal(false),
  first_id: v.nullable(v.string()),
  last_id: v.nullable(v.string()),
});

/** Renders a model in the shape of Anthropic's list. */
export function anthropicModel(
  { id, contextLength, maxOutputTokens }: Model,
  created: number,
): v.InferOutput<typeof AnthropicModel> {
  return {
    type: 'model',
    id,
    display_name: id,
    created_at: new Date(created * 1000).toISOString(),
    max_input_tokens: contextLength,
    max_tokens: maxOutputTokens,
    capabilities: null,
    lifecycle: 'active',
    line: null,
    deprecated_at: null,
    retires_at: null,
  };
}

/** Renders models as one complete page of Anthropic's list. */
export function anthropicModels(models: readonly Model[], created: number): v.InferOutput<typeof AnthropicModelList> {
  const data = models.map((it) => anthropicModel(it, created));
  return { data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null };
}
