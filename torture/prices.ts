import { nanos } from '../test/executable/books.ts';
import { MODELS } from '../test/helper/server.ts';

export type Usage = { prompt_tokens?: unknown; completion_tokens?: unknown };

/** The requested models, with their weights. */
export const ASKED = { chat: 6, flat: 3, dear: 1, free: 1 } as const;
/** The maximum output tokens of a request: 0.10 USD of the dear model. */
export const TOKENS_MAX = 10;
/** Price of the container offers: 100,000 nano-dollars a second. */
export const HOURLY_USD = '0.36';

const isCount = (it: unknown): it is number => Number.isInteger(it) && (it as number) >= 0;

/**
 * Returns what an answer costs by its usage, in nano-dollars, computed without Purser's own code. An impossible usage is
 * charged the whole hold.
 */
export function chargeOf(model: string, usage: Usage | undefined): bigint | 'hold' {
  const { prompt_tokens: prompt, completion_tokens: completion } = usage ?? {};
  if (!isCount(prompt) || !isCount(completion) || completion > TOKENS_MAX) return 'hold';
  const pricing: { prompt?: string; completion?: string; request?: string } =
    MODELS.find((it) => it.id === model || it.upstream_model === model)?.pricing ?? {};
  const each = (usd: string | undefined) => nanos(usd ?? '0');
  return BigInt(prompt) * each(pricing.prompt) + BigInt(completion) * each(pricing.completion) + each(pricing.request);
}
