import { nanos } from '../test/executable/books.ts';
import { MODELS } from '../test/helper/server.ts';

export type Usage = { prompt_tokens?: unknown; completion_tokens?: unknown };

/** The requested models, with their weights. */
export const ASKED = { chat: 6, flat: 3, dear: 1, free: 1 } as const;
/** The model with two equal servers: a request that the first one refuses is the second one's. */
export const POOLED = 'flat';
/** The maximum output tokens of a request: 0.10 USD of the dear model. */
export const TOKENS_MAX = 10;
/** The stop sequence by which the model server knows a stream that it is to take its time for. */
export const SLOW = 'slow';
/** Price of the container offers: 100,000 nano-dollars a second. */
export const HOURLY_USD = '0.36';

const isCount = (it: unknown): it is number => Number.isInteger(it) && (it as number) >= 0;

/** What an answer costs: nano-dollars, the whole hold, or an estimate between what was delivered and the hold. */
export type Expected = bigint | 'hold' | 'estimate';

/** Bytes of text in every answer of the model server, whole or broken off: no estimate is below their price. */
export const DELIVERED_BYTES = 5;

/**
 * Returns what an answer costs by its usage, in nano-dollars, computed without Purser's own code. A count above every
 * bound is charged the whole hold, and what is no count is estimated.
 */
export function chargeOf(model: string, usage: Usage | undefined): Expected {
  const { prompt_tokens: prompt, completion_tokens: completion } = usage ?? {};
  if (!isCount(prompt) || !isCount(completion)) return 'estimate';
  if (completion > TOKENS_MAX) return 'hold';
  const pricing: { prompt?: string; completion?: string; request?: string } =
    MODELS.find((it) => it.id === model || it.upstream_model === model)?.pricing ?? {};
  const each = (usd: string | undefined) => nanos(usd ?? '0');
  return BigInt(prompt) * each(pricing.prompt) + BigInt(completion) * each(pricing.completion) + each(pricing.request);
}

/** Returns whether a charge is the expected one, of an operation that held `hold` nano-dollars. */
export function isExpected(
  expected: Expected | undefined,
  charge: bigint | null,
  hold: bigint,
  model?: string,
): boolean {
  if (expected === 'hold') return charge === hold;
  if (expected !== 'estimate') return charge === expected;
  const min = model === undefined ? 0n : chargeOf(model, { prompt_tokens: 0, completion_tokens: DELIVERED_BYTES });
  return charge !== null && charge <= hold && charge >= (hold < (min as bigint) ? hold : (min as bigint));
}
