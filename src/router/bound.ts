import assert from 'node:assert/strict';
import { Refusal } from '../refusal.ts';
import { contextOf, type Model, promptBound, type Route } from './catalogue.ts';
import type { Most } from './price.ts';
import { quotedBytes, TooDeep, textBytes, valueBytes } from './rendered.ts';

/**
 * Prompt tokens besides the values of a request, which the template writes around them. Per request: a preamble (the
 * date, a short default system prompt) and the opening of the answer. For tools: the explanation of how to call them
 * (Claude: up to 530). Anything a server adds beyond that is `prompt_overhead_tokens`.
 */
const TOKENS_PER_REQUEST = 128;
const TOKENS_PER_MESSAGE = 40;
const TOKENS_PER_PART = 8;
const TOKENS_FOR_TOOLS = 640;
const TOKENS_PER_TOOL = 64;
const TOKENS_PER_INPUT = 8;
const CHOICE_COUNT_MAX = 128;
/** An answer shorter than this is useless to a caller who set no limit. */
const OUTPUT_TOKENS_MIN = 256;
/**
 * Bytes per token in prose. Used where precision is not needed: to estimate how much context a prompt leaves for its
 * answer.
 */
const TYPICAL_BYTES_PER_TOKEN = 4;

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
]);
/**
 * Fields that are read here and written anew, or accepted only with their neutral value. `metadata` is accepted and not
 * forwarded: a model server may use it to route requests (LiteLLM's tags).
 */
const HANDLED = new Set([
  'model',
  'stream',
  'n',
  'max_tokens',
  'max_completion_tokens',
  'store',
  'service_tier',
  'modalities',
  'metadata',
]);

export type ChatBody = Readonly<Record<string, unknown>> & {
  model: string;
  messages: readonly Record<string, unknown>[];
};

/** How the bound of the prompt tokens was found. */
export type Prompt = {
  tokens: number;
  /** From the text of the request: what is learned is a factor of these. */
  computed: number;
  /** From the settings: images and `prompt_overhead_tokens`. */
  added: number;
  /** How many prompts, each of them at most as long as the context. */
  count: number;
  /** Whether the context length cut one of them off. */
  isCut: boolean;
};

/** A request with a true upper bound of what it can use, by each of its model's routes (design, section 8). */
export type Bounded = {
  /** The number of answers requested. */
  choices: number;
  images: number;
  most(route: Route): Most;
  prompt(route: Route): Prompt;
  /** Output tokens of one answer, and how few they may become; undefined where the caller named the limit. */
  reducible: { outputTokens: number; outputTokensMin: number } | undefined;
  /** Lowers the limit of output tokens per answer. */
  reduceTo(outputTokens: number): void;
  /** Returns the body to send upstream by this route. */
  bodyFor(route: Route): Buffer;
  /** Frees the bodies once no other route will be asked. */
  release(): void;
};

/**
 * Bounds a chat completion. The bound covers the prompt as a model server renders it (rendered.ts); the output limit of
 * the reservation is written into the body. With `stream`, asks the upstream to stream, with usage. Throws
 * `unsupported_parameter` for what is not priced and `invalid_request` for what is malformed.
 */
export function boundChat(model: Model, raw: ChatBody, stream = false): Bounded {
  const request = withoutNulls(raw);
  const forwarded: Record<string, unknown> = { model: '' };
  for (const [name, value] of Object.entries(request)) {
    if (FORWARDED.has(name)) forwarded[name] = value;
    else if (!HANDLED.has(name) && !(stream && name === 'stream_options')) throw unsupported(name);
  }
  const images = refuseContent(request.messages, model);
  if (request.functions !== undefined && !Array.isArray(request.functions))
    throw invalid('functions', 'must be an array');
  const tools = refuseTools(request.tools) + (Array.isArray(request.functions) ? request.functions.length : 0);
  // Would make the upstream store the request, or changes the price. The neutral value is forwarded, so that it is
  // obeyed.
  if (request.store !== undefined && request.store !== false) throw unsupported('store');
  if (request.service_tier !== undefined && request.service_tier !== 'default') throw unsupported('service_tier');
  for (const name of ['store', 'service_tier'] as const)
    if (request[name] !== undefined) forwarded[name] = request[name];
  if (request.modalities !== undefined && JSON.stringify(request.modalities) !== '["text"]')
    throw unsupported('modalities');

  const choices = wholeNumber(request, 'n', CHOICE_COUNT_MAX) ?? 1;
  const named = [wholeNumber(request, 'max_tokens'), wholeNumber(request, 'max_completion_tokens')].filter(
    (it) => it !== undefined,
  );
  const isNamed = named.length > 0;
  const outputTokens = isNamed ? Math.min(model.maxOutputTokens, ...named) : model.defaultOutputTokens;
  const outputTokensMin = Math.min(OUTPUT_TOKENS_MIN, outputTokens);
  let perChoice = outputTokens;

  const enough = Math.max(...model.routes.map(contextOf));
  const { model: _, messages: __, ...others } = forwarded;
  const bytes = renderedBytes(request.messages, others, enough);
  if (choices > 1) forwarded.n = choices;
  forwarded.stream = stream;
  if (stream) forwarded.stream_options = { include_usage: true };
  const frame =
    TOKENS_PER_REQUEST +
    TOKENS_PER_MESSAGE * request.messages.length +
    (tools && TOKENS_FOR_TOOLS + TOKENS_PER_TOOL * tools);
  const imageTokens = images * (model.imageTokens ?? 0);
  // Without a limit by the caller: a model server refuses a limit that does not fit its context beside the prompt. Only
  // the server knows the prompt's length; if the estimate is too low, it refuses, which costs nothing.
  const estimate = Math.ceil(bytes / TYPICAL_BYTES_PER_TOKEN) + imageTokens;
  const outputOf = (route: Route) => {
    if (isNamed) return perChoice;
    const free = route.contextLength - estimate - route.promptOverheadTokens;
    return Math.min(perChoice, Math.max(outputTokensMin, free));
  };
  const prompt = promptsOf(model, imageTokens, (route) => [bytes * route.tokensPerByte + frame]);
  return {
    choices,
    images,
    most: (route) => ({
      promptTokens: prompt(route).tokens,
      completionTokens: choices * outputOf(route),
      images,
    }),
    prompt,
    reducible: isNamed ? undefined : { outputTokens, outputTokensMin },
    reduceTo(fewer) {
      assert(!isNamed && fewer >= outputTokensMin && fewer <= outputTokens);
      perChoice = fewer;
    },
    ...bodies(forwarded, (route) => ({ ...route.forced, [route.outputLimit]: outputOf(route) })),
  };
}

/**
 * Returns the bytes of the rendered prompt: texts as they are, structured values by their parts. Images are counted
 * apart, because bytes do not bound them.
 */
function renderedBytes(
  messages: readonly Record<string, unknown>[],
  others: Record<string, unknown>,
  enough: number,
): number {
  try {
    let bytes = 0;
    for (const [name, value] of Object.entries(others)) bytes += name.length + valueBytes(value, enough);
    for (const message of messages) {
      if (bytes >= enough) break;
      bytes += messageBytes(message, enough);
    }
    return bytes;
  } catch (error) {
    if (error instanceof TooDeep) throw invalid('messages', 'hold arguments of a call that are nested too deep');
    throw error;
  }
}

function messageBytes({ content, ...rest }: Record<string, unknown>, enough: number): number {
  let bytes = 0;
  for (const [name, it] of Object.entries(rest)) {
    if (typeof it !== 'string') bytes += valueBytes(it, enough);
    else bytes += name === 'refusal' || REASONING.includes(name) ? textBytes(it, enough) : quotedBytes(it, enough);
  }
  // A tool's result may be rendered as text or as JSON.
  const isOfTool = rest.role === 'tool' || rest.role === 'function';
  if (typeof content === 'string')
    return bytes + (isOfTool ? 2 + quotedBytes(content, enough) : textBytes(content, enough));
  if (!Array.isArray(content)) return bytes;
  if (isOfTool)
    bytes += valueBytes(
      content.filter((part) => part.type !== 'image_url'),
      enough,
    );
  for (const part of content as readonly Record<string, unknown>[]) {
    if (bytes >= enough) break;
    for (const it of [part.text, part.refusal])
      if (it !== undefined)
        bytes += TOKENS_PER_PART + (typeof it === 'string' ? textBytes(it, enough) : valueBytes(it, enough));
  }
  return bytes;
}

/**
 * The prompts of a request by route, `computed` from the text of each. Found once: what other requests teach while this
 * one runs does not change what it is held at.
 */
function promptsOf(model: Model, imageTokens: number, computed: (route: Route) => number[]): (route: Route) => Prompt {
  const sum = (list: number[]) => list.reduce((all, it) => all + it, 0);
  const prompts = new Map(
    model.routes.map((route) => {
      const each = computed(route);
      const bounds = each.map((it) => promptBound(route, it, imageTokens));
      const prompt: Prompt = {
        tokens: sum(bounds),
        computed: sum(each),
        added: each.length * (imageTokens + route.promptOverheadTokens),
        count: each.length,
        isCut: bounds.some((it) => it >= contextOf(route)),
      };
      return [route, prompt];
    }),
  );
  return (route) => prompts.get(route) as Prompt;
}

/** A member that is null is left out, as OpenAI does it: some clients send all that they know. */
const withoutNulls = <T extends object>(raw: T): T =>
  Object.fromEntries(Object.entries(raw).filter(([, value]) => value !== null)) as T;

/** Builds the body for each route, once in a row for the same route. The bodies differ in a member or two. */
function bodies(
  forwarded: Record<string, unknown>,
  own: (route: Route) => Record<string, unknown>,
): Pick<Bounded, 'bodyFor' | 'release'> {
  let common: Record<string, unknown> | undefined = forwarded;
  let last: { route: Route; body: Buffer } | undefined;
  return {
    bodyFor(route) {
      if (last?.route === route) return last.body;
      assert(common, 'no upstream is asked after the release');
      const body = Buffer.from(JSON.stringify({ ...common, ...own(route), model: route.upstreamModel }));
      last = { route, body };
      return body;
    },
    release() {
      common = undefined;
      last = undefined;
    },
  };
}

function unsupported(name: string): Refusal {
  return new Refusal(
    'unsupported_parameter',
    `"${name.slice(0, 80)}" is not priced here, so it is not forwarded. Leave it out.`,
    { param: name.slice(0, 80) },
  );
}

function invalid(field: string, what: string): Refusal {
  return new Refusal('invalid_request', `${field}: ${what}.`, { param: field });
}

function wholeNumber(
  request: Readonly<Record<string, unknown>>,
  name: string,
  max = Number.MAX_SAFE_INTEGER,
): number | undefined {
  const value = request[name];
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && (value as number) >= 1 && (value as number) <= max) return value as number;
  throw invalid(name, `must be a whole number from 1${max < 1e6 ? ` to ${max}` : ''}`);
}

/** Fields in which reasoning models answer besides the content, and which clients send back in tool loops: text. */
const REASONING = ['reasoning_content', 'reasoning'];
/**
 * Allowed members of a message, of a part of its content and of a tool. An answer of a model can be sent back
 * unchanged.
 */
const MESSAGE = new Set([
  ...['role', 'content', 'name', 'tool_calls', 'tool_call_id', 'function_call', 'refusal'],
  ...REASONING,
]);
const PART = new Set(['type', 'text', 'refusal']);
const TOOL = new Set(['type', 'function', 'custom']);

/**
 * Refuses members that are not known to be text: bytes bound only text, not images, audio, files or cache directives.
 */
function refuseMembers(value: unknown, allowed: ReadonlySet<string>, where: string): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw invalid(where, 'must be an object');
  for (const [name, it] of Object.entries(value)) {
    const isEmpty = it === null || (Array.isArray(it) && it.length === 0); // Stock clients send answers back this way.
    if (!allowed.has(name) && !isEmpty) throw unsupported(`${where}.${name}`);
  }
}

const IMAGE = new Set(['type', 'image_url']);
const IMAGE_URL = new Set(['url', 'detail']);

/** Checks every message. Returns the number of images, if images are sold. */
function refuseContent(messages: readonly Record<string, unknown>[], model: Model): number {
  let images = 0;
  messages.forEach((message, i) => {
    refuseMembers(message, MESSAGE, `messages.${i}`);
    const { role, content } = message;
    if (typeof role !== 'string') throw invalid(`messages.${i}.role`, 'must be a string');
    for (const name of REASONING)
      if (typeof (message[name] ?? '') !== 'string') throw unsupported(`messages.${i}.${name}`);
    if (content === undefined || content === null || typeof content === 'string') return;
    if (!Array.isArray(content)) throw unsupported(`messages.${i}.content`);
    content.forEach((part, k) => {
      const where = `messages.${i}.content.${k}`;
      if (typeof part !== 'object' || part === null) throw unsupported(where);
      if (model.imageTokens !== undefined && part.type === 'image_url') {
        images++;
        refuseImage(part, where, model.imageUrls);
        return;
      }
      refuseMembers(part, PART, where);
      if (part.type !== 'text' && part.type !== 'refusal') throw unsupported(where);
    });
  });
  return images;
}

/** The image types that model servers accept. The content behind a network URL is unknown here. */
const DATA_IMAGE = /^data:image\/(png|jpeg|webp|gif)[;,]/;

function refuseImage(part: Record<string, unknown>, where: string, takesUrls: boolean): void {
  refuseMembers(part, IMAGE, where);
  const image = part.image_url;
  refuseMembers(image, IMAGE_URL, `${where}.image_url`);
  const { url } = image as { url?: unknown };
  if (typeof url === 'string' && (DATA_IMAGE.test(url) || (takesUrls && /^https?:\/\//.test(url)))) return;
  const also = takesUrls ? ', or an http(s) address' : '; this model takes no addresses';
  throw invalid(`${where}.image_url.url`, `must be data:image/png, jpeg, webp or gif${also}`);
}

/**
 * Checks the tools and returns their number. Tools run by the caller are text; tools run by the provider have a price
 * of their own and are refused.
 */
function refuseTools(tools: unknown): number {
  if (tools === undefined) return 0;
  if (!Array.isArray(tools)) throw invalid('tools', 'must be an array');
  tools.forEach((tool, i) => {
    if (typeof tool !== 'object' || tool === null) throw unsupported(`tools.${i}`);
    refuseMembers(tool, TOOL, `tools.${i}`);
    const type = (tool as { type?: unknown } | null)?.type;
    if (type !== 'function' && type !== 'custom') throw unsupported(`tools.${i}`);
  });
  return tools.length;
}

/** Fields of an embeddings request that may be forwarded. */
const EMBEDDED = new Set(['input', 'encoding_format', 'dimensions', 'user']);
const INPUT_COUNT_MAX = 2048;

/**
 * Bounds an embeddings request: texts by their bytes, token lists by their length, each at most one context. Throws as
 * `boundChat` does.
 */
export function boundEmbeddings(model: Model, raw: Readonly<Record<string, unknown>>): Bounded {
  const request = withoutNulls(raw);
  const forwarded: Record<string, unknown> = { model: '' };
  for (const [name, value] of Object.entries(request)) {
    if (EMBEDDED.has(name)) forwarded[name] = value;
    else if (name !== 'model') throw unsupported(name);
  }
  wholeNumber(request, 'dimensions');
  const inputs = inputsOf(request.input, Math.max(...model.routes.map(contextOf)));
  const prompt = promptsOf(model, 0, (route) =>
    inputs.map(({ bytes, tokens }) => bytes * route.tokensPerByte + tokens + TOKENS_PER_INPUT),
  );
  return {
    choices: 1,
    images: 0,
    ...bodies(forwarded, () => ({})),
    most: (route) => ({ promptTokens: prompt(route).tokens, completionTokens: 0, images: 0 }),
    prompt,
    reducible: undefined,
    reduceTo() {},
  };
}

/** Parses the input: a text, a list of texts, a list of tokens, or a list of such lists. */
function inputsOf(input: unknown, enough: number): { bytes: number; tokens: number }[] {
  const isTokens = (it: unknown): it is number[] =>
    Array.isArray(it) && it.length > 0 && it.every((token) => Number.isSafeInteger(token) && token >= 0);
  const list = typeof input === 'string' || isTokens(input) ? [input] : input;
  if (!Array.isArray(list) || list.length === 0)
    throw invalid('input', 'must be a text, a list of texts, a list of tokens, or a list of such lists');
  if (list.length > INPUT_COUNT_MAX) throw invalid('input', `must have at most ${INPUT_COUNT_MAX} entries`);
  return list.map((it, i) => {
    if (typeof it === 'string') return { bytes: textBytes(it, enough), tokens: 0 };
    if (isTokens(it)) return { bytes: 0, tokens: it.length };
    throw invalid(`input.${i}`, 'must be a text or a list of tokens');
  });
}
