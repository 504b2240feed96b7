import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { Refusal } from '../../src/base/refusal.ts';
import { Router } from '../../src/config/router.ts';
import { boundRequest, type ModelRequestKind, readModelRequest, validRequest } from '../../src/http/model-request.ts';
import { readAnswer, readEvent } from '../../src/router/answer-data.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { measuredFor } from '../../src/router/measure.ts';
import type { Api } from '../../src/router/native.ts';
import { usageIn } from '../../src/router/usage.ts';

// Whatever stands in the place of a member, in a request or an answer, is refused or left out: nothing throws what nobody expects.

/** `String` and comparisons throw for the first ones. */
const INSTEAD: unknown[] = [
  { toString: 1 },
  { toString: null, valueOf: null },
  [{ toString: 1 }],
  { length: 1 },
  { constructor: 1 },
  [],
  [null],
  {},
  null,
  '',
  'constructor',
  '\ud800',
  -1,
  true,
];

/** Calls `put` with the value once for each of its members, at any depth, with each of these in its place. */
function inEachPlace(value: object, put: (changed: string) => void): number {
  let count = 0;
  function walk(at: Record<string, unknown>): void {
    for (const [name, member] of Object.entries(at)) {
      for (const instead of INSTEAD) {
        at[name] = instead;
        put(JSON.stringify(value));
        count++;
      }
      at[name] = member;
      if (typeof member === 'object' && member !== null) walk(member as Record<string, unknown>);
    }
  }
  walk(value as Record<string, unknown>);
  return count;
}

const SCHEMA = { type: 'object', properties: { a: { type: ['string', 'null'] } } };
const REQUESTS: Partial<Record<ModelRequestKind, object>> = {
  routerChat: {
    model: 'm',
    messages: [
      { role: 'system', content: 's' },
      {
        role: 'user',
        name: 'n',
        content: [{ type: 'text', text: 'hi', cache_control: { type: 'ephemeral', ttl: '1h' } }],
      },
      {
        role: 'assistant',
        content: [{ type: 'thinking', thinking: 't' }],
        reasoning_details: [{ type: 'reasoning.text', text: 'y' }],
        tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }],
      },
      { role: 'tool', tool_call_id: 'a', content: 'r' },
    ],
    tools: [{ type: 'function', function: { name: 'f', description: 'd', parameters: SCHEMA, strict: true } }],
    tool_choice: { type: 'function', function: { name: 'f' } },
    response_format: { type: 'json_schema', json_schema: { name: 'n', schema: SCHEMA, strict: true } },
    max_tokens: 10,
    n: 1,
    stop: ['a'],
    temperature: 1,
    logit_bias: { 1: 2 },
    metadata: { a: 'b' },
    stream: true,
    stream_options: { include_usage: true },
    chat_template_kwargs: { a: true },
  },
  messages: {
    model: 'm',
    max_tokens: 10,
    system: [{ type: 'text', text: 's', cache_control: { type: 'ephemeral' } }],
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'hi' }] },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 't', signature: 's' },
          { type: 'tool_use', id: 'a', name: 'f', input: { x: 1 } },
        ],
      },
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: 'a', content: [{ type: 'text', text: 'r' }], is_error: true }],
      },
    ],
    tools: [{ type: 'custom', name: 'f', description: 'd', input_schema: SCHEMA }],
    tool_choice: { type: 'tool', name: 'f', disable_parallel_tool_use: true },
    thinking: { type: 'enabled', budget_tokens: 5 },
    output_config: { effort: 'max', format: { type: 'json_schema', schema: SCHEMA } },
    context_management: { edits: [{ type: 'clear_tool_uses_20250919' }] },
    metadata: { user_id: 'u' },
    stop_sequences: ['x'],
  },
  responses: {
    model: 'm',
    instructions: 'i',
    input: [
      { role: 'user', content: [{ type: 'input_text', text: 'hi' }] },
      { type: 'reasoning', summary: [{ type: 'summary_text', text: 'x' }], encrypted_content: 'e' },
      { type: 'function_call', call_id: 'a', name: 'f', namespace: 'ns', arguments: '{}' },
      { type: 'function_call_output', call_id: 'a', output: [{ type: 'input_text', text: 'r' }] },
      { type: 'custom_tool_call', call_id: 'c', name: 'g', input: 'z' },
      { type: 'custom_tool_call_output', call_id: 'c', output: 'o' },
    ],
    tools: [
      { type: 'function', name: 'f', description: 'd', parameters: SCHEMA },
      { type: 'custom', name: 'g', description: 'd', format: { type: 'grammar', syntax: 'lark', definition: 'd' } },
      { type: 'namespace', name: 'ns', description: 'd', tools: [{ type: 'function', name: 'h', parameters: {} }] },
      { type: 'web_search' },
    ],
    tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'f' }] },
    reasoning: { effort: 'high', summary: 'auto' },
    text: { format: { type: 'json_schema', name: 'n', schema: SCHEMA }, verbosity: 'low' },
    include: ['reasoning.encrypted_content'],
    max_output_tokens: 10,
    metadata: { a: 'b' },
    store: false,
  },
  embeddings: { model: 'm', input: ['a', 'b'], dimensions: 5, encoding_format: 'float', user: 'u' },
};

/** Models whose server speaks chat completions alone, and all APIs. */
const modelsOf = (kind: 'chat' | 'embeddings') =>
  [[], ['messages', 'responses']].map((wires) => {
    const upstream = { name: 'u', base_url: 'http://127.0.0.1:1/v1', wires };
    const model = {
      id: 'm',
      upstream: 'u',
      context_length: 1e6,
      ...(kind === 'chat' ? { max_output_tokens: 100 } : {}),
      pricing: { request: '0.1' },
      kind,
    };
    return createCatalogue({ router: v.parse(Router, { upstreams: [upstream], models: [model] }) }).find('m');
  });

for (const [kind, request] of Object.entries(REQUESTS) as [ModelRequestKind, object][])
  test(`a request of the kind ${kind} may have anything in the place of a member`, (t) => {
    const models = modelsOf(kind === 'embeddings' ? kind : 'chat');
    let servedCount = 0;
    const count = inEachPlace(request, (text) => {
      for (const model of models)
        try {
          const order = { kind, isKeyed: false };
          const read = readModelRequest(
            Buffer.from(text),
            order,
            () => measuredFor(model),
            () => {},
          );
          boundRequest(model, validRequest(read)).bodyFor(model.routes[0]);
          servedCount++;
        } catch (error) {
          assert(error instanceof Refusal && error.code !== 'internal_error', `${(error as Error).stack}\n${text}`);
        }
    });
    assert(servedCount > 0);
    t.diagnostic(`${count} requests by 2 models, ${servedCount} served`);
  });

const USAGE = { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7, prompt_tokens_details: { cached_tokens: 1 } };
const CALLS = [{ index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }];
const MESSAGE_USAGE = { input_tokens: 3, output_tokens: 4, cache_creation: { ephemeral_1h_input_tokens: 1 } };
const RESPONSE = {
  object: 'response',
  output: [{ type: 'message', content: [{ type: 'output_text', text: 'hi' }] }],
  usage: { input_tokens: 3, output_tokens: 4, output_tokens_details: { reasoning_tokens: 1 } },
};
const error = { type: 'rate_limit_error', code: 'x', message: 'no' };
const ANSWERS: [Api, object][] = [
  [
    'chat',
    { choices: [{ index: 0, message: { content: 'hi', tool_calls: CALLS }, finish_reason: 'stop' }], usage: USAGE },
  ],
  ['chat', { object: 'error', error, message: 'no', detail: 'no' }],
  ['embeddings', { data: [{ embedding: [1] }], usage: { prompt_tokens: 2 } }],
  ['messages', { type: 'message', content: [{ type: 'tool_use', input: { a: 1 } }], usage: MESSAGE_USAGE }],
  ['messages', { type: 'error', error }],
  ['responses', RESPONSE],
];
const EVENTS: [Api, object][] = [
  [
    'chat',
    { choices: [{ index: 0, delta: { content: 'hi', tool_calls: CALLS }, finish_reason: 'stop' }], usage: USAGE },
  ],
  ['chat', { error }],
  ['messages', { type: 'message_start', message: { usage: MESSAGE_USAGE } }],
  ['messages', { type: 'content_block_start', content_block: { type: 'text', text: 'x' } }],
  ['messages', { type: 'content_block_delta', delta: { text: 'x', partial_json: '{' } }],
  ['messages', { type: 'message_delta', delta: { stop_reason: 'end_turn' }, usage: MESSAGE_USAGE }],
  ['messages', { type: 'error', error }],
  ['responses', { type: 'response.output_text.delta', delta: 'x' }],
  ['responses', { type: 'response.output_item.done', item: { encrypted_content: 'e' } }],
  ['responses', { type: 'response.completed', response: RESPONSE }],
  ['responses', { type: 'response.failed', response: { error } }],
];

test('an answer and an event may have anything in the place of a member', () => {
  for (const [api, answer] of ANSWERS)
    inEachPlace({ answer }, (text) => {
      const changed = Buffer.from(JSON.stringify(JSON.parse(text).answer));
      const told = readAnswer(changed, api);
      if (told) assertCounts(told.usage, api);
    });
  for (const [api, event] of EVENTS)
    inEachPlace({ event }, (text) => {
      const said = readEvent({ data: JSON.stringify(JSON.parse(text).event) }, api);
      if (typeof said === 'object') assertCounts(said.usage, api);
    });
});

function assertCounts(usage: unknown, api: Api): void {
  for (const count of Object.values(usageIn(usage, api)))
    assert(count === undefined || (Number.isSafeInteger(count) && count >= 0), String(count));
}
