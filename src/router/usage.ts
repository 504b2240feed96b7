import type { Model } from './catalogue.ts';

/**
 * The token counts of an upstream. Cached and written tokens are part of the prompt's, reasoning tokens part of the
 * completion's.
 */
export type Usage = {
  promptTokens: number;
  completionTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  reasoningTokens: number;
};

type Json = Record<string, unknown>;

/**
 * Reads the usage of an answer; undefined when it is absent, negative, not whole or inconsistent, and then the charge
 * is estimated (design, section 8). Besides OpenAI's fields it knows the two others in use for cached prompts
 * (DeepSeek's `prompt_cache_hit_tokens`, OpenRouter's `cache_write_tokens`). Tokens that appear only in `total_tokens`
 * count as completion: some servers report reasoning that way (xAI, Gemini).
 */
export function readUsage(answer: unknown, kind: Model['kind']): Usage | undefined {
  const usage = (answer as { usage?: unknown } | null)?.usage;
  if (!isObject(usage)) return undefined;
  const prompt = isObject(usage.prompt_tokens_details) ? usage.prompt_tokens_details : {};
  const completion = isObject(usage.completion_tokens_details) ? usage.completion_tokens_details : {};
  const promptTokens = usage.prompt_tokens;
  const completionTokens = kind === 'embeddings' ? 0 : usage.completion_tokens;
  const cacheReadTokens = prompt.cached_tokens ?? usage.prompt_cache_hit_tokens ?? 0;
  const cacheWriteTokens = prompt.cache_write_tokens ?? 0;
  const reasoningTokens = completion.reasoning_tokens ?? 0;
  if (
    !isCount(promptTokens) ||
    !isCount(completionTokens) ||
    !isCount(cacheReadTokens) ||
    !isCount(cacheWriteTokens) ||
    !isCount(reasoningTokens) ||
    cacheReadTokens + cacheWriteTokens > promptTokens
  )
    return undefined;
  const total = kind === 'chat' && isCount(usage.total_tokens) ? usage.total_tokens : 0;
  const all = Math.max(completionTokens, total - promptTokens);
  if (reasoningTokens > all) return undefined;
  return { promptTokens, completionTokens: all, cacheReadTokens, cacheWriteTokens, reasoningTokens };
}

/** Formats a usage for the operation's row; `upstream` names the upstream where there was a choice. */
export function describeUsage(
  usage: Usage,
  { images, upstream, estimated = false }: { images: number; upstream: string | undefined; estimated?: boolean },
): string {
  return JSON.stringify({
    ...(estimated ? { estimated } : {}),
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    ...(usage.cacheReadTokens ? { cache_read_tokens: usage.cacheReadTokens } : {}),
    ...(usage.cacheWriteTokens ? { cache_write_tokens: usage.cacheWriteTokens } : {}),
    ...(usage.reasoningTokens ? { reasoning_tokens: usage.reasoningTokens } : {}),
    ...(images ? { images } : {}),
    ...(upstream === undefined ? {} : { upstream }),
  });
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
