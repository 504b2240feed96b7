// What of a chat is refused because the bytes of its prompt do not bound what it costs.
import { isText, LongText } from '../base/long-text.ts';
import { type Json, wordOf } from '../base/parse-json.ts';
import { invalid, unsupported } from './field-refusals.ts';

/**
 * Parameters of Transformers' `apply_chat_template`, to which SGLang and older versions of vLLM pass the switches of a template:
 * they choose the template itself, or a length to which the prompt is filled. Neither is bounded by its bytes.
 */
const RENDERING = new Set([
  ...['chat_template', 'tokenize', 'padding', 'truncation', 'max_length', 'tokenizer_kwargs'],
  ...['return_tensors', 'return_dict', 'return_assistant_tokens_mask'],
]);

/** Refuses parameters of rendering among the switches of a template. */
export function refuseRendering(switches: unknown): void {
  if (typeof switches !== 'object' || switches === null) return;
  const name = Object.keys(switches).find((it) => RENDERING.has(it));
  if (name !== undefined) throw unsupported(`chat_template_kwargs.${name}`);
}

/**
 * Refuses a mode of reasoning in which a model server works on a request more than once, as OpenAI's `pro`: the tokens of all its work
 * are counted together, and are bounded neither by the bytes of the prompt nor by the output limit.
 */
export function refuseReasoning(reasoning: unknown): void {
  if (typeof reasoning !== 'object' || reasoning === null) return;
  const { mode } = reasoning as Readonly<Json>;
  if (mode !== undefined && mode !== null && mode !== 'standard') throw unsupported('reasoning.mode');
}

/** Text fields in which reasoning models answer besides the content, and which clients send back in tool loops. */
export const REASONING = ['reasoning_content', 'reasoning'];
/**
 * Members in which model servers answer besides these, with thoughts, signatures and sources (OpenRouter, LiteLLM, SGLang,
 * Gemini). Clients send them back with the rest of an answer. They have values of any shape, and count by value.
 */
export const ANSWERED = [
  'reasoning_details',
  'thinking_blocks',
  'provider_specific_fields',
  'extra_content',
  'annotations',
  'matched_stop',
];
/**
 * Allowed members of a message, of a part of its content and of a tool. An answer of a model can be sent back
 * unchanged.
 */
const MESSAGE = new Set([
  ...['role', 'content', 'name', 'tool_calls', 'tool_call_id', 'function_call', 'refusal'],
  ...REASONING,
]);
const ANSWER = new Set([...MESSAGE, ...ANSWERED]);
const PART = new Set(['type', 'text', 'refusal']);
/** A thought in Mistral's form: with parts of its own, or as a text. */
const THOUGHT = new Set(['type', 'thinking', 'closed', 'signature']);
const TOOL = new Set(['type', 'function', 'custom']);

/**
 * Refuses members that are not known to be text: bytes bound only text, not images, audio, files or cache directives. A number
 * stands for the message at this place.
 */
function refuseMembers(value: unknown, allowed: ReadonlySet<string>, where: string | number): void {
  const place = () => (typeof where === 'number' ? `messages.${where}` : where);
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw invalid(place(), 'must be an object');
  for (const name of Object.keys(value)) {
    if (allowed.has(name)) continue;
    const it = (value as Readonly<Json>)[name];
    const isEmpty = it === null || (Array.isArray(it) && it.length === 0); // Stock clients send answers back this way.
    if (!isEmpty) throw unsupported(`${place()}.${name}`);
  }
}

/**
 * Matches names of members, and types of parts, that hold or name content that bytes do not bound, and marks for prompt
 * caches.
 */
const NOT_TEXT = /^(input_)?(image|audio|video|file|document$|cache_control$)/;

/** Refuses content that is not text, anywhere in a value that came with an answer. */
function refuseMedia(value: unknown, where: string): void {
  if (typeof value !== 'object' || value === null) return;
  for (const [name, it] of Object.entries(value)) {
    if (it === null) continue;
    if (
      NOT_TEXT.test(name) ||
      (name === 'type' && [it].flat(Number.POSITIVE_INFINITY).some((one) => NOT_TEXT.test(wordOf(one))))
    )
      throw unsupported(where);
    refuseMedia(it, where);
  }
}

/** Which images a model takes. */
type ImageTerms = { sellsImages: boolean; imageUrls: boolean };

const IMAGE = new Set(['type', 'image_url']);
const IMAGE_URL = new Set(['url', 'detail']);

/** Checks every message. Returns the number of images, if images are sold. */
export function refuseContent(messages: readonly Readonly<Json>[], model: ImageTerms): number {
  let images = 0;
  for (let i = 0; i < messages.length; i++) {
    const message = messages[i] as Readonly<Json>;
    const isAnswer = message?.role === 'assistant';
    refuseMembers(message, isAnswer ? ANSWER : MESSAGE, i);
    for (const name of ANSWERED) if (message[name] !== undefined) refuseMedia(message[name], `messages.${i}.${name}`);
    const { role, content } = message;
    if (typeof role !== 'string') throw invalid(`messages.${i}.role`, 'must be a string');
    for (const name of REASONING) if (!isText(message[name] ?? '')) throw unsupported(`messages.${i}.${name}`);
    if (content === undefined || content === null || isText(content)) continue;
    if (!Array.isArray(content)) throw unsupported(`messages.${i}.content`);
    for (let k = 0; k < content.length; k++)
      images += refusePart(content[k], `messages.${i}.content.${k}`, isAnswer, model);
  }
  return images;
}

/** Checks a part of a message's content. Returns the number of images in it. */
function refusePart(part: Readonly<Json> | null, where: string, isAnswer: boolean, model: ImageTerms): 0 | 1 {
  if (typeof part !== 'object' || part === null) throw unsupported(where);
  if (model.sellsImages && part.type === 'image_url') {
    refuseImage(part, where, model.imageUrls);
    return 1;
  }
  if (isAnswer && part.type === 'thinking') {
    refuseMembers(part, THOUGHT, where);
    refuseMedia(part, where);
    return 0;
  }
  refuseMembers(part, PART, where);
  if (part.type !== 'text' && part.type !== 'refusal') throw unsupported(where);
  return 0;
}

/** The image types that model servers accept. The content behind a network URL is unknown here. */
const DATA_IMAGE = /^data:image\/(png|jpeg|webp|gif)[;,]/;

function refuseImage(part: Readonly<Json>, where: string, takesUrls: boolean): void {
  refuseMembers(part, IMAGE, where);
  const image = part.image_url;
  refuseMembers(image, IMAGE_URL, `${where}.image_url`);
  const { url: whole } = image as { url?: unknown };
  const url = whole instanceof LongText ? whole.head() : whole;
  if (typeof url === 'string' && (DATA_IMAGE.test(url) || (takesUrls && /^https?:\/\//.test(url)))) return;
  const also = takesUrls ? ', or an http(s) address' : '; this model takes no addresses';
  throw invalid(`${where}.image_url.url`, `must be data:image/png, jpeg, webp or gif${also}`);
}

/**
 * Checks the tools and returns their number. Tools run by the caller are text; tools run by the provider have a price
 * of their own and are refused.
 */
export function refuseTools(tools: unknown): number {
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
