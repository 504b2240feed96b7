import type { Api } from './native.ts';

/**
 * The token counts of an upstream. Cached and written tokens are part of the prompt's, reasoning tokens part of the
 * completion's.
 */
export type Usage = {
  promptTokens: number;
  completionTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  /** Those of them that are kept for an hour, where the upstream tells. */
  cacheWriteHourTokens?: number;
  reasoningTokens: number;
};

type Json = Record<string, unknown>;

/**
 * Reads the usage of an answer; undefined when it is absent, negative, not whole or inconsistent, and then the charge
 * is estimated (design, section 8). Besides OpenAI's fields it knows the others in use for cached prompts (DeepSeek's
 * `prompt_cache_hit_tokens`, OpenRouter's `cache_write_tokens`, LiteLLM's and Qwen's `cache_creation_…`). Tokens that appear only in `total_tokens`
 * count as completion: some servers report reasoning that way (xAI, Gemini).
 */
export function readUsage(answer: unknown, api: Api): Usage | undefined {
  const usage = (answer as { usage?: unknown } | null)?.usage;
  if (!isObject(usage)) return undefined;
  if (api === 'messages') return usageOfMessages(usage);
  if (api === 'responses') return usageOfResponses(usage);
  const prompt = isObject(usage.prompt_tokens_details) ? usage.prompt_tokens_details : {};
  const completion = isObject(usage.completion_tokens_details) ? usage.completion_tokens_details : {};
  const promptTokens = usage.prompt_tokens;
  const completionTokens = api === 'embeddings' ? 0 : usage.completion_tokens;
  const cacheReadTokens = prompt.cached_tokens ?? usage.prompt_cache_hit_tokens ?? 0;
  const cacheWriteTokens =
    prompt.cache_write_tokens ??
    prompt.cache_creation_tokens ??
    prompt.cache_creation_input_tokens ??
    usage.cache_creation_input_tokens ??
    0;
  const kept = prompt.cache_creation_token_details ?? prompt.cache_creation;
  // LiteLLM may leave them out of the prompt's tokens (its issue 15056).
  const isLeftOut =
    isCount(usage.cache_creation_input_tokens) &&
    isCount(promptTokens) &&
    usage.cache_creation_input_tokens > promptTokens;
  const reasoningTokens = completion.reasoning_tokens ?? 0;
  if (!isCount(promptTokens) || !isCount(completionTokens)) return undefined;
  const total = api === 'chat' && isCount(usage.total_tokens) ? usage.total_tokens : 0;
  const all = Math.max(completionTokens, total - promptTokens);
  return checked({
    promptTokens: isLeftOut ? promptTokens + (cacheWriteTokens as number) : promptTokens,
    completionTokens: all,
    cacheReadTokens,
    cacheWriteTokens,
    cacheWriteHourTokens: isObject(kept) ? kept.ephemeral_1h_input_tokens : undefined,
    reasoningTokens,
  });
}

/** Reads a usage of Anthropic's Messages, which counts cached and written tokens apart from the others. */
function usageOfMessages(usage: Json): Usage | undefined {
  const cacheReadTokens = usage.cache_read_input_tokens ?? 0;
  const cacheWriteTokens = usage.cache_creation_input_tokens ?? 0;
  const kept = isObject(usage.cache_creation) ? usage.cache_creation : {};
  const output = isObject(usage.output_tokens_details) ? usage.output_tokens_details : {};
  const { input_tokens: plain } = usage;
  if (!isCount(plain) || !isCount(cacheReadTokens) || !isCount(cacheWriteTokens)) return undefined;
  return checked({
    promptTokens: plain + cacheReadTokens + cacheWriteTokens,
    completionTokens: usage.output_tokens,
    cacheReadTokens,
    cacheWriteTokens,
    cacheWriteHourTokens: kept.ephemeral_1h_input_tokens,
    reasoningTokens: output.thinking_tokens ?? 0,
  });
}

function usageOfResponses(usage: Json): Usage | undefined {
  const input = isObject(usage.input_tokens_details) ? usage.input_tokens_details : {};
  const output = isObject(usage.output_tokens_details) ? usage.output_tokens_details : {};
  return checked({
    promptTokens: usage.input_tokens,
    completionTokens: usage.output_tokens,
    cacheReadTokens: input.cached_tokens ?? 0,
    cacheWriteTokens: input.cache_write_tokens ?? 0,
    reasoningTokens: output.reasoning_tokens ?? 0,
  });
}

type Counts = Record<Exclude<keyof Usage, 'cacheWriteHourTokens'>, unknown> & { cacheWriteHourTokens?: unknown };

/** Returns the usage unless a count is absent, negative, not whole or more than what it is a part of. */
function checked({ cacheWriteHourTokens: hour, ...others }: Counts): Usage | undefined {
  if (!Object.values(others).every(isCount)) return undefined;
  const usage = others as Usage;
  const { promptTokens, completionTokens, cacheReadTokens, cacheWriteTokens, reasoningTokens } = usage;
  if (cacheReadTokens + cacheWriteTokens > promptTokens || reasoningTokens > completionTokens) return undefined;
  return isCount(hour) && hour <= cacheWriteTokens ? { ...usage, cacheWriteHourTokens: hour } : usage;
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
    ...(usage.cacheWriteHourTokens ? { cache_write_1h_tokens: usage.cacheWriteHourTokens } : {}),
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
