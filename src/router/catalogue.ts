import type { Config, ModelConfig } from '../config.ts';
import { Nanos } from '../money.ts';
import { Refusal } from '../refusal.ts';

/** Token prices are whole nano-dollars per million tokens; the request price is whole nano-dollars (design, section 8). */
export type Price = { promptPerMillion: bigint; completionPerMillion: bigint; request: Nanos };

export type Model = {
  id: string;
  upstream: string;
  upstreamModel: string;
  contextLength: number;
  maxOutputTokens: number;
  outputLimit: 'max_tokens' | 'max_completion_tokens';
  tokensPerByte: number;
  price: Price;
};

export type Catalogue = {
  list: readonly Model[];
  /** The model with this id. Refuses with `model_not_found`. */
  find(id: string): Model;
};

/** The models on offer: those of the configuration that have a price. What has no price is not offered. */
export function createCatalogue(config: Pick<Config, 'router'>): Catalogue {
  const list = config.router.models.flatMap((it) => {
    const price = it.pricing ?? it.pricing_per_million;
    return price ? [toModel(it, price)] : [];
  });
  const byId = new Map(list.map((model) => [model.id, model]));
  return {
    list,
    find(id) {
      const model = byId.get(id);
      if (!model) throw new Refusal('model_not_found');
      return model;
    },
  };
}

function toModel(it: ModelConfig, price: NonNullable<ModelConfig['pricing']>): Model {
  return {
    id: it.id,
    upstream: it.upstream,
    upstreamModel: it.upstream_model ?? it.id,
    contextLength: it.context_length,
    maxOutputTokens: it.max_output_tokens,
    outputLimit: it.output_limit,
    tokensPerByte: it.tokens_per_byte,
    price: { promptPerMillion: price.prompt, completionPerMillion: price.completion, request: Nanos(price.request) },
  };
}
