import { Nanos, ZERO } from '../base/money.ts';
import type { TokenUsage } from './usage.ts';

const MILLION = 1_000_000n;

/** Whole nano-dollars per million tokens (design, section 8). */
export type Rates = {
  prompt: bigint;
  completion: bigint;
  cacheRead: bigint;
  cacheWrite: bigint;
  /** For prompts that are kept for an hour. */
  cacheWriteHour: bigint;
  reasoning: bigint;
};
/**
 * A price. `tiers` ascend from one with `above` 0: a prompt longer than `above` is charged at that tier's rates,
 * completion included.
 */
export type Price = {
  tiers: readonly { above: number; rates: Rates }[];
  request: Nanos;
  image: Nanos;
};
/** The largest possible usage of a request. `isCachedForHour`: it asks for its prompt to be kept for an hour. */
export type MaxUsage = {
  promptTokens: number;
  completionTokens: number;
  images: number;
  isCachedForHour?: boolean;
};

/** Returns the largest possible cost: each token at its most expensive rate. Rounded up to one nano, once (design 2.1). */
export function holdOf(price: Price, max: MaxUsage): Nanos {
  const { promptTokens, completionTokens, images } = max;
  const { prompt, completion } = highestRates(price, max);
  return Nanos(nanosOf(prompt * BigInt(promptTokens) + completion * BigInt(completionTokens)) + fixed(price, images));
}

/**
 * The parts of a usage that are estimated: each of their tokens costs its most expensive rate. `isCachedForHour`: the
 * request asks for its prompt to be kept for an hour.
 */
type Estimated = { isPrompt: boolean; isCompletion: boolean; isCachedForHour?: boolean | undefined };

/** Returns the cost of a usage in nano-dollars, even for absurd figures: for a comparison, before it becomes money. */
export function costOf(price: Price, usage: TokenUsage, images: number, estimated?: Estimated): bigint {
  const { promptTokens, completionTokens, cacheReadTokens, cacheWriteTokens, reasoningTokens } = usage;
  const { rates } = price.tiers.findLast(({ above }) => above === 0 || promptTokens > above) as Price['tiers'][number];
  const hour = usage.cacheWriteHourTokens ?? 0;
  const most = highestRates(price, { promptTokens, isCachedForHour: estimated?.isCachedForHour });
  const prompt = estimated?.isPrompt
    ? most.prompt * BigInt(promptTokens)
    : rates.prompt * BigInt(promptTokens - cacheReadTokens - cacheWriteTokens) +
      rates.cacheRead * BigInt(cacheReadTokens) +
      rates.cacheWrite * BigInt(cacheWriteTokens - hour) +
      rates.cacheWriteHour * BigInt(hour);
  const completion = estimated?.isCompletion
    ? (estimated.isPrompt ? most.completion : max(rates.completion, rates.reasoning)) * BigInt(completionTokens)
    : rates.completion * BigInt(completionTokens - reasoningTokens) + rates.reasoning * BigInt(reasoningTokens);
  return nanosOf(prompt + completion) + fixed(price, images);
}

/**
 * Returns the number of completion tokens that `left` pays for besides the rest of the request; 0 if it does not cover the
 * rest.
 */
export function affordableCompletion(price: Price, max: Omit<MaxUsage, 'completionTokens'>, left: Nanos): number {
  const { prompt, completion } = highestRates(price, max);
  const forTokens = (left - fixed(price, max.images)) * MILLION - prompt * BigInt(max.promptTokens);
  if (forTokens < 0n) return 0;
  if (completion === 0n) return Number.MAX_SAFE_INTEGER;
  const count = forTokens / completion;
  return count < Number.MAX_SAFE_INTEGER ? Number(count) : Number.MAX_SAFE_INTEGER;
}

/** Returns the most expensive rates that can apply to a prompt of at most `promptTokens`. */
function highestRates(
  { tiers }: Price,
  { promptTokens, isCachedForHour }: Pick<Estimated, 'isCachedForHour'> & Pick<MaxUsage, 'promptTokens'>,
): { prompt: bigint; completion: bigint } {
  let [prompt, completion] = [0n, 0n];
  for (const { above, rates } of tiers) {
    if (above > 0 && promptTokens <= above) break;
    prompt = max(prompt, rates.prompt, rates.cacheRead, rates.cacheWrite);
    if (isCachedForHour) prompt = max(prompt, rates.cacheWriteHour);
    completion = max(completion, rates.completion, rates.reasoning);
  }
  return { prompt, completion };
}

const max = (...values: bigint[]) => values.reduce((largest, it) => (it > largest ? it : largest));
const nanosOf = (millionths: bigint) => (millionths + MILLION - 1n) / MILLION;
const fixed = ({ request, image }: Price, images: number): bigint => request + image * BigInt(images);

/** Describes a price for an operation's row: with the bound and the usage, enough to compute hold and charge again. */
export function describePrice({ tiers, request, image }: Price): Record<string, unknown> {
  const [{ rates: plain }, ...longer] = tiers as [Price['tiers'][number], ...Price['tiers'][number][]];
  return {
    ...describeRates(plain),
    request_nanos: String(request),
    ...(image === ZERO ? {} : { image_nanos: String(image) }),
    ...(longer.length
      ? { tiers: longer.map(({ above, rates }) => ({ above_tokens: above, ...describeRates(rates) })) }
      : {}),
  };
}

function describeRates(rates: Rates): Record<string, string> {
  const special = (name: string, rate: bigint, plain: bigint) =>
    rate === plain ? {} : { [`${name}_nanos_per_million`]: String(rate) };
  return {
    prompt_nanos_per_million: String(rates.prompt),
    completion_nanos_per_million: String(rates.completion),
    ...special('cache_read', rates.cacheRead, rates.prompt),
    ...special('cache_write', rates.cacheWrite, rates.prompt),
    ...special('cache_write_1h', rates.cacheWriteHour, rates.cacheWrite),
    ...special('reasoning', rates.reasoning, rates.completion),
  };
}
