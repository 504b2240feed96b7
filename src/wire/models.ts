import * as v from 'valibot';
import { formatDecimal, formatUsd } from '../base/money.ts';
import type { Model } from '../router/catalogue.ts';
import type { Price } from '../router/price.ts';
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

/** Renders a model with the prices of its first route, in its lowest tier. */
export function modelRecord(model: Model, created: number): v.InferOutput<typeof ModelRecord> {
  const { tiers, request, image } = model.routes[0].price;
  const { rates } = tiers[0] as Price['tiers'][number];
  return {
    id: model.id,
    object: 'model',
    created,
    owned_by: 'purser',
    context_length: model.contextLength,
    max_output_tokens: model.maxOutputTokens,
    pricing: {
      prompt: perToken(rates.prompt),
      completion: perToken(rates.completion),
      request: formatUsd(request),
      ...(model.imageTokens === undefined ? {} : { image: formatUsd(image) }),
      ...(rates.cacheRead === rates.prompt ? {} : { input_cache_read: perToken(rates.cacheRead) }),
      ...(rates.cacheWrite === rates.prompt ? {} : { input_cache_write: perToken(rates.cacheWrite) }),
      ...(rates.reasoning === rates.completion ? {} : { internal_reasoning: perToken(rates.reasoning) }),
    },
  };
}
