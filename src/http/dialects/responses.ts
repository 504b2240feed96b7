import type { Json } from '../../base/parse-json.ts';
import {
  itemAdded,
  itemDone,
  partBegun,
  partDone,
  partGrown,
  type ResponseEvent,
} from '../../router/response-events.ts';
import { readUsage, type TokenUsage } from '../../router/usage.ts';
import { openAiBody } from '../openai-error.ts';
import { type Block, type BlockEvent, blocksOf, choiceOf, createBlockReader, finishReasonOf } from './blocks.ts';
import { type Answers, type Dialect, idFrom, type StreamTranslator } from './dialect.ts';
import { type NamedEvent, textsOf } from './event-texts.ts';
import { given, objectOf, parseObject } from './json.ts';
import { nativeResponses, writtenResponses } from './responses-native.ts';
import { chatOfResponses, type SpecialTools } from './responses-request.ts';

/** OpenAI's Responses API (platform.openai.com/docs/api-reference/responses), without what it stores or runs itself. */
export const responsesDialect: Dialect = {
  name: 'responses',
  native: nativeResponses,
  written: writtenResponses,
  headers: () => ({}),
  route: 'router/responses',
  translate(raw) {
    const { chat, others, special } = chatOfResponses(raw);
    const { temperature = null, top_p = null, max_output_tokens = null, parallel_tool_calls, user } = raw;
    const echoed = {
      model: chat.model,
      temperature,
      top_p,
      max_output_tokens,
      parallel_tool_calls: parallel_tool_calls ?? true,
      ...given({ user }),
    };
    return { chat, others, kept: { echoed, special } };
  },
  answers: ({ echoed, special }, seed) => answersOf(echoed as Json, special as SpecialTools, seed),
};

/** The state of a response. */
type ResponseState = { status: string; error?: Json; incomplete_details?: Json };

type ResponseBuilder = (head: Json, state: ResponseState, output: Json[], usage: TokenUsage | undefined) => Json;

function answersOf(echoed: Json, special: SpecialTools, seed: string): Answers {
  /** Builds the response object. The request's tools and instructions are not kept for a stream, nor repeated. */
  const response: ResponseBuilder = (head, state, output, usage) => ({
    id: idFrom('resp', head.id, seed),
    object: 'response',
    created_at: typeof head.created === 'number' ? head.created : 0,
    error: null,
    incomplete_details: null,
    instructions: null,
    ...echoed,
    ...state,
    output,
    previous_response_id: null,
    store: false,
    background: false,
    metadata: {},
    tool_choice: 'auto',
    tools: [],
    truncation: 'disabled',
    usage: usage ? usageOf(usage) : null,
  });
  return {
    whole(completion) {
      const head = objectOf(completion);
      const choice = choiceOf(completion);
      const state = stateOf(choice);
      const blocks = blocksOf(choice.message);
      const output = blocks.map((block) => {
        const isCut = state.status === 'incomplete' && block.index === blocks.length - 1;
        return itemOf(block, head.id, isCut ? 'incomplete' : 'completed', special, seed);
      });
      return response(head, state, output, readUsage(completion, 'chat'));
    },
    stream: () => createTranslator(response, special, seed),
  };
}

/** Creates the translator of a stream, which ends with the response that `build` makes of all its output. */
function createTranslator(build: ResponseBuilder, special: SpecialTools, seed: string): StreamTranslator {
  const reader = createBlockReader();
  const output: Json[] = [];
  let head: Json | undefined;
  let last: Json = {};
  let usage: TokenUsage | undefined;
  let number = 0;
  /** The first response object of a model server that speaks this API itself. */
  let own: Json | undefined;
  const textsFor = (events: readonly ResponseEvent[]) =>
    textsOf(events.map(({ type, ...data }): NamedEvent => ({ type, sequence_number: number++, ...data })));
  const begin = (chunk: Json): ResponseEvent[] => {
    if (head) return [];
    head = { id: chunk.id, created: chunk.created };
    const now = build(head, { status: 'in_progress' }, [], undefined);
    return [
      { type: 'response.created', response: now },
      { type: 'response.in_progress', response: now },
    ];
  };
  const eventsOf = (events: readonly BlockEvent[], status = 'completed') =>
    events.flatMap((it) => {
      const isLast = it.block.index === reader.blocks.length - 1;
      if (it.type === 'delta') return deltaOf(it, itemId(it.block, head?.id, special, seed), special);
      const end = isLast ? status : 'completed';
      const item = itemOf(it.block, head?.id, it.type === 'stop' ? end : 'in_progress', special, seed);
      if (it.type === 'start') return startOf(it.block, item);
      output[it.block.index] = item;
      return stopOf(it.block, item);
    });
  return {
    chunk(chunk) {
      usage = readUsage(chunk, 'chat') ?? usage;
      const choice = choiceOf(chunk);
      if (choice.finish_reason) last = choice;
      const begun = begin(objectOf(chunk));
      return textsFor([...begun, ...eventsOf(reader.read(choice.delta))]);
    },
    end() {
      const state = stateOf(last);
      const closed = [...begin({}), ...eventsOf(reader.end(), state.status)];
      const whole = build(head as Json, state, output, usage);
      return textsFor([...closed, { type: `response.${state.status}`, response: whole }]);
    },
    passed(json) {
      own ??= objectOf(objectOf(json).response);
      number++;
    },
    fail(refusal, message, requestId) {
      const { error } = openAiBody(refusal, message, requestId);
      const state = { status: 'failed', error: { code: error.code, message } };
      const begun = own ? [] : begin({});
      const whole = own ? { ...own, ...state } : build(head as Json, state, output, usage);
      return textsFor([
        ...begun,
        { type: 'response.failed', response: whole },
        { type: 'error', code: error.code, message, param: error.param, error },
      ]);
    },
  };
}

function stateOf(choice: Json): ResponseState {
  const reason = finishReasonOf(choice);
  if (reason === 'length') return { status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } };
  if (reason === 'content_filter') return { status: 'incomplete', incomplete_details: { reason: 'content_filter' } };
  return { status: 'completed' };
}

function usageOf({ promptTokens, completionTokens, ...usage }: TokenUsage): Json {
  const { cacheReadTokens, cacheWriteTokens, reasoningTokens } = usage;
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cache_write_tokens: cacheWriteTokens, cached_tokens: cacheReadTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens,
  };
}

const PREFIX = { reasoning: 'rs', text: 'msg', refusal: 'msg', call: 'fc' } as const;

function itemId({ kind, index, name }: Block, upstreamId: unknown, special: SpecialTools, seed: string): string {
  const prefix = kind === 'call' && special.get(name)?.isCustom ? 'ctc' : PREFIX[kind];
  return `${idFrom(prefix, upstreamId, seed)}_${index}`;
}

/** Longer JSON comes from no model and is passed on unparsed: parsing would block other requests. */
const INPUT_LENGTH_MAX = 512 * 1024;

/** Returns the text for a custom tool out of the JSON that contains it here. */
function inputOf(text: string): string {
  const input = text.length > INPUT_LENGTH_MAX ? undefined : parseObject(text)?.input;
  return typeof input === 'string' ? input : text;
}

/** Returns the text that a call without arguments lacks to be parsable: some model servers write nothing for `{}`. */
const missingObject = (text: string) => (text.trim() ? '' : '{}');

function itemOf(block: Block, upstreamId: unknown, status: string, special: SpecialTools, seed: string): Json {
  const { kind, index, text } = block;
  const id = itemId(block, upstreamId, special, seed);
  if (kind === 'reasoning')
    return { id, type: 'reasoning', summary: text ? [summaryOf(text)] : [], encrypted_content: null };
  if (kind !== 'call') return { id, type: 'message', role: 'assistant', status, content: text ? [partOf(block)] : [] };
  const tool = special.get(block.name);
  const call = {
    call_id: block.id ?? idFrom('call', undefined, `${seed}_${index}`),
    name: tool?.name ?? block.name,
    status,
  };
  if (tool?.isCustom)
    return { id, type: 'custom_tool_call', ...call, ...given({ namespace: tool.namespace }), input: inputOf(text) };
  const whole = status === 'completed' ? text + missingObject(text) : text;
  return { id, type: 'function_call', ...call, ...given({ namespace: tool?.namespace }), arguments: whole };
}

const summaryOf = (text: string) => ({ type: 'summary_text', text });
const partOf = ({ kind, text }: Block): Json =>
  kind === 'refusal'
    ? { type: 'refusal', refusal: text }
    : { type: 'output_text', text, annotations: [], logprobs: [] };

/** Returns the subject of the events of a block's text: a part of its item, or the item of a call. */
const partIn = (block: Block, item: Json): Json =>
  block.kind === 'call' ? item : block.kind === 'reasoning' ? summaryOf(block.text) : partOf(block);

/** Returns the members that all events inside an item share. */
const sharedMembers = ({ kind, index }: Block, id: unknown): Json => ({
  item_id: id,
  output_index: index,
  ...(kind === 'call' ? {} : kind === 'reasoning' ? { summary_index: 0 } : { content_index: 0 }),
});

function startOf(block: Block, item: Json): ResponseEvent[] {
  return [itemAdded(block.index, item), ...partBegun(partIn(block, item), sharedMembers(block, item.id))];
}

const TYPES = { reasoning: 'summary_text', text: 'output_text', refusal: 'refusal', call: 'function_call' } as const;

function deltaOf(
  { block, text }: Extract<BlockEvent, { text: string }>,
  id: string,
  special: SpecialTools,
): ResponseEvent[] {
  // The input of a custom tool is inside JSON: it is sent once that is complete.
  if (block.kind === 'call' && special.get(block.name)?.isCustom) return [];
  return partGrown({ type: TYPES[block.kind] }, sharedMembers(block, id), text);
}

function stopOf(block: Block, item: Json): ResponseEvent[] {
  const part = partIn(block, item);
  const at = sharedMembers(block, item.id);
  // The text that has not been sent piece by piece.
  const rest =
    item.type === 'custom_tool_call'
      ? String(item.input)
      : item.type === 'function_call'
        ? String(item.arguments).slice(block.text.length)
        : '';
  return [...(rest ? partGrown(item, at, rest) : []), ...partDone(part, at), itemDone(block.index, item)];
}
