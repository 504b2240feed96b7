import type { Json } from '../../base/parse-json.ts';
import { REFUSALS, type Refusal } from '../../base/refusal.ts';
import { readUsage, type TokenUsage } from '../../router/usage.ts';
import { gatewayStatus } from '../openai-error.ts';
import { type Block, type BlockEvent, blocksOf, choiceOf, createBlockReader, finishReasonOf } from './blocks.ts';
import { type Answers, type Dialect, idFrom, type StreamTranslator } from './dialect.ts';
import { type NamedEvent, textsOf } from './event-texts.ts';
import { objectOf, parseObject } from './json.ts';
import { messagesHeaders, nativeMessages, writtenMessages } from './messages-native.ts';
import { chatOfMessages, type ToolNames, toolNamesOf } from './messages-request.ts';

/** Anthropic's Messages API (docs.anthropic.com/en/api/messages), as of anthropic-version 2023-06-01. */
export const messagesDialect: Dialect = {
  name: 'messages',
  native: nativeMessages,
  written: writtenMessages,
  headers: messagesHeaders,
  route: 'router/messages',
  translate(raw) {
    const { chat, ...rest } = chatOfMessages(raw);
    const stops = Array.isArray(raw.stop_sequences) ? raw.stop_sequences.filter((it) => typeof it === 'string') : [];
    return { chat, ...rest, kept: { model: chat.model, stops, names: toolNamesOf(raw) } };
  },
  answers: ({ model, stops, names }, seed) =>
    answersOf(model as string, stops as string[], { seed, names: names as ToolNames }),
};

/** The parts of a request that its answer's blocks are made with. */
type ForBlocks = { seed: string; names: ToolNames };

function answersOf(model: string, stops: readonly string[], about: ForBlocks): Answers {
  const message = (upstreamId: unknown, rest: Json) => ({
    id: idFrom('msg', upstreamId, about.seed),
    type: 'message',
    role: 'assistant',
    model,
    ...rest,
  });
  return {
    whole(completion) {
      const choice = choiceOf(completion);
      const blocks = blocksOf(choice.message);
      const { id } = objectOf(completion);
      return message(id, {
        content: blocks.map((block) => contentOf(block, about)),
        ...stopOf(choice, blocks, stops),
        usage: usageOf(readUsage(completion, 'chat')),
      });
    },
    stream(): StreamTranslator {
      const reader = createBlockReader();
      let hasBegun = false;
      let last: Json = {};
      let usage: TokenUsage | undefined;
      const begin = (id: unknown): NamedEvent[] => {
        if (hasBegun) return [];
        hasBegun = true;
        const empty = { content: [], stop_reason: null, stop_sequence: null, usage: usageOf(undefined) };
        return [{ type: 'message_start', message: message(id, empty) }, { type: 'ping' }];
      };
      const eventsOf = (events: readonly BlockEvent[]) => events.flatMap((it) => eventsFor(it, about));
      return {
        chunk(chunk) {
          usage = readUsage(chunk, 'chat') ?? usage;
          const choice = choiceOf(chunk);
          if (choice.finish_reason) last = choice;
          const { id } = objectOf(chunk);
          return textsOf([...begin(id), ...eventsOf(reader.read(choice.delta))]);
        },
        end() {
          const closed = [...begin(undefined), ...eventsOf(reader.end())];
          const delta = stopOf(last, reader.blocks, stops);
          return textsOf([
            ...closed,
            { type: 'message_delta', delta, usage: usageOf(usage) },
            { type: 'message_stop' },
          ]);
        },
        fail: (refusal, text, requestId) => textsOf([messagesError(refusal, text, requestId)]),
      };
    },
  };
}

/** Returns the id of a call, which the next request sends back. */
const callId = ({ id, index }: Block, { seed }: ForBlocks) => id ?? idFrom('toolu', undefined, `${seed}_${index}`);

/**
 * Returns the arguments for the client; if they are not a JSON object, in the form that Anthropic advises for unparsable
 * input.
 */
const inputOf = (text: string): Json => (text.trim() ? (parseObject(text) ?? { INVALID_JSON: text }) : {});

function contentOf(block: Block, about: ForBlocks): Json {
  switch (block.kind) {
    case 'reasoning':
      return { type: 'thinking', thinking: block.text, signature: '' };
    case 'call':
      return {
        type: 'tool_use',
        id: callId(block, about),
        name: about.names.get(block.name) ?? block.name,
        input: inputOf(block.text),
      };
    default:
      return { type: 'text', text: block.text };
  }
}

function eventsFor(event: BlockEvent, about: ForBlocks): NamedEvent[] {
  const { block } = event;
  const { kind, index } = block;
  const deltaOf = (delta: Json) => ({ type: 'content_block_delta', index, delta });
  if (event.type === 'stop') {
    // Clients that build their next request from deltas leave out a thought without a signature (the AI SDK).
    const signed = kind === 'reasoning' ? [deltaOf({ type: 'signature_delta', signature: '' })] : [];
    return [...signed, { type: 'content_block_stop', index }];
  }
  if (event.type === 'start') {
    const empty = contentOf({ ...block, text: '' }, about);
    return [{ type: 'content_block_start', index, content_block: empty }];
  }
  const { text } = event;
  if (kind === 'call') return [deltaOf({ type: 'input_json_delta', partial_json: text })];
  return [deltaOf(kind === 'reasoning' ? { type: 'thinking_delta', thinking: text } : { type: 'text_delta', text })];
}

function stopOf(choice: Json, blocks: readonly Block[], stops: readonly string[]) {
  const is = (name: string) => ({ stop_reason: name, stop_sequence: null });
  const { stop_reason: stop } = choice;
  const reason = finishReasonOf(choice);
  if (reason === 'length') return is('max_tokens');
  if (reason === 'content_filter' || blocks.some(({ kind }) => kind === 'refusal')) return is('refusal');
  // Some servers name "stop" as the reason for a call, too.
  if (blocks.some(({ kind }) => kind === 'call')) return is('tool_use');
  // vLLM and SGLang name the text that stopped them.
  if (typeof stop === 'string' && stops.includes(stop)) return { stop_reason: 'stop_sequence', stop_sequence: stop };
  return is('end_turn');
}

/** Returns the usage in Anthropic's form, which counts cached and written tokens apart from the others. */
function usageOf(usage: TokenUsage | undefined): Json {
  const {
    promptTokens = 0,
    completionTokens = 0,
    cacheReadTokens = 0,
    cacheWriteTokens = 0,
    reasoningTokens = 0,
  } = usage ?? {};
  return {
    input_tokens: promptTokens - cacheReadTokens - cacheWriteTokens,
    cache_creation_input_tokens: cacheWriteTokens,
    cache_read_input_tokens: cacheReadTokens,
    output_tokens: completionTokens,
    output_tokens_details: { thinking_tokens: reasoningTokens },
  };
}

const TYPES: Record<number, string> = {
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
};

/** The beginning of Anthropic's sentence for a full context, by which its clients compact the conversation. */
const TOO_LONG = 'prompt is too long';

/** Returns the message from this beginning on, or with it in front. */
function tooLong(message: string): string {
  const at = message.toLowerCase().indexOf(TOO_LONG);
  return at === -1 ? `${TOO_LONG}: ${message}` : TOO_LONG + message.slice(at + TOO_LONG.length);
}

/** Builds an error body in Anthropic's shape. It has no member for the code, so programs use type, status and message. */
export function messagesError({ code, details }: Refusal, text: string, requestId: string) {
  const message = code === 'context_length_exceeded' ? tooLong(text) : text;
  const status = gatewayStatus(code);
  const isOverloaded = REFUSALS[code].status === REFUSALS.gateway_unavailable.status && code !== 'operation_uncertain';
  const type =
    TYPES[status] ?? (isOverloaded ? 'overloaded_error' : status < 500 ? 'invalid_request_error' : 'api_error');
  return { type: 'error' as const, error: { type, message, ...(details ? { details } : {}) }, request_id: requestId };
}
