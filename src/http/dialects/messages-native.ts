import type { IncomingHttpHeaders } from 'node:http';
import { type Json, wordOf } from '../../base/parse-json.ts';
import type { KeptState, NativeRequest } from './dialect.ts';
import { isObject, namesGiven, objectOf } from './json.ts';
import { DOCUMENT_PARTS, hasPages, withoutAddresses } from './messages-documents.ts';

import { FREE, isClientTool } from './messages-request.ts';
import { WHOLE_CONTEXT } from './unread.ts';

/**
 * Beta features that cost nothing but tokens and need nothing on the server, without their dates. Others are not requested:
 * one may change a price or the context length by its name alone.
 */
const BETAS = new Set([
  ...['claude-code', 'interleaved-thinking', 'fine-grained-tool-streaming', 'context-management', 'extended-cache-ttl'],
  ...['prompt-caching', 'prompt-caching-scope', 'token-efficient-tools', 'structured-outputs', 'effort', 'output-128k'],
  ...['adaptive-thinking', 'redact-thinking', 'tool-examples', 'task-budgets'],
  ...['advanced-tool-use', 'tool-search-tool', 'computer-use', 'pdfs'],
]);
/** Members that are passed on with any value. Marks for prompt caches go with them where they have a price. */
const PASSED = [
  ...['messages', 'system', 'tools', 'tool_choice', 'stop_sequences'],
  ...['temperature', 'top_p', 'top_k', 'output_config', 'output_format'],
];
/** The smallest thinking budget that Anthropic takes. */
const THINKING_TOKENS_MIN = 1024;

/** A bound of the tokens that each of Anthropic's tools for clients adds by its schema and instructions, at most 735 today. */
const TOKENS_PER_CLIENT_TOOL = 2048;

/**
 * Describes how a request of Anthropic's Messages API is passed on to a server that speaks it. It fetches documents only
 * where it may fetch images.
 */
export function nativeMessages(raw: Json, { imageUrls }: { imageUrls: boolean }): NativeRequest {
  const { stream, max_tokens: named, thinking } = raw;
  // The budget of thinking has to be below a limit that is cut to fit.
  const budgeted = isObject(thinking) && typeof thinking.budget_tokens === 'number' ? thinking : undefined;
  const names = namesGiven(raw, [...PASSED, ...FREE]);
  if (thinking && !budgeted) names.push('thinking');
  // Beside the user's id, metadata may choose where a request goes.
  if (Object.keys(objectOf(raw.metadata)).join() === 'user_id') names.push('metadata');
  if (raw.service_tier === 'auto' || raw.service_tier === 'standard_only') names.push('service_tier');
  const value = imageUrls ? raw : withoutAddresses(raw);
  const tools = Array.isArray(raw.tools) ? raw.tools.filter(isClientTool).length : 0;
  return {
    value,
    names,
    parts: DOCUMENT_PARTS,
    addedTokens: hasPages(value) ? WHOLE_CONTEXT : tools * TOKENS_PER_CLIENT_TOOL,
    kept: { named, stream, budgeted, management: raw.context_management },
  };
}

/** Returns the members of such a request that are rewritten, computed from the kept data. */
export function writtenMessages({ named, stream, budgeted, management }: KeptState, outputTokens: number): Json {
  const isCut = typeof named === 'number' && outputTokens < named;
  const thinks = isObject(budgeted) ? (isCut ? thinkingWithin(outputTokens, budgeted) : budgeted) : undefined;
  return {
    max_tokens: outputTokens,
    stream: stream === true,
    ...(thinks ? { thinking: thinks } : {}),
    ...editsFor(thinks, management),
  };
}

function thinkingWithin(outputTokens: number, thinking: Json): Json {
  if ((thinking.budget_tokens as number) < outputTokens) return thinking;
  const budget = Math.floor(outputTokens / 2);
  return budget < THINKING_TOKENS_MIN ? { type: 'disabled' } : { ...thinking, budget_tokens: budget };
}

/** Returns the edits of the conversation that may be requested: none of thinking that has been switched off, which is a 400. */
function editsFor(thinking: Json | undefined, management: unknown): Json {
  if (!clears(management)) return {};
  const all = objectOf(management).edits as unknown[];
  const edits =
    thinking?.type === 'disabled' ? all.filter((it) => !/^clear_thinking/.test(wordOf(objectOf(it).type))) : all;
  return edits.length ? { context_management: { edits } } : {};
}

/** Returns whether the edits only delete content; a summary would be output without a limit. */
function clears(management: unknown): boolean {
  const { edits, ...others } = objectOf(management);
  if (!Array.isArray(edits) || Object.keys(others).length > 0) return false;
  return edits.every((it) => wordOf(objectOf(it).type).startsWith('clear_'));
}

/** Returns the headers of a request that are passed on. */
export function messagesHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const { 'anthropic-version': version, 'anthropic-beta': betas } = headers;
  const known = String(betas ?? '')
    .split(',')
    .map((it) => it.trim())
    .filter((it) => BETAS.has(it.replace(/-\d{4}-?\d{2}-?\d{2}$/, '')));
  return {
    ...(typeof version === 'string' && /^\d{4}-\d{2}-\d{2}$/.test(version) ? { 'anthropic-version': version } : {}),
    ...(known.length ? { 'anthropic-beta': known.join(',') } : {}),
  };
}
