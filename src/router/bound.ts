import { Refusal } from '../refusal.ts';
import type { Model } from './catalogue.ts';

/**
 * Constants beside the byte count. A message's own framing (about 4 tokens, plus 3 a request) is covered by its JSON,
 * which is longer; these cover what a provider adds that is not in the body: a hidden preamble, and the one for tools.
 */
const PROMPT_TOKENS_PER_REQUEST = 64;
const PROMPT_TOKENS_PER_MESSAGE = 8;
const PROMPT_TOKENS_PER_TOOL = 512;
const CHOICE_COUNT_MAX = 128;

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
  'metadata',
  'safety_identifier',
  'verbosity',
  'reasoning_effort',
]);
/** Read here and written anew, or accepted with the one value that changes nothing. */
const HANDLED = new Set([
  'model',
  'stream',
  'n',
  'max_tokens',
  'max_completion_tokens',
  'store',
  'service_tier',
  'modalities',
]);

export type ChatBody = Readonly<Record<string, unknown>> & {
  model: string;
  messages: readonly Record<string, unknown>[];
};
export type Bounded = { body: Buffer; promptTokens: number; completionTokens: number; choices: number };

/**
 * The request as it goes upstream, with a true upper bound of its tokens (design, section 8). A byte-level token covers
 * at least one byte, so the body's bytes bound the prompt; the output limit that is reserved for is written into the body.
 * Refuses with `unsupported_parameter` what is not priced and with `invalid_request` what is malformed.
 */
export function bound(model: Model, request: ChatBody): Bounded {
  const forwarded: Record<string, unknown> = { model: model.upstreamModel };
  for (const [name, value] of Object.entries(request)) {
    if (FORWARDED.has(name)) forwarded[name] = value;
    else if (!HANDLED.has(name)) throw unsupported(name);
  }
  refuseContent(request.messages);
  if (request.functions !== undefined && !Array.isArray(request.functions))
    throw new Refusal('invalid_request', 'functions: must be an array.');
  const tools = refuseTools(request.tools) + (Array.isArray(request.functions) ? request.functions.length : 0);
  if (request.store !== undefined && request.store !== false) throw unsupported('store');
  if (request.service_tier !== undefined && request.service_tier !== 'default') throw unsupported('service_tier');
  if (request.modalities !== undefined && JSON.stringify(request.modalities) !== '["text"]')
    throw unsupported('modalities');

  const choices = wholeNumber(request, 'n', CHOICE_COUNT_MAX) ?? 1;
  if (choices > 1) forwarded.n = choices;
  const asked = [wholeNumber(request, 'max_tokens'), wholeNumber(request, 'max_completion_tokens')];
  const perChoice = Math.min(model.maxOutputTokens, ...asked.filter((it) => it !== undefined));
  forwarded[model.outputLimit] = perChoice;
  forwarded.stream = false;

  const body = Buffer.from(JSON.stringify(forwarded));
  const counted =
    body.length * model.tokensPerByte +
    PROMPT_TOKENS_PER_REQUEST +
    PROMPT_TOKENS_PER_MESSAGE * request.messages.length +
    PROMPT_TOKENS_PER_TOOL * tools;
  return { body, promptTokens: Math.min(counted, model.contextLength), completionTokens: choices * perChoice, choices };
}

function unsupported(name: string): Refusal {
  return new Refusal(
    'unsupported_parameter',
    `"${name.slice(0, 80)}" is not priced here, so it is not forwarded. Leave it out.`,
  );
}

function wholeNumber(request: ChatBody, name: string, most = Number.MAX_SAFE_INTEGER): number | undefined {
  const value = request[name];
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && (value as number) >= 1 && (value as number) <= most) return value as number;
  throw new Refusal('invalid_request', `${name}: must be a whole number from 1${most < 1e6 ? ` to ${most}` : ''}.`);
}

/** What a message, a part of its content and a tool may hold; an answer of a model can be sent back as it came. */
const MESSAGE = new Set(['role', 'content', 'name', 'tool_calls', 'tool_call_id', 'function_call', 'refusal']);
const PART = new Set(['type', 'text', 'refusal']);
const TOOL = new Set(['type', 'function', 'custom']);

/** Refuses members that are not known to be text: bytes bound text only, not images, audio, files or cache orders. */
function refuseMembers(value: unknown, allowed: ReadonlySet<string>, where: string): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new Refusal('invalid_request', `${where}: must be an object.`);
  for (const [name, it] of Object.entries(value)) {
    const isEmpty = it === null || (Array.isArray(it) && it.length === 0); // As stock clients send an answer back.
    if (!allowed.has(name) && !isEmpty) throw unsupported(`${where}.${name}`);
  }
}

function refuseContent(messages: readonly Record<string, unknown>[]): void {
  messages.forEach((message, i) => {
    refuseMembers(message, MESSAGE, `messages.${i}`);
    const { role, content } = message;
    if (typeof role !== 'string') throw new Refusal('invalid_request', `messages.${i}.role: must be a string.`);
    if (content === undefined || content === null || typeof content === 'string') return;
    if (!Array.isArray(content)) throw unsupported(`messages.${i}.content`);
    content.forEach((part, k) => {
      if (typeof part !== 'object' || part === null) throw unsupported(`messages.${i}.content.${k}`);
      refuseMembers(part, PART, `messages.${i}.content.${k}`);
      if (part.type !== 'text' && part.type !== 'refusal') throw unsupported(`messages.${i}.content.${k}`);
    });
  });
}

/** Tools that the caller runs are text; tools that the provider runs have a price of their own. */
function refuseTools(tools: unknown): number {
  if (tools === undefined) return 0;
  if (!Array.isArray(tools)) throw new Refusal('invalid_request', 'tools: must be an array.');
  tools.forEach((tool, i) => {
    if (typeof tool !== 'object' || tool === null) throw unsupported(`tools.${i}`);
    refuseMembers(tool, TOOL, `tools.${i}`);
    const type = (tool as { type?: unknown } | null)?.type;
    if (type !== 'function' && type !== 'custom') throw unsupported(`tools.${i}`);
  });
  return tools.length;
}
