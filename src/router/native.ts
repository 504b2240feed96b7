import { type Json, wordOf } from '../base/parse-json.ts';
import { isWire, type NativeWire } from '../config/router.ts';
import type { Model } from './catalogue.ts';
import { bytesOfText, bytesOfValue } from './generated.ts';
import { eventsOfItem } from './response-events.ts';
import { errorIn, eventOf, type SseEvent } from './sse.ts';

/**
 * The end, the usage and the errors in answers of Anthropic's Messages and OpenAI's Responses. The answers pass unchanged;
 * only this is read.
 */

/** The APIs in which a model server is asked. Legacy completions are answered by the models for chats. */
export type Api = Model['kind'] | 'completions' | NativeWire;

/** The only upstream paths ever called. */
export const PATHS: Record<Api, string> = {
  chat: 'chat/completions',
  completions: 'completions',
  embeddings: 'embeddings',
  rerank: 'rerank',
  messages: 'messages',
  responses: 'responses',
};

const objectOf = (value: unknown): Json => (typeof value === 'object' && value !== null ? (value as Json) : {});

/** Returns whether a complete answer is one of this API. Also separates stored answers from chat completions. */
export function isAnswerOf(wire: NativeWire, json: unknown): boolean {
  const { type, content, object, output } = objectOf(json);
  return wire === 'messages'
    ? type === 'message' && Array.isArray(content)
    : object === 'response' && Array.isArray(output);
}

/** Returns whether an event belongs to one of these APIs, and not to a chat completion: its chunks have no type. */
export function isNativeEvent(json: unknown): boolean {
  const { type, choices } = objectOf(json);
  return typeof type === 'string' && choices === undefined;
}

/**
 * Events that come before any generated text: an error right after them is a definite refusal. OpenAI sends `keepalive` while nothing
 * else is ready (openai/openai-node#1964).
 */
const PREAMBLE = new Set([
  ...['message_start', 'ping'],
  ...['response.created', 'response.in_progress', 'response.queued', 'keepalive'],
]);
export const isPreamble = (json: unknown): boolean => PREAMBLE.has(wordOf(objectOf(json).type));

/** The events that end a stream. The client gets them once the charge is on disk. */
const LAST = new Set(['message_stop', 'response.completed', 'response.incomplete']);
export const isLastEvent = (json: unknown): boolean => LAST.has(wordOf(objectOf(json).type));

/** Names of errors in answers with status 200, and the status that each stands for. */
const STATUSES: Record<string, number> = {
  invalid_request_error: 400,
  invalid_prompt: 400,
  context_length_exceeded: 400,
  not_found_error: 404,
  request_too_large: 413,
  rate_limit_error: 429,
  rate_limit_exceeded: 429,
  request_timeout: 408,
  timeout: 504,
  timeout_error: 504,
};

/**
 * Returns the error in place of an answer or an event, in the shape of a chat completion's; undefined if there is none.
 * `api` is the API of the request.
 */
export function errorOf(api: Api, json: unknown): object | undefined {
  if (!isWire(api)) return errorIn(json);
  const { type, error, response, ...own } = objectOf(json);
  // A failed response may omit the reason.
  const told =
    type === 'response.failed' ? (objectOf(response).error ?? {}) : (error ?? (type === 'error' ? own : undefined));
  if (!told) return undefined;
  const { type: kind, code, message } = typeof told === 'string' ? ({ message: told } as Json) : objectOf(told);
  return { error: { message, code: STATUSES[wordOf(kind)] ?? STATUSES[wordOf(code)] ?? code } };
}

/** Members of an answer that hold generated text. A signature holds thinking that is not shown. */
const GENERATED = ['text', 'refusal', 'thinking', 'partial_json', 'signature', 'data', 'encrypted_content'];
/** Members that hold lists of such parts. */
const PARTS = ['content', 'summary', 'output'];

/** Returns the bytes of text that a model generated in a complete answer, which bound its tokens. */
export function generatedInAnswer(json: unknown): number {
  const part = objectOf(json);
  let bytes = 0;
  for (const name of GENERATED) bytes += bytesOfText(part[name]);
  bytes += bytesOfValue(part.input) + bytesOfValue(part.arguments);
  for (const name of PARTS) if (Array.isArray(part[name])) for (const it of part[name]) bytes += generatedInAnswer(it);
  return bytes;
}

/** Returns the same for one event of a stream. Text that an event repeats is not counted again. */
export function generatedInEvent({ type, delta, content_block: block, item }: Json): number {
  if (type === 'content_block_delta') return generatedInAnswer(delta);
  if (type === 'content_block_start') return generatedInAnswer(block);
  if (type === 'response.output_item.done') return generatedUnshown(objectOf(item));
  return typeof delta === 'string' ? bytesOfText(delta) : 0;
}

/** Counts what only the end of an item tells: hidden reasoning, and the arguments of a search for tools, which are an object. */
function generatedUnshown({ encrypted_content: hidden, arguments: given }: Json): number {
  return bytesOfText(hidden) + (typeof given === 'object' ? bytesOfValue(given) : 0);
}

/** Converts a complete answer into events, for an upstream that does not stream. */
export function eventsOfAnswer(wire: NativeWire, answer: unknown): SseEvent[] {
  const whole = objectOf(answer);
  const events = wire === 'messages' ? eventsOfMessage(whole) : eventsOfResponse(whole);
  return events.map((it) => ({
    raw: Buffer.concat([Buffer.from(`event: ${it.type}\n`), eventOf(it)]),
    data: JSON.stringify(it),
  }));
}

function eventsOfMessage({ content, stop_reason, stop_sequence, usage, ...head }: Json): Json[] {
  const begun = { ...head, content: [], stop_reason: null, stop_sequence: null, usage };
  const blocks = (content as unknown[]).flatMap((it, index) => {
    const block = objectOf(it);
    const at = { index };
    const delta = (more: Json) => ({ type: 'content_block_delta', ...at, delta: more });
    const { text, thinking, signature, input } = block;
    const [empty, deltas] =
      block.type === 'text'
        ? [{ text: '' }, [delta({ type: 'text_delta', text })]]
        : block.type === 'thinking'
          ? [
              { thinking: '', signature: '' },
              [delta({ type: 'thinking_delta', thinking }), delta({ type: 'signature_delta', signature })],
            ]
          : block.type === 'tool_use'
            ? [{ input: {} }, [delta({ type: 'input_json_delta', partial_json: JSON.stringify(input) })]]
            : [{}, []];
    const start = { type: 'content_block_start', ...at, content_block: { ...block, ...empty } };
    return [start, ...deltas, { type: 'content_block_stop', ...at }];
  });
  return [
    { type: 'message_start', message: begun },
    ...blocks,
    { type: 'message_delta', delta: { stop_reason, stop_sequence }, usage },
    { type: 'message_stop' },
  ];
}

function eventsOfResponse(response: Json): Json[] {
  const begun = { ...response, status: 'in_progress', output: [], usage: null };
  const items = (response.output as unknown[]).flatMap((item, index) => eventsOfItem(index, objectOf(item)));
  const { status } = response;
  const last = `response.${status === 'incomplete' || status === 'failed' ? status : 'completed'}`;
  return [
    { type: 'response.created', response: begun },
    { type: 'response.in_progress', response: begun },
    ...items,
    { type: last, response },
  ].map((it, number) => ({ ...it, sequence_number: number }));
}
