import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import test, { type TestContext } from 'node:test';
import { claudeCode, codex } from '../fixtures/agents.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer, UPSTREAM_KEY } from '../helper/server.ts';
import { breakOff, completionStream, streaming } from '../helper/sse.ts';
import { completion, failure, type Handler, openUpstream, reset } from '../helper/upstream.ts';
import { vendorClients } from '../helper/vendor-clients.ts';

// Requests in Anthropic's Messages and OpenAI's Responses, passed on as they came to upstreams that speak these APIs.

const PRICE = {
  prompt: '3',
  completion: '15',
  input_cache_read: '0.3',
  input_cache_write: '3.75',
  input_cache_write_1h: '6',
  internal_reasoning: '20',
};
const LIMITS = { context_length: 200_000, max_output_tokens: 8000 };

async function open(t: TestContext, wallet: Record<string, unknown> = {}, unknownCountMax?: number) {
  const other = await openUpstream(t);
  const purser = await openTestServer(t, {
    ...(unknownCountMax === undefined ? {} : { unknownCountMax }),
    change: (all) => {
      const [local] = all.router.upstreams;
      return {
        ...all,
        router: {
          upstreams: [
            { ...local, wires: ['messages', 'responses'], forward: ['documents', 'thinking'] },
            { name: 'other', base_url: other.url },
          ],
          models: [
            { id: 'own', upstream: 'local', upstream_model: 'real/own', ...LIMITS, pricing_per_million: PRICE },
            {
              id: 'both',
              upstream: 'local',
              ...LIMITS,
              pricing_per_million: PRICE,
              fallbacks: [{ upstream: 'other', pricing_per_million: { prompt: '3', completion: '15' } }],
            },
            {
              id: 'back',
              upstream: 'other',
              ...LIMITS,
              pricing_per_million: PRICE,
              fallbacks: [{ upstream: 'local' }],
            },
            {
              id: 'short',
              upstream: 'local',
              ...LIMITS,
              pricing_per_million: { prompt: '3', completion: '15', input_cache_write: '3.75' },
            },
            { id: 'plain', upstream: 'local', ...LIMITS, pricing_per_million: { prompt: '3', completion: '15' } },
            { id: 'dear', upstream: 'local', ...LIMITS, pricing_per_million: { prompt: '3', completion: '200' } },
            { id: 'dearest', upstream: 'local', ...LIMITS, pricing_per_million: { prompt: '3', completion: '600' } },
            {
              id: 'seeing',
              upstream: 'local',
              ...LIMITS,
              image_tokens: 1000,
              pricing_per_million: { prompt: '3', completion: '15', image: '0' },
            },
          ],
        },
      };
    },
  });
  const gateway = await openGateway(purser, { wallet });
  return {
    purser,
    other,
    gateway,
    ...vendorClients(purser.url, gateway.key),
  };
}

const latest = async (purser: TestServer): Promise<any> => (await purser.run('operation.list', {})).operations[0];
const sent = ({ upstream }: Pick<TestServer, 'upstream'>, at = -1) => upstream.calls.at(at) as any;
const send = (response: ServerResponse, text: string) => {
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(text);
};

/** Prompt 100 = 10 plain + 60 read + 30 written, of which 20 for an hour; completion 40, of which 15 thinking. */
const COUNTED = {
  input_tokens: 10,
  cache_read_input_tokens: 60,
  cache_creation_input_tokens: 30,
  cache_creation: { ephemeral_5m_input_tokens: 10, ephemeral_1h_input_tokens: 20 },
  output_tokens: 40,
  output_tokens_details: { thinking_tokens: 15 },
  server_tool_use: null,
  service_tier: 'standard',
};
/** In nanos: 3000, 300, 3750 and 6000 a token of the prompt, 15000 and 20000 of the answer. */
const COST = 10 * 3000 + 60 * 300 + 10 * 3750 + 20 * 6000 + 25 * 15_000 + 15 * 20_000;
const usd = (nanos: number) => (nanos / 1e9).toFixed(9).replace(/0+$/, '');

const MESSAGE = {
  id: 'msg_01real',
  type: 'message',
  role: 'assistant',
  model: 'real/own',
  content: [
    { type: 'thinking', thinking: 'They greet.', signature: 'c2lnbmVk' },
    { type: 'text', text: 'hello' },
    { type: 'tool_use', id: 'toolu_1', name: 'look', input: { at: 'x' } },
  ],
  stop_reason: 'tool_use',
  stop_sequence: null,
  usage: COUNTED,
};
/** Written with spaces, as no JSON.stringify writes it. */
const MESSAGE_TEXT = JSON.stringify(MESSAGE, null, 1);
const message: Handler = (_, response) => send(response, MESSAGE_TEXT);

const named = (data: { type: string }) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
const { usage: _, ...begun } = MESSAGE;
const START = named({
  type: 'message_start',
  message: { ...begun, content: [], stop_reason: null, usage: { ...COUNTED, output_tokens: 1 } },
} as never);
const PING = named({ type: 'ping' });
const block = (index: number, content_block: object, ...deltas: object[]) => [
  named({ type: 'content_block_start', index, content_block } as never),
  ...deltas.map((delta) => named({ type: 'content_block_delta', index, delta } as never)),
  named({ type: 'content_block_stop', index } as never),
];
const BLOCKS = [
  ...block(
    0,
    { type: 'thinking', thinking: '', signature: '' },
    { type: 'thinking_delta', thinking: 'They greet.' },
    { type: 'signature_delta', signature: 'c2lnbmVk' },
  ),
  ...block(1, { type: 'text', text: '' }, { type: 'text_delta', text: 'hel' }, { type: 'text_delta', text: 'lo' }),
  ...block(
    2,
    { type: 'tool_use', id: 'toolu_1', name: 'look', input: {} },
    { type: 'input_json_delta', partial_json: '{"at":' },
    { type: 'input_json_delta', partial_json: '"x"}' },
  ),
];
const STOP = [
  named({
    type: 'message_delta',
    delta: { stop_reason: 'tool_use', stop_sequence: null },
    usage: { output_tokens: 40, output_tokens_details: { thinking_tokens: 15 }, input_tokens: null },
  } as never),
  named({ type: 'message_stop' }),
];
/** A server may send a sign of life before anything else. */
const MESSAGE_EVENTS = [PING, START, PING, ...BLOCKS, ...STOP];
const messageStream = streaming(...MESSAGE_EVENTS);

const ITEMS = [
  { id: 'rs_1', type: 'reasoning', summary: [], encrypted_content: 'Z2VoZWlt' },
  { id: 'fc_1', type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{"at":"x"}', status: 'completed' },
];
const RESPONSE = {
  id: 'resp_real',
  object: 'response',
  created_at: 7,
  status: 'completed',
  model: 'real/own',
  output: ITEMS,
  store: false,
  error: null,
  usage: {
    input_tokens: 100,
    input_tokens_details: { cached_tokens: 60, cache_write_tokens: 10 },
    output_tokens: 40,
    output_tokens_details: { reasoning_tokens: 15 },
    total_tokens: 140,
  },
};
const RESPONSE_COST = 30 * 3000 + 60 * 300 + 10 * 3750 + 25 * 15_000 + 15 * 20_000;
const numbered = (events: object[]) => events.map((it, sequence_number) => named({ ...it, sequence_number } as never));
const RESPONSE_EVENTS = numbered([
  { type: 'response.created', response: { ...RESPONSE, status: 'in_progress', output: [], usage: null } },
  { type: 'response.in_progress', response: { ...RESPONSE, status: 'in_progress', output: [], usage: null } },
  { type: 'response.output_item.added', output_index: 0, item: { ...ITEMS[0], encrypted_content: '' } },
  { type: 'response.output_item.done', output_index: 0, item: ITEMS[0] },
  { type: 'response.output_item.added', output_index: 1, item: { ...ITEMS[1], arguments: '' } },
  {
    type: 'response.function_call_arguments.delta',
    item_id: 'fc_1',
    output_index: 1,
    delta: '{"at":"x"}',
  },
  { type: 'response.output_item.done', output_index: 1, item: ITEMS[1] },
  { type: 'response.completed', response: RESPONSE },
]);
const responseStream = streaming(...RESPONSE_EVENTS);
const response: Handler = (_, answer) => send(answer, JSON.stringify(RESPONSE, null, 1));

/** A stream with the comment that tells its cost, which stands before its last event. */
const withCost = (events: readonly string[], cost: number, left: string) =>
  [...events.slice(0, -1), `: x-purser-cost-usd=${usd(cost)} x-purser-available-usd=${left}\n\n`, events.at(-1)].join(
    '',
  );

const MARKS = /, "cache_control": \{[^}]*\}/;
const MARK = { type: 'ephemeral', ttl: '1h' };
const ASKED = { model: 'own', max_tokens: 100, messages: [{ role: 'user' as const, content: 'hi' }] };

test('a message is passed on as it came, and its answer and usage are the server’s own', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = message;
  const pieces = [
    '"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]',
    `"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [
{"type": "thinking", "thinking": "Mm.", "signature": "c2ln"}, {"type": "redacted_thinking", "data": "eHl6"},
{"type": "tool_use", "id": "t", "name": "look", "input": {"n": 12345678901234567890}}]},
{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sun", "is_error": true}]}]`,
    '"tools": [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]',
    '"metadata": {"user_id": "u"}',
  ];
  const body = `{"model": "own", "max_tokens": 3000, ${pieces.join(', ')}, "stop_sequences": null,
"thinking": {"type": "enabled", "budget_tokens": 2000}}`;
  const unmarked = body.replace(MARKS, '');
  const headers = {
    'content-type': 'application/json',
    'anthropic-version': '2023-06-01',
    'anthropic-beta': 'interleaved-thinking-2025-05-14, context-1m-2025-08-07,effort-2025-11-24',
  };
  const answer = await gateway.ask('POST', '/v1/messages?beta=true', { body: unmarked, headers });
  assert.equal(answer.status, 200, answer.text);
  assert.equal(answer.text, MESSAGE_TEXT, 'the answer is as it came');
  assert.equal(answer.headers['x-purser-cost-usd'], usd(COST));
  assert.equal(answer.headers['anthropic-ratelimit-unified-status'], 'allowed');
  const { path, text, headers: got } = sent(purser);
  assert.equal(path, '/v1/messages');
  assert.deepEqual(
    [got['x-api-key'], got.authorization, got['anthropic-version'], got['anthropic-beta']],
    [UPSTREAM_KEY, undefined, '2023-06-01', 'interleaved-thinking-2025-05-14,effort-2025-11-24'],
  );
  for (const piece of pieces) assert.ok(text.includes(piece.replace(MARKS, '')), text);
  assert.match(text, /12345678901234567890/, 'no number is rounded');
  const { messages: __, tools: ___, system: ____, ...written } = JSON.parse(text);
  assert.deepEqual(written, {
    model: 'real/own',
    max_tokens: 3000,
    stream: false,
    thinking: { type: 'enabled', budget_tokens: 2000 },
    metadata: { user_id: 'u' },
  });
  const { usage } = await latest(purser);
  assert.deepEqual(usage, {
    prompt_tokens: 100,
    completion_tokens: 40,
    cache_read_tokens: 60,
    cache_write_tokens: 30,
    cache_write_1h_tokens: 20,
    reasoning_tokens: 15,
  });

  assert.equal((await gateway.ask('POST', '/messages', { body, headers })).status, 200);
  for (const piece of pieces)
    assert.ok(sent(purser).text.includes(piece), 'with marks that have a price it is as it came, too');
  assert.deepEqual(purser.problems(), []);
});

test('a streamed message is passed on event for event, and ends once its charge is on disk', async (t) => {
  const { purser, gateway, anthropic } = await open(t);
  purser.upstream.handle = messageStream;
  const body = { ...ASKED, stream: true };
  const answer = await gateway.ask('POST', '/messages', { body, key: 'one' });
  const { available_usd: left, used_usd: used } = await purser.budget(gateway.token);
  assert.equal(used, usd(COST));
  assert.equal(answer.text, withCost(MESSAGE_EVENTS, COST, left));
  const again = await gateway.ask('POST', '/messages', { body, key: 'one' });
  assert.equal(again.headers['idempotent-replayed'], 'true');
  assert.equal(again.text, answer.text);
  assert.equal(purser.upstream.calls.length, 1);

  const final = await anthropic.messages.stream(ASKED).finalMessage();
  assert.deepEqual(JSON.parse(JSON.stringify(final.content)), MESSAGE.content);
  assert.equal(final.stop_reason, 'tool_use');
  purser.upstream.handle = message;
  const whole = await gateway.ask('POST', '/messages', { body: ASKED, key: 'two' });
  assert.equal((await gateway.ask('POST', '/messages', { body: ASKED, key: 'two' })).text, whole.text);
  const made = await anthropic.messages.stream({ ...ASKED, temperature: 0 }).finalMessage();
  assert.deepEqual(JSON.parse(JSON.stringify(made.content)), MESSAGE.content, 'of a server that does not stream');
  assert.deepEqual(purser.problems(), []);
});

test('a response in one piece ends its stream as its status says', async (t) => {
  const { purser, gateway } = await open(t);
  for (const [status, last] of [
    ['completed', 'response.completed'],
    ['incomplete', 'response.incomplete'],
    ['failed', 'response.failed'],
  ]) {
    purser.upstream.handle = failure(200, { ...RESPONSE, status });
    const { text } = await gateway.ask('POST', '/responses', { body: { model: 'own', input: status, stream: true } });
    const ends = [...text.matchAll(/^event: (response\.(?:completed|incomplete|failed))$/gm)].map((it) => it[1]);
    assert.deepEqual(ends, [last], text);
  }
});

test('a response in one piece is streamed with all that a stream has: SDKs that collect deltas get each text', async (t) => {
  const { purser, gateway, openai } = await open(t);
  const source = { type: 'url_citation', url: 'https://a.example/', title: 'A', start_index: 0, end_index: 2 };
  const output = [
    {
      id: 'rs_1',
      type: 'reasoning',
      summary: [
        { type: 'summary_text', text: 'First.' },
        { type: 'summary_text', text: 'Then.' },
      ],
      content: [{ type: 'reasoning_text', text: 'Hm.' }],
      encrypted_content: 'Z2VoZWlt',
    },
    {
      id: 'msg_1',
      type: 'message',
      role: 'assistant',
      status: 'completed',
      content: [
        { type: 'output_text', text: 'hello', annotations: [source], logprobs: [] },
        { type: 'refusal', refusal: 'No.' },
        { type: 'output_text', text: '', annotations: [] },
      ],
    },
    { id: 'fc_1', type: 'function_call', call_id: 'c_1', name: 'look', arguments: '{"at":1}', status: 'completed' },
    { id: 'ctc_1', type: 'custom_tool_call', call_id: 'c_2', name: 'patch', input: '*** Begin', status: 'completed' },
    { id: 'x_1', type: 'compaction', encrypted_content: 'Z2VoZWlt' },
  ];
  purser.upstream.handle = failure(200, { ...RESPONSE, output });
  const { text } = await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', stream: true } });
  const events = [...text.matchAll(/^data: (.*)$/gm)].map((it) => JSON.parse(it[1] as string));
  for (const [i, { type, sequence_number }] of events.entries()) {
    assert.equal(sequence_number, i);
    assert.match(text, new RegExp(`^event: ${type}$`, 'm'));
  }
  const begun = { ...RESPONSE, status: 'in_progress', output: [], usage: null };
  const [thought, said, called, patched, other] = output;
  const summary = (i: number) => ({ item_id: 'rs_1', output_index: 0, summary_index: i });
  const content = (i: number) => ({ item_id: 'msg_1', output_index: 1, content_index: i });
  const spoken = { type: 'output_text', text: 'hello', annotations: [source], logprobs: [] };
  const silent = { type: 'output_text', text: '', annotations: [] };
  const R = 'response.reasoning_summary';
  assert.deepEqual(
    events.map(({ sequence_number: __, ...it }) => it),
    [
      { type: 'response.created', response: begun },
      { type: 'response.in_progress', response: begun },
      { type: 'response.output_item.added', output_index: 0, item: { ...thought, summary: [], content: [] } },
      ...['First.', 'Then.'].flatMap((it, i) => [
        { type: `${R}_part.added`, ...summary(i), part: { type: 'summary_text', text: '' } },
        { type: `${R}_text.delta`, ...summary(i), delta: it },
        { type: `${R}_text.done`, ...summary(i), text: it },
        { type: `${R}_part.done`, ...summary(i), part: { type: 'summary_text', text: it } },
      ]),
      ...[
        { type: 'response.content_part.added', part: { type: 'reasoning_text', text: '' } },
        { type: 'response.reasoning_text.delta', delta: 'Hm.' },
        { type: 'response.reasoning_text.done', text: 'Hm.' },
        { type: 'response.content_part.done', part: { type: 'reasoning_text', text: 'Hm.' } },
      ].map((it) => ({ ...it, item_id: 'rs_1', output_index: 0, content_index: 0 })),
      { type: 'response.output_item.done', output_index: 0, item: thought },
      {
        type: 'response.output_item.added',
        output_index: 1,
        item: { ...said, status: 'in_progress', content: [] },
      },
      { type: 'response.content_part.added', ...content(0), part: { ...spoken, text: '', annotations: [] } },
      { type: 'response.output_text.delta', ...content(0), delta: 'hello', logprobs: [] },
      { type: 'response.output_text.annotation.added', ...content(0), annotation_index: 0, annotation: source },
      { type: 'response.output_text.done', ...content(0), text: 'hello', logprobs: [] },
      { type: 'response.content_part.done', ...content(0), part: spoken },
      { type: 'response.content_part.added', ...content(1), part: { type: 'refusal', refusal: '' } },
      { type: 'response.refusal.delta', ...content(1), delta: 'No.' },
      { type: 'response.refusal.done', ...content(1), refusal: 'No.' },
      { type: 'response.content_part.done', ...content(1), part: { type: 'refusal', refusal: 'No.' } },
      { type: 'response.content_part.added', ...content(2), part: silent },
      { type: 'response.output_text.done', ...content(2), text: '', logprobs: [] },
      { type: 'response.content_part.done', ...content(2), part: silent },
      { type: 'response.output_item.done', output_index: 1, item: said },
      {
        type: 'response.output_item.added',
        output_index: 2,
        item: { ...called, status: 'in_progress', arguments: '' },
      },
      { type: 'response.function_call_arguments.delta', item_id: 'fc_1', output_index: 2, delta: '{"at":1}' },
      {
        type: 'response.function_call_arguments.done',
        item_id: 'fc_1',
        output_index: 2,
        name: 'look',
        arguments: '{"at":1}',
      },
      { type: 'response.output_item.done', output_index: 2, item: called },
      { type: 'response.output_item.added', output_index: 3, item: { ...patched, status: 'in_progress', input: '' } },
      { type: 'response.custom_tool_call_input.delta', item_id: 'ctc_1', output_index: 3, delta: '*** Begin' },
      { type: 'response.custom_tool_call_input.done', item_id: 'ctc_1', output_index: 3, input: '*** Begin' },
      { type: 'response.output_item.done', output_index: 3, item: patched },
      { type: 'response.output_item.added', output_index: 4, item: other },
      { type: 'response.output_item.done', output_index: 4, item: other },
      { type: 'response.completed', response: { ...RESPONSE, output } },
    ],
  );

  const collected = { text: '', arguments: '' };
  const stream = openai.responses
    .stream({ model: 'own', input: 'again' })
    .on('response.output_text.delta', ({ delta }) => {
      collected.text += delta;
    })
    .on('response.function_call_arguments.delta', ({ delta }) => {
      collected.arguments += delta;
    });
  const final = await stream.finalResponse();
  assert.deepEqual(collected, { text: 'hello', arguments: '{"at":1}' });
  assert.equal(final.output_text, 'hello');

  purser.upstream.handle = failure(200, { ...RESPONSE, output: [null, { type: 'message', content: [null, 1] }] });
  const odd = await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'odd', stream: true } });
  assert.match(odd.text, /^event: response\.completed$/m);
  assert.deepEqual(purser.problems(), []);
});

test('a response is passed on as it came, whole and streamed', async (t) => {
  const { purser, gateway, openai } = await open(t);
  purser.upstream.handle = response;
  const body = {
    model: 'own',
    input: [
      { role: 'user', content: 'hi' },
      { type: 'item_reference', id: 'rs_0' },
      { type: 'reasoning', summary: [], encrypted_content: 'Z2VoZWlt' },
      { type: 'function_call', call_id: 'c', name: 'look', arguments: '{}' },
      { type: 'function_call_output', call_id: 'c', output: 'sun' },
    ],
    tools: [{ type: 'web_search' }, { type: 'function', name: 'look', parameters: {}, strict: false }],
    include: ['reasoning.encrypted_content'],
    prompt_cache_key: '0',
    prompt_cache_retention: '24h',
    metadata: { tag: 'x' },
    reasoning: { effort: 'low', summary: 'auto' },
    max_output_tokens: null,
  };
  const answer = await gateway.ask('POST', '/responses', { body });
  assert.equal(answer.status, 200, answer.text);
  assert.equal(answer.text, JSON.stringify(RESPONSE, null, 1));
  assert.equal(answer.headers['x-purser-cost-usd'], usd(RESPONSE_COST));
  const { path, body: got, headers } = sent(purser);
  assert.deepEqual([path, headers.authorization], ['/v1/responses', `Bearer ${UPSTREAM_KEY}`]);
  assert.deepEqual(got, {
    model: 'real/own',
    max_output_tokens: 4096,
    stream: false,
    store: false,
    input: body.input.filter((_, i) => i !== 1),
    tools: [body.tools[1]],
    include: body.include,
    prompt_cache_key: '0',
    reasoning: body.reasoning,
  });

  purser.upstream.handle = responseStream;
  const asked = { model: 'own', input: 'hi', stream: true };
  const streamed = await gateway.ask('POST', '/responses', { body: asked, key: 'one' });
  const { available_usd: left } = await purser.budget(gateway.token);
  assert.equal(streamed.text, withCost(RESPONSE_EVENTS, RESPONSE_COST, left));
  assert.equal((await gateway.ask('POST', '/responses', { body: asked, key: 'one' })).text, streamed.text);
  const final = await openai.responses.stream({ model: 'own', input: 'again' }).finalResponse();
  assert.equal(final.output[1]?.type, 'function_call');
  purser.upstream.handle = response;
  const made = await openai.responses.stream({ model: 'own', input: 'whole' }).finalResponse();
  assert.equal(made.output[1]?.type, 'function_call');
  assert.deepEqual(purser.problems(), []);
});

test('the requests of Claude Code and Codex pass, and what the server would run stays refused or out', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = messageStream;
  for (const body of claudeCode('own') as any[]) {
    const answer = await gateway.ask('POST', '/v1/messages?beta=true', { body });
    assert.equal(answer.status, 200, answer.text);
    const { model, max_tokens, stream, ...others } = body;
    const { model: __, max_tokens: limit, stream: isStream, ...got } = sent(purser).body;
    assert.deepEqual([limit, isStream], [max_tokens, stream]);
    assert.deepEqual(got, others);
  }
  purser.upstream.handle = responseStream;
  for (const body of codex('own') as any[]) {
    const answer = await gateway.ask('POST', '/responses', { body });
    assert.equal(answer.status, 200, answer.text);
    const { model, tools, ...others } = body;
    const { model: __, tools: gotTools, max_output_tokens: ___, ...got } = sent(purser).body;
    assert.deepEqual(got, others);
    assert.deepEqual(
      gotTools,
      tools.filter((it: any) => it.type !== 'web_search'),
    );
  }
  const calls = purser.upstream.calls.length;
  for (const more of [
    { tools: [{ type: 'web_search_20250305', name: 'web_search' }] },
    { mcp_servers: [{ type: 'url' }] },
    { speed: 'fast' },
    { inference_geo: 'us' },
  ]) {
    const { status, body } = await gateway.ask('POST', '/messages', { body: { ...ASKED, ...more } });
    assert.deepEqual([status, body.error.type], [400, 'invalid_request_error'], JSON.stringify(more));
  }
  for (const more of [
    { store: true },
    { background: true },
    { tools: [{ type: 'code_interpreter' }] },
    { moderation: {} },
  ])
    assert.equal(
      (await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', ...more } })).status,
      400,
    );
  assert.equal(purser.upstream.calls.length, calls);
  purser.upstream.handle = message;
  const compact = { edits: [{ type: 'compact_20260112' }] };
  await gateway.ask('POST', '/messages', {
    body: { ...ASKED, context_management: compact, metadata: { user_id: 'u', tags: 'x' }, service_tier: 'auto' },
  });
  assert.deepEqual(Object.keys(sent(purser).body).sort(), [
    'max_tokens',
    'messages',
    'model',
    'service_tier',
    'stream',
  ]);
});

test('marks for prompt caches go as far as they have a price, and an hour is held for at its own', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = message;
  const said = 'x'.repeat(3000);
  const body = {
    ...ASKED,
    cache_control: MARK,
    system: [{ type: 'text', text: said, cache_control: MARK }],
    messages: [
      {
        role: 'user',
        content: [
          {
            type: 'tool_result',
            tool_use_id: 't',
            cache_control: MARK,
            content: [{ type: 'text', text: 'sun', cache_control: MARK }],
          },
        ],
      },
    ],
    tools: [{ name: 'look', input_schema: { properties: { cache_control: {} } }, cache_control: MARK }],
  };
  const marks = async (model: string) => {
    const answer = await gateway.ask('POST', '/messages', { body: { ...body, model } });
    assert.equal(answer.status, 200, answer.text);
    const text = JSON.stringify(sent(purser).body);
    return [text.match(/"cache_control":\{"type"/g)?.length ?? 0, text.match(/"ttl":"1h"/g)?.length ?? 0];
  };
  const holdOf = async () => {
    const { hold_usd: hold, price } = await latest(purser);
    return { hold: Number(hold) * 1e9, price };
  };
  assert.deepEqual(await marks('own'), [5, 5]);
  const { hold, price } = await holdOf();
  assert.equal(price.cached_for_hour, true);
  const { bound_prompt_tokens: tokens } = price;
  assert.ok(tokens > 3000);
  assert.equal(hold, tokens * 6000 + 100 * 20_000, 'each token of the prompt at the price of an hour');
  assert.deepEqual(await marks('short'), [5, 0]);
  assert.equal((await holdOf()).hold, tokens * 3750 + 100 * 15_000);
  assert.deepEqual(await marks('plain'), [0, 0]);
  assert.equal(purser.problems().length, 0);
});

test('a response is passed on with marks where they have a price, and without tools of the server in a namespace', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = response;
  const part = (text: string) => ({ type: 'input_text', text, cache_control: MARK });
  const look = { type: 'function', name: 'look', parameters: {}, strict: false };
  const body = {
    input: [
      { role: 'user', content: [part('hi')], cache_control: MARK },
      { type: 'function_call', call_id: 'c', name: 'look', arguments: '{"cache_control":{"type":"x"}}' },
      { type: 'function_call_output', call_id: 'c', output: [part('sun')] },
    ],
    tools: [{ type: 'namespace', name: 'sky', description: 'of the sky', tools: [look, { type: 'web_search' }] }],
  };
  const passed = async (model: string) => {
    const answer = await gateway.ask('POST', '/responses', { body: { ...body, model } });
    assert.equal(answer.status, 200, answer.text);
    return sent(purser).body;
  };
  const tools = [{ ...body.tools[0], tools: [look] }];
  const own = await passed('own');
  assert.deepEqual([own.input, own.tools], [body.input, tools]);
  const plain = await passed('plain');
  const unmarked = JSON.parse(JSON.stringify(body.input), (name, it) => (name === 'cache_control' ? undefined : it));
  assert.deepEqual([plain.input, plain.tools], [unmarked, tools]);
  assert.deepEqual(purser.problems(), []);
});

test('the price of an hour holds for chats, too: where the server does not tell, the request does', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = completion({
    prompt_tokens: 100,
    completion_tokens: 0,
    prompt_tokens_details: { cache_write_tokens: 50 },
  });
  const cost = async (model: string, ttl: object) => {
    const content = [{ type: 'text', text: 'hi', cache_control: { type: 'ephemeral', ...ttl } }];
    const answer = await gateway.chat({ model, messages: [{ role: 'user', content }] });
    return [answer.headers['x-purser-cost-usd'], sent(purser).body.messages[0].content[0].cache_control];
  };
  assert.deepEqual(await cost('own', { ttl: '1h' }), [usd(50 * 3000 + 50 * 6000), MARK]);
  assert.deepEqual(await cost('own', { ttl: '5m' }), [usd(50 * 3000 + 50 * 3750), { type: 'ephemeral' }]);
  assert.deepEqual(await cost('own', {}), [usd(50 * 3000 + 50 * 3750), { type: 'ephemeral' }]);
  assert.deepEqual(await cost('short', { ttl: '1h' }), [usd(50 * 3000 + 50 * 3750), { type: 'ephemeral' }]);
});

test('fail-over goes from a server that speaks the API to one that does not, and back', async (t) => {
  const { purser, other, gateway } = await open(t);
  for (const stream of [false, true]) {
    for (const [path, body] of [
      ['/messages', { ...ASKED, stream }],
      ['/responses', { model: 'own', input: 'hi', stream }],
    ] as const) {
      purser.upstream.handle = failure(529, { type: 'error', error: { type: 'overloaded_error', message: 'busy' } });
      other.handle = stream ? completionStream() : completion();
      const translated = await gateway.ask('POST', path, { body: { ...body, model: 'both' } });
      assert.equal(translated.status, 200, translated.text);
      assert.match(translated.text, /hello|"lo"/);
      assert.equal(sent({ upstream: other }).path, '/v1/chat/completions');
      assert.deepEqual(sent({ upstream: other }).body.messages, [{ role: 'user', content: 'hi' }]);
      if (stream) {
        const error = named({ type: 'error', error: { type: 'overloaded_error', message: 'busy' } } as never);
        purser.upstream.handle = streaming(path === '/messages' ? START : (RESPONSE_EVENTS[0] as string), PING, error);
        const early = await gateway.ask('POST', path, { body: { ...body, model: 'both' } });
        assert.match(early.text, /"lo"/, 'an error before anything was said');
      }

      other.handle = failure(503);
      const isMessages = path === '/messages';
      purser.upstream.handle = isMessages ? (stream ? messageStream : message) : stream ? responseStream : response;
      const native = await gateway.ask('POST', path, { body: { ...body, model: 'back' } });
      assert.equal(native.status, 200, native.text);
      assert.match(native.text, isMessages ? /msg_01real/ : /resp_real/);
      assert.equal(sent(purser).path, `/v1${path}`);
    }
  }
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('refusals of the server come in the shape of each API, and cost nothing', async (t) => {
  const { purser, gateway } = await open(t);
  const told = (type: string) => ({ type: 'error', error: { type, message: 'the reason' } });
  const cases: [number, string, number, string, string][] = [
    [400, 'invalid_request_error', 400, 'invalid_request_error', 'invalid_request'],
    [401, 'authentication_error', 503, 'overloaded_error', 'gateway_unavailable'],
    [404, 'not_found_error', 404, 'not_found_error', 'model_not_found'],
    [413, 'request_too_large', 413, 'request_too_large', 'payload_too_large'],
    [429, 'rate_limit_error', 429, 'rate_limit_error', 'rate_limited'],
    [529, 'overloaded_error', 503, 'overloaded_error', 'gateway_unavailable'],
    [200, 'rate_limit_error', 429, 'rate_limit_error', 'rate_limited'],
    [200, 'invalid_request_error', 400, 'invalid_request_error', 'invalid_request'],
  ];
  for (const [theirs, theirType, status, type, code] of cases)
    for (const stream of [false, true]) {
      purser.upstream.handle = failure(theirs, told(theirType));
      const message = await gateway.ask('POST', '/messages', { body: { ...ASKED, stream } });
      assert.deepEqual([message.status, message.body.error.type], [status, type], message.text);
      if (status < 500) assert.match(message.body.error.message, /the reason/);
      const response = await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', stream } });
      assert.deepEqual([response.status, response.body.error.code], [status, code], response.text);
    }
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00');
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('a stream that breaks off ends with an error in its own API, and costs what was delivered', async (t) => {
  const { purser, gateway, anthropic, openai } = await open(t);
  const overloaded = named({ type: 'error', error: { type: 'overloaded_error', message: 'busy' } } as never);
  for (const [events, end] of [
    [[START, PING, ...BLOCKS.slice(0, 3)], breakOff],
    [[START, PING, ...BLOCKS.slice(0, 3)], overloaded],
  ] as const) {
    const { spent } = purser.wallet(gateway.walletId);
    purser.upstream.handle = streaming(...events, end);
    const texts: string[] = [];
    const stream = anthropic.messages.stream({ ...ASKED, max_tokens: 1000 }).on('thinking', (it) => texts.push(it));
    await assert.rejects(stream.finalMessage(), /answer to this request was lost/);
    assert.deepEqual(texts, ['They greet.']);
    const { usage, charge_usd: charged } = await latest(purser);
    assert.equal(usage.estimated, true);
    assert.equal(usage.completion_tokens, 'They greet.'.length + 'c2lnbmVk'.length);
    assert.equal(purser.wallet(gateway.walletId).spent - spent, BigInt(Math.round(Number(charged) * 1e9)));
    assert.deepEqual([usage.prompt_tokens, usage.cache_read_tokens, usage.cache_write_1h_tokens], [100, 60, 20]);
  }
  // The reason to stop came, the last event did not: the answer is whole.
  purser.upstream.handle = streaming(START, ...BLOCKS, STOP[0] as string, breakOff);
  assert.equal((await anthropic.messages.stream(ASKED).finalMessage()).stop_reason, 'tool_use');
  assert.equal((await latest(purser)).charge_usd, usd(COST));

  const failed = {
    ...RESPONSE,
    status: 'failed',
    error: { code: 'server_error', message: 'x' },
    usage: RESPONSE.usage,
  };
  for (const [more, cost] of [
    [[breakOff], undefined],
    [[named({ type: 'response.failed', sequence_number: 6, response: failed } as never)], RESPONSE_COST],
  ] as const) {
    purser.upstream.handle = streaming(...RESPONSE_EVENTS.slice(0, 6), ...more);
    const seen: any[] = [];
    await assert.rejects(async () => {
      for await (const it of await openai.responses.create({ model: 'own', input: 'hi', stream: true })) seen.push(it);
    }, /answer to this request was lost/);
    const { type, sequence_number: number, response: last } = seen.at(-1);
    assert.deepEqual([type, number, last.id, last.status], ['response.failed', 6, 'resp_real', 'failed']);
    assert.equal(seen.filter((it) => it.type === 'response.created').length, 1);
    if (cost) assert.equal((await latest(purser)).charge_usd, usd(cost));
  }
});

test('an unknown outcome keeps one hold, a retry with the same bytes takes it over, and the circuit opens', async (t) => {
  const { purser, gateway } = await open(t);
  for (const handle of [reset, ((_, answer) => send(answer, '{"id":"x"}')) as Handler]) {
    purser.upstream.handle = handle;
    const refused = await gateway.ask('POST', '/messages', { body: { ...ASKED, max_tokens: 900 } });
    assert.deepEqual([refused.status, refused.body.error.type], [503, 'api_error'], refused.text);
    const { held } = purser.wallet(gateway.walletId);
    assert.ok(held > 0n);
    purser.upstream.handle = message;
    const answer = await gateway.ask('POST', '/messages', { body: { ...ASKED, max_tokens: 900 } });
    assert.equal(answer.text, MESSAGE_TEXT);
    assert.equal(purser.wallet(gateway.walletId).held, 0n);
  }
  assert.equal((await purser.budget(gateway.token)).used_usd, usd(2 * COST));
  purser.upstream.handle = streaming(PING, breakOff);
  for (let i = 0; i < 3; i++) {
    const body = { ...ASKED, stream: true, temperature: i / 10 };
    assert.equal((await gateway.ask('POST', '/messages', { body })).body.error.type, 'api_error');
  }
  const open_ = await gateway.ask('POST', '/messages', { body: ASKED });
  assert.deepEqual([open_.status, open_.body.error.type], [503, 'overloaded_error']);
  assert.match(open_.body.error.message, /circuit_open/);
});

test('a limit that is cut to the wallet takes the thinking budget along', async (t) => {
  const { purser, gateway } = await open(t, { budget_cents: 100 });
  purser.upstream.handle = message;
  const asked = async (budget_tokens: number) => {
    const thinking = { type: 'enabled', budget_tokens };
    const answer = await gateway.ask('POST', '/messages', {
      body: { ...ASKED, model: 'dear', max_tokens: 8000, thinking },
    });
    assert.equal(answer.status, 200, answer.text);
    const { max_tokens: limit, thinking: got } = sent(purser).body;
    assert.equal(answer.headers['x-purser-max-tokens'], String(limit));
    return { limit, got };
  };
  const first = await asked(7000);
  assert.ok(first.limit > 2048 && first.limit < 7000, String(first.limit));
  assert.deepEqual(first.got, { type: 'enabled', budget_tokens: Math.floor(first.limit / 2) });
  assert.deepEqual((await asked(1024)).got, { type: 'enabled', budget_tokens: 1024 });
});

test('thinking that no limit has room for is switched off, and so is what would be done with it', async (t) => {
  const { purser, gateway } = await open(t, { budget_cents: 100 });
  purser.upstream.handle = message;
  const thinking = { type: 'enabled', budget_tokens: 4000 };
  const [ofThinking, ofTools] = [
    { type: 'clear_thinking_20251015', keep: 'all' },
    { type: 'clear_tool_uses_20250919' },
  ];
  const managed = async (edits: object[], max_tokens = 8000) => {
    const body = { ...ASKED, model: 'dearest', max_tokens, thinking, context_management: { edits } };
    const answer = await gateway.ask('POST', '/messages', { body });
    assert.equal(answer.status, 200, answer.text);
    return sent(purser).body;
  };
  const off = await managed([ofThinking, ofTools]);
  assert.deepEqual([off.thinking, off.context_management], [{ type: 'disabled' }, { edits: [ofTools] }]);
  assert(!('context_management' in (await managed([ofThinking]))));
});

test('a time-out that is told inside an answer goes to no other upstream: the first may still be at work', async (t) => {
  const { purser, other, gateway } = await open(t);
  const error = { type: 'error', error: { type: 'timeout_error', message: 'too slow' } };
  const whole: Handler = (_, response) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(error));
  for (const [stream, handle] of [
    [true, streaming(START, named(error as never))],
    [false, whole],
  ] as const) {
    purser.upstream.handle = handle;
    const answer = await gateway.ask('POST', '/messages', { body: { ...ASKED, stream, model: 'both' } });
    assert.equal(answer.status, 503, answer.text);
    assert.equal(other.calls.length, 0);
  }
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('the bytes of an image are no tokens; what nobody translates is bounded by its bytes', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = message;
  const image = (data: string) => ({ type: 'image', source: { type: 'base64', media_type: 'image/png', data } });
  const boundOf = async (content: object[], role = 'user') => {
    const messages = [{ role, content }];
    const answer = await gateway.ask('POST', '/messages', { body: { ...ASKED, model: 'seeing', messages } });
    assert.equal(answer.status, 200, answer.text);
    return (await latest(purser)).price.bound_prompt_tokens;
  };
  const small = await boundOf([image('QUJD')]);
  assert.equal(await boundOf([image('QUJD'.repeat(5000))]), small);
  assert.ok(small > 1000 && small < 2000, String(small));
  const redacted = (bytes: number) => [{ type: 'redacted_thinking', data: 'x'.repeat(bytes) }];
  const difference = (await boundOf(redacted(5000), 'assistant')) - (await boundOf(redacted(1000), 'assistant'));
  assert.equal(difference, 4000);
  const hidden = [
    { type: 'tool_use', id: 't', name: 'n', input: { type: 'image', source: { data: 'x'.repeat(5000) } } },
  ];
  assert.ok((await boundOf(hidden, 'assistant')) > 5000);
});

test('samplers of model servers pass in each API, translated or not', async (t) => {
  const { purser, other, gateway } = await open(t);
  const samplers = { top_k: 5, min_p: 0.1, chat_template_kwargs: { enable_thinking: false } };
  for (const [path, body, handle] of [
    ['/messages', ASKED, message],
    ['/responses', { input: 'hi' }, response],
  ] as const) {
    purser.upstream.handle = handle;
    const native = await gateway.ask('POST', path, { body: { ...body, ...samplers, model: 'own' } });
    assert.equal(native.status, 200, native.text);
    const translated = await gateway.ask('POST', path, { body: { ...body, ...samplers, model: 'back' } });
    assert.equal(translated.status, 200, translated.text);
    for (const { body: got } of [sent(purser), sent({ upstream: other })]) {
      const { top_k, min_p, chat_template_kwargs } = got;
      assert.deepEqual({ top_k, min_p, chat_template_kwargs }, samplers);
    }
    const refused = await gateway.ask('POST', path, { body: { ...body, model: 'own', chat_template: 'x' } });
    assert.equal(refused.status, 400);
  }
});

test('marks for prompt caches survive the translation where the upstream has a price for them', async (t) => {
  const { purser, other, gateway } = await open(t);
  const text = (it: string, mark?: object) => ({ type: 'text', text: it, ...(mark ? { cache_control: mark } : {}) });
  const body = {
    ...ASKED,
    system: [text('You help.'), text('Be brief.', MARK)],
    messages: [
      { role: 'user', content: [text('Look.')] },
      {
        role: 'assistant',
        content: [text('I look.'), { type: 'tool_use', id: 't', name: 'look', input: { cache_control: 1 } }],
      },
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: 't', content: [text('sun')], cache_control: MARK }],
      },
      { role: 'user', content: [text('And?'), text('Now.', { type: 'ephemeral' })] },
    ],
    tools: [{ name: 'look', input_schema: { type: 'object' }, cache_control: MARK }],
  };
  other.handle = completion();
  assert.equal((await gateway.ask('POST', '/messages', { body: { ...body, model: 'back' } })).status, 200);
  const { messages, tools } = sent({ upstream: other }).body;
  assert.deepEqual(messages[0], { role: 'system', content: [text('You help.'), text('Be brief.', MARK)] });
  assert.deepEqual(messages[1], { role: 'user', content: 'Look.' });
  assert.equal(messages[2].tool_calls[0].function.arguments, '{"cache_control":1}');
  assert.deepEqual(messages[3], { role: 'tool', content: 'sun', tool_call_id: 't', cache_control: MARK });
  assert.deepEqual(messages[4].content, [text('And?'), text('Now.', { type: 'ephemeral' })]);
  assert.deepEqual(tools[0].cache_control, MARK);
  assert.equal((await latest(purser)).price.cached_for_hour, true);

  purser.upstream.handle = failure(503);
  assert.equal((await gateway.ask('POST', '/messages', { body: { ...body, model: 'both' } })).status, 200);
  const { messages: plain, tools: plainTools } = sent({ upstream: other }).body;
  assert.doesNotMatch(JSON.stringify([plain, plainTools]).replace('{\\"cache_control\\":1}', ''), /cache_control/);
  assert.deepEqual(plain[0], { role: 'system', content: 'You help.\n\nBe brief.' });
});

test('what an upstream’s `forward` names stays in the body, and another upstream of the model does not get it', async (t) => {
  const { purser, other, gateway } = await open(t);
  const boundTokens = async () => (await latest(purser)).price.bound_prompt_tokens;
  const documents = [{ text: 'x'.repeat(1000) }];
  const thinking = { type: 'enabled', budget_tokens: 2000 };
  const messages = [{ role: 'user', content: 'hi' }];
  for (const [path, handler, asked] of [
    ['/messages', message, { max_tokens: 3000, messages, thinking }],
    ['/responses', response, { max_output_tokens: 3000, input: 'hi' }],
  ] as const) {
    purser.upstream.handle = handler;
    assert.equal((await gateway.ask('POST', path, { body: { model: 'both', ...asked } })).status, 200);
    const plain = await boundTokens();
    const body = { model: 'both', ...asked, documents };
    assert.equal((await gateway.ask('POST', path, { body })).status, 200);
    assert.equal(sent(purser).path, `/v1${path}`);
    assert.deepEqual(sent(purser).body, { ...sent(purser, -2).body, documents });
    assert((await boundTokens()) - plain > 1000, 'their bytes are bounded');
    assert.equal(
      sent(purser).text.split('"thinking"').length - 1,
      path === '/messages' ? 1 : 0,
      'nothing is sent twice',
    );
    purser.upstream.handle = failure(503);
    assert.equal((await gateway.ask('POST', path, { body })).status, 200);
    const { path: asWhat, body: got } = sent({ upstream: other });
    assert.deepEqual([asWhat, got.documents, got.thinking], ['/v1/chat/completions', undefined, undefined]);
    const unknown = await gateway.ask('POST', path, { body: { ...body, 'no-such': 1 } });
    assert.equal(unknown.status, 400);
    assert.match(unknown.body.error.message, /^no-such: this gateway does not know it\. Leave it out\./);
  }
});
