import { Nanos } from '../money.ts';
import type { Price } from './catalogue.ts';

const MILLION = 1_000_000n;

/** The price of so many tokens: summed exactly, then rounded up to one nano, once (design 2.1). */
export function priceOf(price: Price, promptTokens: number, completionTokens: number): Nanos {
  return Nanos(rawPriceOf(price, promptTokens, completionTokens));
}

/** How many completion tokens `left` pays for beside `promptTokens`; 0 when not even one. */
export function affordableCompletion(price: Price, promptTokens: number, left: Nanos): number {
  const forTokens = (left - price.request) * MILLION - price.promptPerMillion * BigInt(promptTokens);
  if (forTokens < 0n) return 0;
  if (price.completionPerMillion === 0n) return Number.MAX_SAFE_INTEGER;
  const count = forTokens / price.completionPerMillion;
  return count < Number.MAX_SAFE_INTEGER ? Number(count) : Number.MAX_SAFE_INTEGER;
}

/** What so many tokens cost, in nano-dollars, however absurd the figures: for a comparison, before it is money. */
export function rawPriceOf(price: Price, promptTokens: number, completionTokens: number): bigint {
  const millionths =
    price.promptPerMillion * BigInt(promptTokens) + price.completionPerMillion * BigInt(completionTokens);
  return (millionths + MILLION - 1n) / MILLION + price.request;
}

/** Everything needed to compute a hold and a charge again, for the operation's row. */
export function priceSnapshot(price: Price, bound: { promptTokens: number; completionTokens: number }): string {
  return `{"prompt_nanos_per_million":"${price.promptPerMillion}","completion_nanos_per_million":"${price.completionPerMillion}","request_nanos":"${price.request}","bound_prompt_tokens":${bound.promptTokens},"bound_completion_tokens":${bound.completionTokens}}`;
}

export type Usage = { promptTokens: number; completionTokens: number };

/** The usage of an answer, or undefined when it is absent, negative or not whole: then the hold is charged. */
export function readUsage(answer: unknown): Usage | undefined {
  const usage = (answer as { usage?: unknown } | null)?.usage;
  if (typeof usage !== 'object' || usage === null) return undefined;
  const { prompt_tokens: promptTokens, completion_tokens: completionTokens } = usage as Record<string, unknown>;
  if (!isTokenCount(promptTokens) || !isTokenCount(completionTokens)) return undefined;
  return { promptTokens, completionTokens };
}

function isTokenCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
