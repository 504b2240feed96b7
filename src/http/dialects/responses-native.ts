import type { Json } from '../../base/parse-json.ts';
import type { KeptState, NativeRequest } from './dialect.ts';
import { namesGiven, objectOf } from './json.ts';
import { hasFiles, PARTS, withoutFileAddresses } from './responses-files.ts';
import { bringsTools, FREE, isOmitted, isSearch } from './responses-request.ts';
import { WHOLE_CONTEXT } from './unread.ts';

/** Members that are passed on with any value. */
const PASSED = [
  ...['input', 'instructions', 'text', 'reasoning'],
  ...['temperature', 'top_p', 'user', 'safety_identifier', 'include', 'prompt_cache_key', 'client_metadata'],
  ...['truncation', 'stream_options', 'max_tool_calls', ...FREE],
];
/** Members that require at least one tool. */
const OF_TOOLS = ['tool_choice', 'parallel_tool_calls'];
/** A bound of the tokens that the server's own words about the search for tools add. */
const TOKENS_FOR_SEARCH = 2048;

/**
 * Describes how a request of OpenAI's Responses API is passed on to a server that speaks it. Nothing is stored there, and it
 * fetches files only where it may fetch images.
 */
export function nativeResponses(given: Json, { imageUrls }: { imageUrls: boolean }): NativeRequest {
  const raw = imageUrls ? given : withoutFileAddresses(given);
  const { stream, service_tier: tier } = raw;
  const input = itemsGiven(raw.input);
  const tools = toolsGiven(raw.tools);
  const isListed = Array.isArray(tools) && tools.length > 0;
  const isBrought = Array.isArray(input) && input.some(bringsTools);
  return {
    value: input === raw.input && tools === raw.tools ? raw : { ...raw, input, tools },
    names: namesGiven(raw, [...PASSED, ...(isListed ? ['tools'] : []), ...(isListed || isBrought ? OF_TOOLS : [])]),
    parts: PARTS,
    addedTokens: hasFiles(raw) ? WHOLE_CONTEXT : isListed && tools.some(isSearch) ? TOKENS_FOR_SEARCH : 0,
    kept: { stream, tier },
  };
}

/** Returns the members of such a request that are rewritten, computed from the kept data. */
export const writtenResponses = ({ stream, tier }: KeptState, outputTokens: number): Json => ({
  max_output_tokens: outputTokens,
  stream: stream === true,
  store: false,
  ...(tier === 'default' ? { service_tier: tier } : {}),
});

/** Returns the items without references, and without the tools that are left out: the same list if there are none of them. */
function itemsGiven(input: unknown): unknown {
  const given = without(input, isReference);
  return Array.isArray(given) && given.some(bringsTools) ? withToolsGiven(given) : given;
}

/** Returns the tools except those that are left out, in namespaces as well: the same list if there are none of them. */
function toolsGiven(tools: unknown): unknown {
  const given = without(tools, isOmitted);
  return Array.isArray(given) ? withToolsGiven(given) : given;
}

/** Returns a list whose entries have none of the tools that are left out: the same list if they have none. */
function withToolsGiven(list: readonly unknown[]): readonly unknown[] {
  const deep = list.map((it) => {
    const { tools: own } = objectOf(it);
    const kept = toolsGiven(own);
    return kept === own ? it : { ...objectOf(it), tools: kept };
  });
  return deep.some((it, i) => it !== list[i]) ? deep : list;
}

/** Returns a list without the matching entries: the same list if there are none. */
const without = (list: unknown, isOne: (it: unknown) => boolean): unknown =>
  Array.isArray(list) && list.some(isOne) ? list.filter((it) => !isOne(it)) : list;

/**
 * Returns whether an item is a reference to something that is not stored. Only reasoning gets here: other references are
 * refused.
 */
const isReference = (item: unknown) => objectOf(item).type === 'item_reference';
