import * as v from 'valibot';
import { formatDecimal } from '../money.ts';
import type { Model } from '../router/catalogue.ts';
import { PriceUsd, Time } from './parts.ts';

/** One model in OpenAI's list shape, with its limits and prices (design, section 3). */
export const ModelRecord = v.object({
  id: v.string(),
  object: v.literal('model'),
  created: Time,
  owned_by: v.string(),
  context_length: v.pipe(v.number(), v.integer()),
  max_output_tokens: v.pipe(v.number(), v.integer()),
  pricing: v.object({ prompt: PriceUsd, completion: PriceUsd, request: PriceUsd }),
});
export const ModelList = v.object({ object: v.literal('list'), data: v.array(ModelRecord) });

export function modelRecord(model: Model, created: number): v.InferOutput<typeof ModelRecord> {
  return {
    id: model.id,
    object: 'model',
    created,
    owned_by: 'purser',
    context_length: model.contextLength,
    max_output_tokens: model.maxOutputTokens,
    pricing: {
      prompt: formatDecimal(model.price.promptPerMillion, 15, 2),
      completion: formatDecimal(model.price.completionPerMillion, 15, 2),
      request: formatDecimal(model.price.request, 9, 2),
    },
  };
}
