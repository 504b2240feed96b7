import type { Json } from '../base/parse-json.ts';
import type { RouteName } from './catalogue.ts';
import type { Api } from './native.ts';

/**
 * The token counts of an upstream. Cached and written tokens are part of the prompt's, reasoning tokens part of the
 * completion's.
 */
export type TokenUsage = {
  promptTokens: number;
  completionTokens: number;
  cacheReadTokens: number;
  cacheWriteTokens: number;
  /** The written tokens that are kept for an hour, if the upstream reports them. */
  cacheWriteHourTokens?: number;
  reasoningTokens: number;
};

/** The reported counts of a usage, by their names, for `readUsage`. */
export type Counts = { [name: string]: number | null | undefined | Counts };

/** The members of a usage that are read, at every level of it; `cost` is for the operator's check of prices. */
const COUNTS = [
  ...['prompt_tokens', 'completion_tokens', 'total_tokens', 'prompt_tokens_details', 'completion_tokens_details'],
  ...['cached_tokens', 'prompt_cache_hit_tokens', 'reasoning_tokens', 'cache_write_tokens', 'cache_creation_tokens'],
  ...['cache_creation_input_tokens', 'cache_creation_token_details', 'cache_creation', 'ephemeral_1h_input_tokens'],
  ...['input_tokens', 'output_tokens', 'cache_read_input_tokens', 'output_tokens_details', 'thinking_tokens'],
  ...['input_tokens_details', 'num_cached_tokens', 'cost'],
];
const COUNT_LEVELS = 3;
/** Represents a value that is not a count. */
const NO_COUNT = -1;

/**
 * Returns the usage of an answer or a chunk. Moonshot writes it into the last chunk's choice: of several choices, each then has its
 * own. Servers that rank as Cohere does write it into `meta`.
 */
export function findUsage(answer: unknown): unknown {
  const { usage, choices, meta } = objectOf(answer);
  if (usage) return usage;
  if (Array.isArray(choices)) return (choices.length === 1 ? objectOf(choices[0]).usage : undefined) ?? usage;
  const { tokens, billed_units: billed } = objectOf(meta);
  return tokens ?? billed ?? usage;
}

/** Returns the part of a usage that is read; `readUsage` gives the same result for it. Undefined if there is none. */
export function countsIn(usage: unknown): Counts | undefined {
  if (usage === undefined || usage === null) return undefined;
  return isObject(usage) ? countsAt(usage, COUNT_LEVELS) : {};
}

function countsAt(usage: Json, levels: number): Counts {
  const counts: Counts = {};
  for (const name of COUNTS) {
    if (!Object.hasOwn(usage, name)) continue;
    const value = usage[name];
    if (isObject(value) && levels > 1) counts[name] = countsAt(value, levels - 1);
    else counts[name] = typeof value === 'number' || value === null ? value : NO_COUNT;
  }
  return counts;
}

/**
 * Returns the larger of each count in two usages of one answer: they grow while it is written. An unreadable value never
 * replaces a count.
 */
export function mergeCounts(earlier: Counts | undefined, later: Counts): Counts {
  if (!earlier) return later;
  const merged: Counts = { ...earlier };
  for (const [name, value] of Object.entries(later)) {
    const before = merged[name];
    if (isObject(value)) merged[name] = mergeCounts(isObject(before) ? before : undefined, value);
    else if (isCount(value)) merged[name] = isCount(before) ? Math.max(before, value) : value;
    else merged[name] = before ?? value;
  }
  return merged;
}

/**
 * Merges two usages of Anthropic's Messages as `mergeCounts` does, where the plain tokens of a prompt are those that its cached and written
 * ones leave. Kimi and QwenCloud count all tokens of a prompt as plain at first, and tell at the end which of them were cached.
 */
export function mergeMessagesCounts(earlier: Counts | undefined, later: Counts): Counts {
  const merged = mergeCounts(earlier, later);
  const [before, after] = [usageOfMessages(earlier ?? {}).promptTokens, usageOfMessages(later).promptTokens];
  if (before === undefined || after === undefined) return merged;
  const { cache_read_input_tokens: read, cache_creation_input_tokens: write } = merged;
  return { ...merged, input_tokens: Math.max(0, Math.max(before, after) - countOr0(read) - countOr0(write)) };
}

/** The counts of a usage. A count that is absent, negative or not whole is undefined, and so is one that follows from it. */
type ReportedUsage = Omit<TokenUsage, 'promptTokens' | 'completionTokens'> & {
  promptTokens: number | undefined;
  completionTokens: number | undefined;
};

const NO_USAGE: ReportedUsage = {
  promptTokens: undefined,
  completionTokens: undefined,
  cacheReadTokens: 0,
  cacheWriteTokens: 0,
  reasoningTokens: 0,
};

/**
 * Reads a usage count by count: an unreadable one leaves its neighbours as they are, and an unreadable detail is charged at the
 * plain rate. Besides OpenAI's fields it knows the others in use for cached prompts (DeepSeek's `prompt_cache_hit_tokens`, Moonshot's
 * and Together's `cached_tokens`, Mistral's `num_cached_tokens`, OpenRouter's `cache_write_tokens`, LiteLLM's and Qwen's
 * `cache_creation_…`). Tokens that only the total shows are prompt if a prompt of at most `promptBound` tokens can have them (cached
 * tokens that are counted separately), else completion (reasoning: xAI, Gemini).
 */
export function usageIn(usage: unknown, api: Api, promptBound = 0): ReportedUsage {
  if (!isObject(usage)) return NO_USAGE;
  if (api === 'messages') return usageOfMessages(usage);
  return api === 'responses' ? usageOfResponses(usage, promptBound) : usageOfChat(usage, api, promptBound);
}

function usageOfChat(usage: Json, api: Api, promptBound: number): ReportedUsage {
  const generates = api === 'chat' || api === 'completions';
  const prompt = objectOf(usage.prompt_tokens_details);
  const kept = objectOf(prompt.cache_creation_token_details ?? prompt.cache_creation);
  return reportedUsage(
    {
      // Where nothing is generated, servers count the prompt under any of these names: those that rank, and Voyage.
      prompt: generates
        ? usage.prompt_tokens
        : largestOf([usage.prompt_tokens, usage.total_tokens, usage.input_tokens]),
      completion: generates ? usage.completion_tokens : 0,
      total: generates ? usage.total_tokens : undefined,
      read: [prompt.cached_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens, usage.num_cached_tokens].find(
        isCount,
      ),
      write: [
        prompt.cache_write_tokens,
        prompt.cache_creation_tokens,
        prompt.cache_creation_input_tokens,
        usage.cache_creation_input_tokens,
      ].find(isCount),
      hour: kept.ephemeral_1h_input_tokens,
      reasoning: objectOf(usage.completion_tokens_details).reasoning_tokens,
    },
    promptBound,
  );
}

function usageOfResponses(usage: Json, promptBound: number): ReportedUsage {
  const input = objectOf(usage.input_tokens_details);
  return reportedUsage(
    {
      prompt: usage.input_tokens,
      completion: usage.output_tokens,
      total: usage.total_tokens,
      read: input.cached_tokens,
      write: input.cache_write_tokens,
      hour: undefined,
      reasoning: objectOf(usage.output_tokens_details).reasoning_tokens,
    },
    promptBound,
  );
}

/**
 * Reads a usage of Anthropic's Messages, which counts cached and written tokens apart from the others: if one of the three
 * cannot be read, the prompt count is unknown.
 */
function usageOfMessages(usage: Json): ReportedUsage {
  const { input_tokens: plain, cache_read_input_tokens: read, cache_creation_input_tokens: write } = usage;
  const parts = [plain, read ?? 0, write ?? 0];
  return reportedUsage({
    prompt: parts.every(isCount) ? sum(parts) : undefined,
    completion: usage.output_tokens,
    total: undefined,
    read,
    write,
    hour: objectOf(usage.cache_creation).ephemeral_1h_input_tokens,
    reasoning: objectOf(usage.output_tokens_details).thinking_tokens,
  });
}

type Read = Record<'prompt' | 'completion' | 'total' | 'read' | 'write' | 'hour' | 'reasoning', unknown>;

function reportedUsage(all: Read, promptBound = 0): ReportedUsage {
  const [read, write, reasoning] = [countOr0(all.read), countOr0(all.write), countOr0(all.reasoning)];
  let prompt = isCount(all.prompt) ? withBeside(all.prompt, besidePrompt(all.prompt, read, write)) : undefined;
  let completion = isCount(all.completion)
    ? withBeside(all.completion, reasoning > all.completion ? reasoning : 0)
    : undefined;
  const rest = countOr0(all.total) - (prompt ?? 0) - (completion ?? 0);
  if (rest > 0) {
    if (prompt !== undefined && completion !== undefined) {
      if (reasoning === 0 && prompt + rest <= promptBound) prompt += rest;
      else completion += rest;
    } else if (completion !== undefined) prompt = rest;
    else if (prompt !== undefined) completion = rest;
  }
  const isCached = read + write <= (prompt ?? 0);
  return {
    promptTokens: prompt,
    completionTokens: completion,
    cacheReadTokens: isCached ? read : 0,
    cacheWriteTokens: isCached ? write : 0,
    ...(isCached && isCount(all.hour) && all.hour <= write ? { cacheWriteHourTokens: all.hour } : {}),
    reasoningTokens: reasoning <= (completion ?? 0) ? reasoning : 0,
  };
}

/**
 * Returns the number of tokens counted beside the prompt, because a part is never more than the whole: the read and written
 * ones, as Anthropic counts, or the written ones alone (LiteLLM's issue 15056).
 */
function besidePrompt(prompt: number, read: number, write: number): number {
  if (read + write <= prompt) return 0;
  return write > prompt && read <= prompt ? write : read + write;
}

/** Returns the sum, or the count alone if the sum is not a valid number of tokens. */
function withBeside(count: number, beside: number): number {
  const all = count + beside;
  return isCount(all) ? all : count;
}

/** Reads the usage of an answer; undefined unless it reports both the prompt and the completion. */
export function readUsage(answer: unknown, api: Api): TokenUsage | undefined {
  const usage = usageIn(findUsage(answer), api);
  return usage.promptTokens === undefined || usage.completionTokens === undefined ? undefined : (usage as TokenUsage);
}

/** Formats a usage for the operation's row, with the name of the route that was taken where there was a choice. */
export function describeUsage(
  usage: TokenUsage,
  { images, name, estimated = false }: { images: number; name: RouteName; estimated?: boolean },
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
    ...name,
  });
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const objectOf = (value: unknown): Json => (isObject(value) ? value : {});

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
/** Returns the largest of the counts; undefined if none can be read. */
const largestOf = (counts: readonly unknown[]): number | undefined => {
  const readable = counts.filter(isCount);
  return readable.length ? Math.max(...readable) : undefined;
};
const countOr0 = (value: unknown): number => (isCount(value) ? value : 0);
const sum = (counts: readonly number[]): number => counts.reduce((all, it) => all + it, 0);
