import assert from 'node:assert/strict';
import { Refusal } from '../refusal.ts';
import { contextOf, type Model, promptBound, type Route } from './catalogue.ts';
import type { Most } from './price.ts';
import { quotedBytes, TooDeep, textBytes, valueBytes } from './rendered.ts';

/**
 * Prompt tokens beside the values of a request: what the template writes around them. Per request: a preamble of the
 * template (the date, a short default system prompt) and the opening of the answer. For tools: the words that explain how
 * to call them (Claude: up to 530). What a server adds beyond is `prompt_overhead_tokens`.
 */
const TOKENS_PER_REQUEST = 128;
const TOKENS_PER_MESSAGE = 40;
const TOKENS_PER_PART = 8;
const TOKENS_FOR_TOOLS = 640;
const TOKENS_PER_TOOL = 64;
const TOKENS_PER_INPUT = 8;
const CHOICE_COUNT_MAX = 128;
/** An answer shorter than this is of no use to a caller who named no limit. */
const OUTPUT_TOKENS_MIN = 256;
/** Bytes of a token in prose. For a decision that need not be exact: how much room a prompt leaves for its answer. */
const TYPICAL_BYTES_PER_TOKEN = 4;

/** What may go upstream and costs nothing but its bytes. All else is refused: a field that is not priced breaks the bound. */
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
 * Read here and written anew, or accepted with the one value that changes nothing. `metadata` is accepted and kept here: a
 * model server may choose by it where a request goes (LiteLLM's tags).
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
  /** How many answers were asked for. */
  choices: number;
  images: number;
  most(route: Route): Most;
  prompt(route: Route): Prompt;
  /** Output tokens of one answer, and how few they may become; undefined where the caller named the limit. */
  reducible: { outputTokens: number; outputTokensMin: number } | undefined;
  /** Reserves for answers of at most so many tokens, from now on. */
  reduceTo(outputTokens: number): void;
  /** The body as it goes upstream by this route. */
  bodyFor(route: Route): Buffer;
  /** Lets go of the bodies: nobody else will be asked. */
  release(): void;
};

/**
 * Bounds a chat completion. What is bounded is the prompt as a model server renders it (rendered.ts); the output limit
 * that is reserved for is written into the body. With `stream` the upstream is told to stream, its usage included.
 * Refuses with `unsupported_parameter` what is not priced and with `invalid_request` what is malformed.
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
  // What makes the upstream remember, or costs another price. The harmless value is passed on, so that it is obeyed.
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
  // Where the caller named none: a model server refuses a limit that does not fit its context beside the prompt. How long
  // the prompt is, it alone knows; should the estimate be too low, it refuses, and that costs nothing.
  const estimate = Math.ceil(bytes / TYPICAL_BYTES_PER_TOKEN) + imageTokens;
  const outputOf = (route: Route) => {
    if (isNamed) return perChoice;
    const room = route.contextLength - estimate - route.promptOverheadTokens;
    return Math.min(perChoice, Math.max(outputTokensMin, room));
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

/** Bytes of the prompt: texts as they are, what is structured by its values; images apart, since bytes bound none. */
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
  // What a tool answered may be rendered as text, or as JSON.
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

/** Bodies by route, each made once: they differ in a name or two. */
function bodies(
  forwarded: Record<string, unknown>,
  own: (route: Route) => Record<string, unknown>,
): Pick<Bounded, 'bodyFor' | 'release'> {
  let common: Record<string, unknown> | undefined = forwarded;
  let last: { route: Route; body: Buffer } | undefined;
  return {
    bodyFor(route) {
      if (last?.route === route) return last.body;
      assert(common, 'nobody is asked after the release');
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
  most = Number.MAX_SAFE_INTEGER,
): number | undefined {
  const value = request[name];
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && (value as number) >= 1 && (value as number) <= most) return value as number;
  throw invalid(name, `must be a whole number from 1${most < 1e6 ? ` to ${most}` : ''}`);
}

/** What models that think aloud answer beside the content, and what clients send back in a loop of tools: text. */
const REASONING = ['reasoning_content', 'reasoning'];
/** What a message, a part of its content and a tool may hold; an answer of a model can be sent back as it came. */
const MESSAGE = new Set([
  ...['role', 'content', 'name', 'tool_calls', 'tool_call_id', 'function_call', 'refusal'],
  ...REASONING,
]);
const PART = new Set(['type', 'text', 'refusal']);
const TOOL = new Set(['type', 'function', 'custom']);

/** Refuses members that are not known to be text: bytes bound text only, not images, audio, files or cache orders. */
function refuseMembers(value: unknown, allowed: ReadonlySet<string>, where: string): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw invalid(where, 'must be an object');
  for (const [name, it] of Object.entries(value)) {
    const isEmpty = it === null || (Array.isArray(it) && it.length === 0); // As stock clients send an answer back.
    if (!allowed.has(name) && !isEmpty) throw unsupported(`${where}.${name}`);
  }
}

const IMAGE = new Set(['type', 'image_url']);
const IMAGE_URL = new Set(['url', 'detail']);

/** Looks at every message. Returns how many images there are, where images are sold. */
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

/** The kinds of images that model servers take. Of an address on the network nobody here knows what it leads to. */
const DATA_IMAGE = /^data:image\/(png|jpeg|webp|gif)[;,]/;

function refuseImage(part: Record<string, unknown>, where: string, takesAddresses: boolean): void {
  refuseMembers(part, IMAGE, where);
  const image = part.image_url;
  refuseMembers(image, IMAGE_URL, `${where}.image_url`);
  const { url } = image as { url?: unknown };
  if (typeof url === 'string' && (DATA_IMAGE.test(url) || (takesAddresses && /^https?:\/\//.test(url)))) return;
  const also = takesAddresses ? ', or an http(s) address' : '; this model takes no addresses';
  throw invalid(`${where}.image_url.url`, `must be data:image/png, jpeg, webp or gif${also}`);
}

/** Tools that the caller runs are text; tools that the provider runs have a price of their own. */
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

/** What may go upstream of a request for embeddings. */
const EMBEDDED = new Set(['input', 'encoding_format', 'dimensions', 'user']);
const INPUT_COUNT_MAX = 2048;

/** Bounds a request for embeddings: texts by their bytes, token lists by their length, each at most one context. */
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

/** A text, a list of texts, a list of tokens, or a list of such lists. */
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
