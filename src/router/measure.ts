import { isText } from '../base/long-text.ts';
import type { Json } from '../base/parse-json.ts';
import { HANDLED_MEMBERS, type NativeWire } from '../config/router.ts';
import { contextOf, type Model, type Route } from './catalogue.ts';
import { invalid, notKnown, unsupported, wholeNumber } from './field-refusals.ts';
import { FREE_MEMBERS } from './free-members.ts';
import type { Api } from './native.ts';
import {
  ANSWERED,
  REASONING,
  refuseContent,
  refuseReasoning,
  refuseRendering,
  refuseTools,
} from './refused-content.ts';
import { quotedBytes, TooDeep, textBytes, valueBytes } from './rendered.ts';

/** Tokens that a template writes around a part of a message's content. */
const TOKENS_PER_PART = 8;
export const CHOICE_COUNT_MAX = 128;

/**
 * Fields that may be forwarded and cost nothing but their bytes. All others are refused: a field without a price breaks
 * the bound.
 */
const FORWARDED = new Set([
  'messages',
  'tools',
  'tool_choice',
  'parallel_tool_calls',
  'functions',
  'function_call',
  'response_format',
  'temperature',
  'top_p',
  'frequency_penalty',
  'presence_penalty',
  'stop',
  'seed',
  'logit_bias',
  'logprobs',
  'top_logprobs',
  'user',
  'safety_identifier',
  'verbosity',
  'reasoning_effort',
  ...FREE_MEMBERS,
]);
/**
 * Fields that are read here and rewritten, or accepted only with their neutral value. `metadata` is accepted and not
 * forwarded: a model server may use it to route requests (LiteLLM's tags).
 */
const HANDLED = new Set<string>(HANDLED_MEMBERS);
/** Hints for a cache that cost nothing, and that some servers refuse: they go only where the settings name them. */
export const DROPPED_MEMBERS = ['prompt_cache_key', 'prompt_cache_retention'];

/** Every member of a chat completion that may be sent to a model whose settings name no others. */
export const CHAT_MEMBERS: readonly string[] = [...HANDLED_MEMBERS, ...FORWARDED, ...DROPPED_MEMBERS];

export type ChatBody = Readonly<Record<string, unknown>> & {
  model: string;
  messages: readonly Record<string, unknown>[];
};

/**
 * Members of a request in another API that have no equivalent in a chat completion. They go only where the settings of an
 * upstream name them.
 */
export type Others = {
  members: Readonly<Record<string, unknown>>;
  /** Names of members that are left out, instead of refused, if no upstream is to get them. */
  dispensable: readonly string[];
};
const NO_OTHERS: Others = { members: {}, dispensable: [] };

/** The properties of a model that measuring depends on. */
export type MeasuredFor = {
  sellsImages: boolean;
  imageUrls: boolean;
  enough: number;
  /** True if a route has a price for writing prompts to a cache. */
  cachesPrompts: boolean;
  /** Members that the settings of an upstream add to the forwarded ones. */
  forward: readonly string[];
  /** The other APIs that an upstream speaks itself. */
  wires: readonly NativeWire[];
  /** True if it has a pool of servers, so that the conversation of a request matters. */
  isPooled: boolean;
};

/**
 * Returns the properties of a model that measuring depends on. Bytes above `enough` are not counted: no prompt is longer
 * than the context of a route.
 */
export function measuredFor({ imageTokens, imageUrls, routes, poolSize }: Model): MeasuredFor {
  const [first, ...others] = routes;
  const joined = <T>(listOf: (route: Route) => readonly T[]) =>
    others.length ? routes.flatMap(listOf) : listOf(first);
  return {
    sellsImages: imageTokens !== undefined,
    imageUrls,
    enough: others.reduce((most, route) => Math.max(most, contextOf(route)), contextOf(first)),
    cachesPrompts: routes.some(cachesPrompts),
    forward: joined(forwardOf),
    wires: joined(wiresOf),
    isPooled: poolSize > 1,
  };
}
const cachesPrompts = (route: Route) => route.cachesPrompts;
const forwardOf = (route: Route) => route.forward;
const wiresOf = (route: Route) => route.wires;

/**
 * The result of reading a request's body: enough to price it and to write its body, without its values. Plain data, so that
 * a worker thread can send it.
 */
export type Measured = {
  api: Exclude<Api, NativeWire>;
  /** Bytes and tokens of each prompt: one for a chat, one for each prompt of a completion, input, or document to rank. */
  prompts: { bytes: number; tokens: number }[];
  messages: number;
  tools: number;
  images: number;
  /** The answers that are generated. */
  choices: number;
  /** The limit of output tokens that the caller named, if any. */
  outputTokens: number | undefined;
  /** Names of the members that are forwarded unchanged. */
  forwarded: string[];
  /** Members that are rewritten for every route. */
  written: Record<string, unknown>;
  /** Members that are written only for routes whose upstream's settings name them. */
  byRoute: Record<string, unknown>;
};

/**
 * Measures a chat completion: the bytes of its prompt as a model server renders it (rendered.ts). With `stream`, the upstream will
 * be asked to stream, with usage. `others` are the members of the original request in another API. Throws `unsupported_parameter`
 * for members that are not priced and `invalid_request` for malformed ones.
 */
export function measureChat(model: MeasuredFor, raw: ChatBody, stream: boolean, others: Others = NO_OTHERS): Measured {
  const own = withoutNulls(raw);
  const forwarded: string[] = [];
  const byRoute: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(others.members)) {
    // Members already written by the translation are not written twice.
    if (model.forward.includes(name) && !Object.hasOwn(own, name)) byRoute[name] = value;
    else if (!others.dispensable.includes(name)) throw notKnown(name);
  }
  const request = others.members === NO_OTHERS.members ? own : { ...own, ...byRoute };
  for (const name of Object.keys(own)) {
    if (FORWARDED.has(name)) forwarded.push(name);
    else if (model.forward.includes(name)) byRoute[name] = own[name];
    else if (!HANDLED.has(name) && !DROPPED_MEMBERS.includes(name) && !(stream && name === 'stream_options'))
      throw unsupported(name);
  }
  refuseRendering(request.chat_template_kwargs);
  refuseReasoning(request.reasoning);
  const images = refuseContent(request.messages, model);
  if (request.functions !== undefined && !Array.isArray(request.functions))
    throw invalid('functions', 'must be an array');
  const tools = refuseTools(request.tools) + (Array.isArray(request.functions) ? request.functions.length : 0);
  const written: Record<string, unknown> = {};
  // Makes the upstream store the request, or changes the price. The neutral value is forwarded, so that it is obeyed.
  if (request.store !== undefined && request.store !== false) throw unsupported('store');
  const { store, service_tier: tier } = request;
  if (tier !== undefined && tier !== 'default' && tier !== 'auto') throw unsupported('service_tier');
  if (store !== undefined) written.store = store;
  if (tier === 'default') written.service_tier = tier; // "auto" is the default of a server.
  if (request.modalities !== undefined && JSON.stringify(request.modalities) !== '["text"]')
    throw unsupported('modalities');

  const choices = wholeNumber(request, 'n', CHOICE_COUNT_MAX) ?? 1;
  const named = Math.min(
    wholeNumber(request, 'max_tokens') ?? Number.POSITIVE_INFINITY,
    wholeNumber(request, 'max_completion_tokens') ?? Number.POSITIVE_INFINITY,
  );
  const bytes = renderedBytes(request, forwarded, { ...written, ...byRoute }, model.enough);
  if (choices > 1) written.n = choices;
  written.stream = stream;
  if (stream) {
    const { include_obfuscation } = (request.stream_options ?? {}) as { include_obfuscation?: unknown };
    written.stream_options = {
      include_usage: true,
      ...(typeof include_obfuscation === 'boolean' ? { include_obfuscation } : {}),
    };
  }
  return {
    api: 'chat',
    prompts: [{ bytes, tokens: 0 }],
    messages: request.messages.length,
    tools,
    images,
    choices,
    outputTokens: Number.isFinite(named) ? named : undefined,
    forwarded,
    written,
    byRoute,
  };
}

/**
 * Returns the bytes of the rendered prompt: texts as they are, structured values by their parts. Images are counted
 * apart, because bytes do not bound them.
 */
function renderedBytes(
  request: ChatBody,
  forwarded: readonly string[],
  others: Readonly<Json>,
  enough: number,
): number {
  return refuseTooDeep('messages', () => {
    let bytes = namedBytes(request, Object.keys(others), enough);
    for (const name of forwarded) if (name !== 'messages') bytes += memberBytes(request, name, enough);
    for (const message of request.messages) {
      if (bytes >= enough) break;
      bytes += messageBytes(message, enough);
    }
    return bytes;
  });
}

/** Throws `invalid_request` for arguments of a call in `field` that are nested too deep to be counted. */
export function refuseTooDeep(field: string, count: () => number): number {
  try {
    return count();
  } catch (error) {
    if (error instanceof TooDeep) throw invalid(field, 'hold arguments of a call that are nested too deep');
    throw error;
  }
}

/** Returns the bytes of the members of these names in the form that a template writes. */
export function namedBytes(request: Readonly<Json>, names: readonly string[], enough: number): number {
  return names.reduce((bytes, name) => bytes + memberBytes(request, name, enough), 0);
}

const memberBytes = (request: Readonly<Json>, name: string, enough: number) =>
  name.length + valueBytes(request[name], enough);

function messageBytes(message: Readonly<Json>, enough: number): number {
  const { content, role } = message;
  let bytes = 0;
  for (const name of Object.keys(message)) {
    if (name === 'content') continue;
    const it = message[name];
    if (ANSWERED.includes(name)) bytes += valueBytes({ [name]: it }, enough);
    else if (!isText(it)) bytes += valueBytes(it, enough);
    else bytes += name === 'refusal' || REASONING.includes(name) ? textBytes(it, enough) : quotedBytes(it, enough);
  }
  // A tool's result may be rendered as text or as JSON.
  const isOfTool = role === 'tool' || role === 'function';
  if (isText(content)) return bytes + (isOfTool ? 2 + quotedBytes(content, enough) : textBytes(content, enough));
  if (!Array.isArray(content)) return bytes;
  if (isOfTool)
    bytes += valueBytes(
      content.filter((part) => part.type !== 'image_url'),
      enough,
    );
  for (const part of content as readonly Record<string, unknown>[]) {
    if (bytes >= enough) break;
    if (part.type === 'thinking') bytes += TOKENS_PER_PART + valueBytes(part, enough);
    for (const it of [part.text, part.refusal])
      if (it !== undefined) bytes += TOKENS_PER_PART + (isText(it) ? textBytes(it, enough) : valueBytes(it, enough));
  }
  return bytes;
}

/** Fields of an embeddings request that may be forwarded. */
const EMBEDDED = new Set(['input', 'encoding_format', 'dimensions', 'user']);
const INPUT_COUNT_MAX = 2048;

/**
 * Measures an embeddings request: texts by their bytes, token lists by their length, each with the other forwarded members:
 * a server may put an instruction before each input. Throws as `measureChat` does.
 */
export function measureEmbeddings({ enough, forward }: MeasuredFor, raw: Readonly<Record<string, unknown>>): Measured {
  const request = withoutNulls(raw);
  const forwarded: string[] = [];
  const byRoute: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(request)) {
    if (EMBEDDED.has(name)) forwarded.push(name);
    else if (forward.includes(name)) byRoute[name] = value;
    else if (name !== 'model') throw unsupported(name);
  }
  wholeNumber(request, 'dimensions');
  const names = Object.keys(byRoute);
  const more = refuseTooDeep(names.join(', '), () => namedBytes(byRoute, names, enough));
  const prompts = inputsOf(request.input, enough, 'input').map(({ bytes, tokens }) => ({
    bytes: bytes + more,
    tokens,
  }));
  const none = { messages: 0, tools: 0, images: 0, choices: 1, outputTokens: undefined, written: {} };
  return { api: 'embeddings', ...none, prompts, forwarded, byRoute };
}

/** Parses the texts in `field`: a text, a list of texts, a list of tokens, or a list of such lists. */
export function inputsOf(input: unknown, enough: number, field: string): Measured['prompts'] {
  const isTokens = (it: unknown): it is number[] =>
    Array.isArray(it) && it.length > 0 && it.every((token) => Number.isSafeInteger(token) && token >= 0);
  const list = typeof input === 'string' || isTokens(input) ? [input] : input;
  if (!Array.isArray(list) || list.length === 0)
    throw invalid(field, 'must be a text, a list of texts, a list of tokens, or a list of such lists');
  if (list.length > INPUT_COUNT_MAX) throw invalid(field, `must have at most ${INPUT_COUNT_MAX} entries`);
  return list.map((it, i) => {
    if (typeof it === 'string') return { bytes: textBytes(it, enough), tokens: 0 };
    if (isTokens(it)) return { bytes: 0, tokens: it.length };
    throw invalid(`${field}.${i}`, 'must be a text or a list of tokens');
  });
}

/** Leaves out members that are null, as OpenAI does: some clients send every member they know. */
export function withoutNulls<T extends Readonly<Json>>(raw: T): T {
  for (const name of Object.keys(raw))
    if (raw[name] === null) return Object.fromEntries(Object.entries(raw).filter(([, value]) => value !== null)) as T;
  return raw;
}
