import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import test, { type TestContext } from 'node:test';
import type Anthropic from '@anthropic-ai/sdk';
import { parseUsd } from '../../src/money.ts';
import { claudeCode, codex } from '../fixtures/agents.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { breakOff, counted, DONE, event, FINISHED, said, streaming } from '../helper/sse.ts';
import { failure, type Handler, reset } from '../helper/upstream.ts';
import { vendorClients } from '../helper/vendor-clients.ts';

// Anthropic's Messages and OpenAI's Responses under the gateway's base URL: the vendors' own clients against the real
// server, and what the model server is asked.

async function open(t: TestContext, options: TestServerOptions = {}, wallet: Record<string, unknown> = {}) {
  const purser = await openTestServer(t, options);
  const gateway = await openGateway(purser, { wallet });
  return {
    purser,
    gateway,
    ...vendorClients(purser.url, gateway.key),
  };
}

const bodyOf = ({ upstream }: TestServer, at: number) => upstream.calls.at(at)?.body as any;

const USAGE = {
  prompt_tokens: 100,
  completion_tokens: 20,
  total_tokens: 120,
  prompt_tokens_details: { cached_tokens: 60, cache_write_tokens: 10 },
  completion_tokens_details: { reasoning_tokens: 8 },
};
const call = (id: string, name: string, args: string) => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});

/** Answers with one message, whole. */
const answers =
  (message: object, finish_reason = 'stop', usage: object = USAGE): Handler =>
  ({ body }, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const choices = [{ index: 0, message: { role: 'assistant', ...message }, finish_reason }];
    response.end(
      JSON.stringify({ id: 'chatcmpl-7', object: 'chat.completion', created: 7, model: body.model, choices, usage }),
    );
  };

const head = { id: 'chatcmpl-7', object: 'chat.completion.chunk', created: 7, model: 'real/chat' };
const delta = (it: object, finish_reason: string | null = null) =>
  event({ ...head, choices: [{ index: 0, delta: it, finish_reason }] });
const callDelta = (index: number, it: { id?: string; name?: string; arguments?: string }) =>
  delta({
    tool_calls: [
      {
        index,
        ...(it.id ? { id: it.id, type: 'function' } : {}),
        function: { name: it.name, arguments: it.arguments },
      },
    ],
  });
/** Thinks, says something, and calls two tools whose arguments arrive interleaved. */
const twoCalls = streaming(
  delta({ role: 'assistant', reasoning_content: 'Two ' }),
  delta({ reasoning_content: 'cities.' }),
  delta({ content: 'I look ' }),
  delta({ content: 'it up.' }),
  callDelta(0, { id: 'call_a', name: 'weather', arguments: '' }),
  callDelta(0, { arguments: '{"city":' }),
  callDelta(1, { id: 'call_b', name: 'weather', arguments: '{"city":' }),
  callDelta(0, { arguments: '"Paris"}' }),
  callDelta(1, { arguments: '"Rome"}' }),
  delta({}, 'tool_calls'),
  counted(USAGE),
  DONE,
);

const MESSAGES_TOOL = {
  name: 'weather',
  description: 'The weather in a city.',
  input_schema: { type: 'object' as const, properties: { city: { type: 'string' } } },
};
const MESSAGE_HEAD = { id: 'msg_1', type: 'message', role: 'assistant', model: 'real/chat', stop_sequence: null };
const HI = [{ role: 'user' as const, content: 'hi' }];
const ASKED = { model: 'chat', max_tokens: 100, messages: HI };

test('a message is answered whole, priced as a chat is, and says what it cost', async (t) => {
  const { purser, gateway, anthropic } = await open(t);
  purser.upstream.handle = answers({ content: 'hello', reasoning_content: 'They greet.' });
  const { data, response } = await anthropic.messages.create({ ...ASKED, system: 'Be brief.' }).withResponse();
  assert.deepEqual(JSON.parse(JSON.stringify(data)), {
    id: 'msg_chatcmpl-7',
    type: 'message',
    role: 'assistant',
    model: 'chat',
    content: [
      { type: 'thinking', thinking: 'They greet.', signature: '' },
      { type: 'text', text: 'hello' },
    ],
    stop_reason: 'end_turn',
    stop_sequence: null,
    usage: { input_tokens: 30, cache_creation_input_tokens: 10, cache_read_input_tokens: 60, output_tokens: 20 },
  });
  // 0.0001 a request, 100 tokens of prompt and 20 of the answer.
  assert.equal(response.headers.get('x-purser-cost-usd'), '0.00024');
  const { available_usd: left } = await purser.budget(gateway.token);
  assert.equal(response.headers.get('x-purser-available-usd'), left);
  assert.match(String(response.headers.get('request-id')), /^req_/);
  const { messages, max_tokens } = bodyOf(purser, 0);
  assert.deepEqual([messages, max_tokens], [[{ role: 'system', content: 'Be brief.' }, ...HI], 100]);
});

test('a streamed message with parallel calls is one block after the other for the SDK', async (t) => {
  const { purser, anthropic, gateway } = await open(t);
  purser.upstream.handle = twoCalls;
  const stream = anthropic.messages.stream({ ...ASKED, tools: [MESSAGES_TOOL] });
  let openBlock: number | undefined;
  for await (const it of stream) {
    if (it.type === 'content_block_start') {
      assert.equal(openBlock, undefined);
      openBlock = it.index;
    } else if (it.type === 'content_block_delta') assert.equal(it.index, openBlock);
    else if (it.type === 'content_block_stop') {
      assert.equal(it.index, openBlock);
      openBlock = undefined;
    }
  }
  const message = await stream.finalMessage();
  assert.deepEqual(JSON.parse(JSON.stringify(message.content)), [
    { type: 'thinking', thinking: 'Two cities.', signature: '' },
    { type: 'text', text: 'I look it up.' },
    { type: 'tool_use', id: 'call_a', name: 'weather', input: { city: 'Paris' } },
    { type: 'tool_use', id: 'call_b', name: 'weather', input: { city: 'Rome' } },
  ]);
  assert.equal(message.stop_reason, 'tool_use');
  assert.equal(message.usage.cache_read_input_tokens, 60);
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00024');
});

test('the results of calls go back to the model beside their calls, with images after them', async (t) => {
  const { purser, anthropic } = await open(t, {
    change: (settings) => {
      const [first, ...others] = settings.router.models;
      const priced = { ...first, image_tokens: 100, pricing: { ...first.pricing, image: '0.001' } };
      return { ...settings, router: { ...settings.router, models: [priced, ...others] } };
    },
  });
  const png = { type: 'base64' as const, media_type: 'image/png' as const, data: 'iVBORw0KGgo=' };
  await anthropic.messages.create({
    ...ASKED,
    tools: [{ ...MESSAGES_TOOL, cache_control: { type: 'ephemeral' } }],
    tool_choice: { type: 'any', disable_parallel_tool_use: true },
    stop_sequences: ['END'],
    metadata: { user_id: 'someone' },
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'look', cache_control: { type: 'ephemeral' } }] },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'Hm.', signature: 'x' },
          { type: 'text', text: 'I look.' },
          { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Paris' } },
          { type: 'tool_use', id: 'toolu_2', name: 'weather', input: {} },
        ],
      },
      {
        role: 'user',
        content: [
          {
            type: 'tool_result',
            tool_use_id: 'toolu_1',
            content: [
              { type: 'text', text: 'sun' },
              { type: 'image', source: png },
            ],
          },
          { type: 'tool_result', tool_use_id: 'toolu_2', is_error: true, content: 'no city' },
          { type: 'text', text: 'Go on.' },
        ],
      },
    ],
  });
  const { messages, tools, tool_choice, parallel_tool_calls, stop } = bodyOf(purser, 0);
  assert.deepEqual(messages, [
    { role: 'user', content: 'look' },
    {
      role: 'assistant',
      content: 'I look.',
      reasoning_content: 'Hm.',
      tool_calls: [call('toolu_1', 'weather', '{"city":"Paris"}'), call('toolu_2', 'weather', '{}')],
    },
    { role: 'tool', tool_call_id: 'toolu_1', content: 'sun' },
    { role: 'tool', tool_call_id: 'toolu_2', content: 'The tool failed:\n\nno city' },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'Images in the result of the call toolu_1:' },
        { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } },
      ],
    },
    { role: 'user', content: 'Go on.' },
  ]);
  const { name, description, input_schema: parameters } = MESSAGES_TOOL;
  assert.deepEqual(
    [tools, tool_choice, parallel_tool_calls, stop],
    [[{ type: 'function', function: { name, description, parameters } }], 'required', false, ['END']],
  );
});

test('both addresses of messages take the key in both headers, whatever the query', async (t) => {
  const { purser, gateway } = await open(t);
  for (const path of ['/v1/router/messages', '/v1/router/v1/messages', '/v1/router/v1/messages?beta=true'])
    for (const headers of [{ 'x-api-key': gateway.key }, { authorization: `Bearer ${gateway.key}` }] as Record<
      string,
      string
    >[])
      assert.equal((await purser.ask('POST', path, { body: ASKED, headers })).status, 200, path);
  const counted = await gateway.ask('POST', '/v1/messages/count_tokens', { body: { model: 'chat', messages: HI } });
  assert.equal(counted.status, 200);
  assert.ok(counted.body.input_tokens >= 1, counted.text);
  assert.equal(purser.upstream.calls.length, 6);
  const headers = { 'x-api-key': gateway.key };
  assert.equal((await purser.ask('GET', '/v1/account', { headers })).status, 401, 'only under the gateway');
  assert.equal((await purser.ask('HEAD', '/v1/router')).status, 200);
});

test('a refusal of a message has the shape that the SDK reads', async (t) => {
  const { purser, anthropic, gateway } = await open(t, {}, { budget_cents: 100 });
  const refused = async (body: object) =>
    (await anthropic.messages.create({ ...ASKED, ...body } as any).then(
      () => assert.fail('was answered'),
      (error) => error,
    )) as InstanceType<typeof Anthropic.APIError>;
  const typeOf = (error: any) => [error.status, error.error.error.type];
  assert.deepEqual(typeOf(await refused({ model: 'dear', max_tokens: 1000 })), [402, 'billing_error']);
  assert.deepEqual(typeOf(await refused({ model: 'none' })), [404, 'not_found_error']);
  assert.deepEqual(typeOf(await refused({ messages: [{ role: 'robot', content: '' }] })), [
    400,
    'invalid_request_error',
  ]);
  const search = await refused({ tools: [{ type: 'web_search_20250305', name: 'web_search' }] });
  assert.deepEqual(typeOf(search), [400, 'invalid_request_error']);
  assert.match(search.message, /web_search_20250305.*run this itself/);
  purser.upstream.handle = failure(429, { error: { message: 'slow down' } }, { 'retry-after': '7' });
  const busy = await refused({ model: 'free' });
  assert.deepEqual([...typeOf(busy), busy.headers?.get('retry-after')], [429, 'rate_limit_error', '7']);
  purser.upstream.handle = failure(500);
  assert.deepEqual(typeOf(await refused({ model: 'free' })), [503, 'overloaded_error']);
  purser.upstream.handle = reset;
  const unknown = await refused({ model: 'free' });
  assert.deepEqual([...typeOf(unknown), unknown.headers?.get('x-should-retry')], [503, 'api_error', 'false']);
  const { body } = await purser.ask('POST', '/v1/router/v1/messages', { body: ASKED });
  assert.deepEqual([body.type, body.error.type], ['error', 'authentication_error']);
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00');
});

test('a stream that breaks off ends with an error in each API', async (t) => {
  const { purser, anthropic, openai } = await open(t);
  purser.upstream.handle = streaming(said('half'), breakOff);
  const texts: string[] = [];
  const stream = anthropic.messages.stream(ASKED).on('text', (text) => texts.push(text));
  await assert.rejects(stream.finalMessage(), /answer to this request was lost/);
  assert.deepEqual(texts, ['half']);
  const types: string[] = [];
  await assert.rejects(async () => {
    for await (const it of await openai.responses.create({ model: 'chat', input: 'hi', stream: true }))
      types.push(it.type);
  }, /answer to this request was lost/);
  assert.equal(types.at(-1), 'response.failed');
});

const RESPONSES_TOOL = {
  type: 'function' as const,
  name: 'weather',
  parameters: MESSAGES_TOOL.input_schema,
  strict: false,
};

test('a response is answered whole', async (t) => {
  const { purser, openai } = await open(t);
  purser.upstream.handle = answers(
    { content: 'It is {"a":1}', tool_calls: [call('call_1', 'weather', '{"city":"Rome"}')] },
    'tool_calls',
  );
  const { data, response } = await openai.responses
    .create({
      model: 'chat',
      instructions: 'Be brief.',
      input: 'hi',
      tools: [RESPONSES_TOOL],
      store: false,
      max_output_tokens: 50,
      reasoning: { effort: 'low', summary: 'auto' },
      text: { format: { type: 'json_schema', name: 'a', schema: { type: 'object' }, strict: true }, verbosity: 'low' },
    })
    .withResponse();
  assert.equal(data.output_text, 'It is {"a":1}');
  assert.deepEqual(JSON.parse(JSON.stringify(data.output)), [
    {
      id: 'msg_chatcmpl-7_0',
      type: 'message',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text: 'It is {"a":1}', annotations: [], logprobs: [] }],
    },
    {
      id: 'fc_chatcmpl-7_1',
      type: 'function_call',
      call_id: 'call_1',
      name: 'weather',
      status: 'completed',
      arguments: '{"city":"Rome"}',
    },
  ]);
  assert.deepEqual([data.id, data.status, (data as any).store], ['resp_chatcmpl-7', 'completed', false]);
  assert.deepEqual(data.usage, {
    input_tokens: 100,
    input_tokens_details: { cached_tokens: 60 },
    output_tokens: 20,
    output_tokens_details: { reasoning_tokens: 8 },
    total_tokens: 120,
  });
  assert.equal(response.headers.get('x-purser-cost-usd'), '0.00024');
  const { model: _, messages, tools, stream: __, ...rest } = bodyOf(purser, 0);
  assert.deepEqual(messages, [{ role: 'system', content: 'Be brief.' }, ...HI]);
  const { type, ...called } = RESPONSES_TOOL;
  assert.deepEqual(tools, [{ type, function: called }]);
  assert.deepEqual(rest, {
    max_tokens: 50,
    reasoning_effort: 'low',
    verbosity: 'low',
    response_format: { type: 'json_schema', json_schema: { name: 'a', schema: { type: 'object' }, strict: true } },
  });
});

test('a streamed response with parallel calls adds up for the SDK, and counts its events', async (t) => {
  const { purser, openai } = await open(t);
  purser.upstream.handle = twoCalls;
  const numbers: number[] = [];
  const stream = openai.responses.stream({ model: 'chat', input: 'hi', tools: [RESPONSES_TOOL] });
  for await (const it of stream) numbers.push(it.sequence_number);
  assert.deepEqual(
    numbers,
    numbers.map((_, i) => i),
  );
  const { output, usage, status } = await stream.finalResponse();
  assert.deepEqual(
    output.map((it) => (it.type === 'function_call' ? [it.call_id, it.name, it.arguments] : it.type)),
    ['reasoning', 'message', ['call_a', 'weather', '{"city":"Paris"}'], ['call_b', 'weather', '{"city":"Rome"}']],
  );
  assert.deepEqual([status, usage?.total_tokens], ['completed', 120]);
});

test('a call for which the model server writes no arguments has an empty object of them, whole and streamed', async (t) => {
  const { purser, openai } = await open(t);
  const order = { model: 'chat', input: 'hi', tools: [RESPONSES_TOOL] };
  purser.upstream.handle = answers({ content: null, tool_calls: [call('call_1', 'weather', '')] }, 'tool_calls');
  const { output } = await openai.responses.create({ ...order, stream: false });
  assert.deepEqual(
    output.map((it) => it.type === 'function_call' && it.arguments),
    ['{}'],
  );
  const empty = callDelta(0, { id: 'call_1', name: 'weather', arguments: '' });
  purser.upstream.handle = streaming(empty, delta({}, 'tool_calls'), counted(USAGE), DONE);
  let told = '';
  const stream = openai.responses.stream(order);
  for await (const it of stream) if (it.type === 'response.function_call_arguments.delta') told += it.delta;
  const final = await stream.finalResponse();
  assert.deepEqual([told, final.output.map((it) => it.type === 'function_call' && it.arguments)], ['{}', ['{}']]);
});

test('an answer that was cut says so in each API', async (t) => {
  const { purser, openai, anthropic } = await open(t);
  purser.upstream.handle = answers({ content: 'half' }, 'length');
  const response = await openai.responses.create({ model: 'chat', input: 'hi' });
  assert.deepEqual([response.status, response.incomplete_details?.reason], ['incomplete', 'max_output_tokens']);
  assert.equal((await anthropic.messages.create(ASKED)).stop_reason, 'max_tokens');
  purser.upstream.handle = streaming(said('half'), delta({}, 'length'), counted(USAGE), DONE);
  const stream = openai.responses.stream({ model: 'chat', input: 'hi' });
  const types: string[] = [];
  for await (const { type } of stream) types.push(type);
  assert.equal(types.at(-1), 'response.incomplete');
});

test('what a server would store or run by itself is refused by name', async (t) => {
  const { purser, gateway } = await open(t);
  const cases: [object, RegExp][] = [
    [{ store: true }, /^store: nothing is stored/],
    [{ background: true }, /^background: /],
    [{ previous_response_id: 'resp_1' }, /^previous_response_id: nothing is stored/],
    [{ conversation: 'conv_1' }, /^conversation: /],
    [{ prompt: { id: 'pmpt_1' } }, /^prompt: /],
    [{ tools: [{ type: 'code_interpreter', container: { type: 'auto' } }] }, /^tools\.0: "code_interpreter"/],
    [{ tools: [{ type: 'file_search', vector_store_ids: ['v'] }] }, /^tools\.0: "file_search"/],
    [
      { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'f' }] }] },
      /^input\.0\.content\.0: .*input_file/,
    ],
    [
      { input: [{ role: 'user', content: [{ type: 'input_image', file_id: 'f' }] }] },
      /^input\.0\.content\.0: an image by its id/,
    ],
    [{ input: [{ type: 'item_reference', id: 'msg_1' }] }, /^input\.0: nothing is stored/],
    [{ anything: 1 }, /^anything: /],
  ];
  for (const [body, said] of cases) {
    const answer = await gateway.ask('POST', '/responses', { body: { model: 'chat', input: 'hi', ...body } });
    assert.deepEqual([answer.status, answer.body.error.code], [400, 'unsupported_parameter'], answer.text);
    assert.match(answer.body.error.message, said);
  }
  const tools = [{ type: 'web_search' }, { type: 'image_generation' }];
  const unset = { store: null, previous_response_id: null, tools, background: false };
  const answer = await gateway.ask('POST', '/responses', { body: { model: 'chat', input: 'hi', ...unset } });
  assert.equal(answer.status, 200, answer.text);
  assert.equal(purser.upstream.calls[0]?.body.tools, undefined);
});

test('a replay is the same bytes in each API, whole and streamed', async (t) => {
  const { purser, gateway } = await open(t);
  const bodies: [string, object][] = [
    ['/messages', ASKED],
    ['/messages', { ...ASKED, stream: true }],
    ['/responses', { model: 'chat', input: 'hi' }],
    ['/responses', { model: 'chat', input: 'hi', stream: true }],
  ];
  for (const [i, [path, body]] of bodies.entries()) {
    purser.upstream.handle = 'stream' in body ? twoCalls : answers({ content: 'once' });
    const first = await gateway.ask('POST', path, { body, key: `key-${i}` });
    assert.equal(first.status, 200, first.text);
    const again = await gateway.ask('POST', path, { body, key: `key-${i}` });
    assert.equal(again.headers['idempotent-replayed'], 'true');
    assert.equal(again.text, first.text);
    if ('stream' in body) assert.match(first.text, /\n: x-purser-cost-usd=0\.00024 x-purser-available-usd=[\d.]+\n\n/);
  }
  assert.equal(purser.upstream.calls.length, bodies.length);
});

test('two rounds of Claude Code: its requests are taken, and its calls keep their ids', async (t) => {
  const { purser, gateway } = await open(t);
  for (const body of claudeCode('chat')) {
    purser.upstream.handle = twoCalls;
    const answer = await gateway.ask('POST', '/v1/messages?beta=true', { body });
    assert.equal(answer.status, 200, answer.text);
    assert.match(answer.text, /"id":"call_a"/);
  }
  const last = bodyOf(purser, -1);
  assert.deepEqual(
    last.messages.map((it: any) => it.role),
    ['system', 'user', 'assistant', 'tool', 'tool', 'user', 'system'],
  );
  assert.deepEqual(
    last.messages[2].tool_calls.map((it: any) => it.id),
    [last.messages[3].tool_call_id, last.messages[4].tool_call_id],
  );
});

test('two rounds of Codex: namespaces and custom tools come back as they were sent', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = streaming(
    callDelta(0, { id: 'call_1', name: 'apply_patch', arguments: '{"input":"*** Begin' }),
    callDelta(0, { arguments: ' Patch"}' }),
    callDelta(1, { id: 'call_2', name: 'agents__spawn', arguments: '{"task":"x"}' }),
    delta({}, 'tool_calls'),
    counted(USAGE),
    DONE,
  );
  for (const body of codex('chat')) {
    const answer = await gateway.ask('POST', '/responses', { body });
    assert.equal(answer.status, 200, answer.text);
    const { output } = JSON.parse(
      answer.text.match(/data: (\{"type":"response.completed".*)\n/)?.[1] as string,
    ).response;
    assert.deepEqual(
      output.map(({ id: _, status: __, ...it }: any) => it),
      [
        { type: 'custom_tool_call', call_id: 'call_1', name: 'apply_patch', input: '*** Begin Patch' },
        { type: 'function_call', call_id: 'call_2', name: 'spawn', namespace: 'agents', arguments: '{"task":"x"}' },
      ],
    );
  }
  const last = bodyOf(purser, -1);
  assert.deepEqual(
    last.tools.map((it: any) => it.function.name),
    ['exec_command', 'apply_patch', 'agents__spawn'],
  );
  assert.match(last.tools[1].function.description, /grammar \(lark\):\nstart: "x"/);
  assert.deepEqual(
    last.messages.map((it: any) => it.role),
    ['system', 'user', 'assistant', 'tool', 'tool'],
  );
  assert.deepEqual(last.messages[2].tool_calls, [
    call('call_1', 'apply_patch', '{"input":"*** Begin Patch"}'),
    call('call_2', 'agents__spawn', '{"task":"x"}'),
  ]);
  assert.equal(last.messages[2].reasoning_content, 'First the patch.');
});

test('a budget that is nearly used is told in the headers that Claude Code reads', async (t) => {
  const { purser, gateway } = await open(t, {}, { budget_cents: 100 });
  purser.upstream.handle = answers({ content: 'ten' }, 'stop', { prompt_tokens: 1, completion_tokens: 10 });
  const name = 'anthropic-ratelimit-unified';
  const shown = async () => {
    const { headers } = await gateway.ask('POST', '/messages', { body: { ...ASKED, model: 'dear', max_tokens: 10 } });
    return ['status', '7d-utilization', '7d-surpassed-threshold'].map((it) => headers[`${name}-${it}`]);
  };
  const all = [];
  for (let i = 0; i < 10; i++) all.push(await shown());
  assert.deepEqual(all[0], ['allowed', '0.1', undefined]);
  assert.deepEqual(all[7], ['allowed_warning', '0.8', '0.75']);
  assert.deepEqual(all[9], ['allowed_warning', '1', '0.95']);
  const { body } = await gateway.ask('GET', '/key');
  const { label, ...data } = body.data;
  assert.deepEqual(data, {
    limit: 1,
    limit_remaining: 0,
    limit_reset: null,
    usage: 1,
    usage_daily: 1,
    is_free_tier: false,
  });
  assert.equal(label, `svc_router_…${gateway.key.slice(-4)}`);
  purser.clock.advance(86_400);
  assert.equal((await gateway.ask('GET', '/key')).body.data.usage_daily, 0);
});

test('of a wallet that is refilled, the share of its current period counts', async (t) => {
  const { purser, gateway } = await open(t, {}, { budget_cents: 100, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id: gateway.walletId, refill: { cents: 100, every: 'day' } });
  purser.upstream.handle = answers({ content: 'ten' }, 'stop', { prompt_tokens: 1, completion_tokens: 10 });
  const used = async () => {
    const { headers } = await gateway.ask('POST', '/messages', { body: { ...ASKED, model: 'dear', max_tokens: 10 } });
    return headers['anthropic-ratelimit-unified-7d-utilization'];
  };
  for (let i = 0; i < 9; i++) await used();
  purser.clock.advance(86_400);
  assert.equal(await used(), String(Math.floor((0.1 / 1) * 10_000) / 10_000));
  const { limit, limit_remaining, limit_reset } = (await gateway.ask('GET', '/key')).body.data;
  assert.deepEqual([limit, limit_remaining, limit_reset], [1, 0.9, 'daily']);
});

test('a path that is not served says what is', async (t) => {
  const { gateway } = await open(t);
  const { status, body } = await gateway.ask('POST', '/completions', { body: {} });
  assert.deepEqual([status, body.error.type], [404, 'invalid_request_error']);
  assert.match(body.error.message, /serves .*POST \/chat\/completions.*POST \/responses.*POST \/messages/);
});

test('chats and embeddings say what they cost: in a header, or before the end of the stream', async (t) => {
  const { purser, gateway } = await open(t);
  assert.equal((await gateway.chat()).headers['x-purser-cost-usd'], '0.00012');
  purser.upstream.handle = streaming(said('a'), FINISHED, counted(), DONE);
  const { text } = await gateway.ask('POST', '/chat/completions', { body: { ...ASKED, stream: true } });
  const { available_usd: left } = await purser.budget(gateway.token);
  assert.ok(text.endsWith(`: x-purser-cost-usd=0.00012 x-purser-available-usd=${left}\n\n${DONE}`), text);
  purser.upstream.handle = streaming(said('a'), FINISHED, `x${DONE}`, counted(), DONE);
  const odd = await gateway.ask('POST', '/chat/completions', { body: { ...ASKED, stream: true } });
  assert.equal(odd.text.match(/x-purser-cost-usd/g)?.length, 1, 'what only looks like the end has no comment');
});

test('without a key the same question in other bytes takes over a hold; another question is a new request', async (t) => {
  for (const [path, asked] of [
    ['/messages', ASKED],
    ['/responses', { model: 'chat', max_output_tokens: 100, input: 'hi' }],
  ] as const) {
    const { purser, gateway } = await open(t);
    purser.upstream.handle = reset;
    const held = async (body: string) => {
      assert.equal((await gateway.ask('POST', path, { body })).status, 503);
      return (await purser.budget(gateway.token)).holds.length;
    };
    const counts = [
      await held(JSON.stringify(asked)),
      await held(JSON.stringify({ ...asked, temperature: 0.5 })),
      await held(JSON.stringify(asked, null, 1)),
    ];
    assert.deepEqual(counts, [1, 2, 2], path);
  }
});

test('what is malformed is refused by the name of its field, and nobody is asked', async (t) => {
  const { purser, gateway } = await open(t);
  const response = { model: 'chat', input: 'hi' };
  for (const [path, body, message] of [
    ['/messages', { ...ASKED, stream: 'yes' }, /stream: must be true or false/],
    ['/responses', { ...response, stream: 1 }, /stream: must be true or false/],
    ['/messages', { ...ASKED, messages: [] }, /messages: must have at least one message/],
    ['/messages', { ...ASKED, system: 'Be brief.', messages: [] }, /messages: must have at least one message/],
    ['/messages', { ...ASKED, messages: [{ role: 'user', content: [] }] }, /messages: must have at least one message/],
    ['/responses', { ...response, input: [] }, /input: must have at least one message/],
    [
      '/responses',
      { ...response, input: [{ type: 'reasoning', summary: [] }] },
      /input: must have at least one message/,
    ],
    ['/responses', { model: 'chat' }, /input: must be a text or an array/],
    ['/responses', { ...response, max_output_tokens: 0 }, /max_output_tokens: must be a whole number from 1/],
  ] as const) {
    const { status, text } = await gateway.ask('POST', path, { body });
    assert.equal(status, 400, text);
    assert.match(text, message);
    assert.match(text, /invalid_request/);
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('a 200 that holds no answer is none on any endpoint: nothing is known, and the hold stays', async (t) => {
  const limits = { upstream: 'local', context_length: 1000 };
  const embed = { id: 'embed', kind: 'embeddings', ...limits, pricing: { prompt: '0.000001' } };
  const { purser, gateway } = await open(t, {
    change: (all) => ({ ...all, router: { ...all.router, models: [...all.router.models, embed] } }),
  });
  purser.upstream.handle = failure(200, {});
  const asked = [
    ['/messages', ASKED],
    ['/responses', { model: 'chat', max_output_tokens: 100, input: 'hi' }],
    ['/embeddings', { model: 'embed', input: 'hi' }],
  ] as const;
  for (const [path, body] of asked) {
    purser.clock.advance(60); // So that the circuit stays closed.
    const { status, text } = await gateway.ask('POST', path, { body });
    assert.equal(status, 503, text);
    assert.match(text, /The outcome is not known/);
  }
  const { holds, used_usd: used } = await purser.budget(gateway.token);
  assert.deepEqual([holds.length, used], [asked.length, '0.00']);
});

test('a WebSocket is refused in words, at once', async (t) => {
  const { port, hostname } = new URL((await open(t)).purser.url);
  const socket = connect(Number(port), hostname);
  t.after(() => socket.destroy());
  socket.write(
    `GET /v1/router/responses HTTP/1.1\r\nHost: ${hostname}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`,
  );
  const [answer] = await once(socket, 'data');
  assert.match(String(answer), /^HTTP\/1\.1 426 [\s\S]*\nupgrade: HTTP\/1\.1\r\n[\s\S]*does not speak WebSocket/i);
});

/** Prices of the class of Claude Sonnet, in USD per million tokens. */
const SONNET = {
  prompt: '3',
  completion: '15',
  input_cache_read: '0.3',
  input_cache_write: '3.75',
  input_cache_write_1h: '6',
};

for (const wires of [[], ['messages', 'responses']])
  test(`a dollar is spent to its end, and the last error says so (${wires.length ? 'passed on' : 'translated'})`, async (t) => {
    const { purser } = await open(t, {
      change: (all) => ({
        ...all,
        router: {
          upstreams: [{ ...all.router.upstreams[0], wires }],
          models: [
            {
              id: 'sonnet',
              upstream: 'local',
              context_length: 200_000,
              max_output_tokens: 64_000,
              pricing_per_million: SONNET,
            },
          ],
        },
      }),
    });
    const [prompt, completion] = [2000, 900];
    /** Answers with as much as the limit allows, in the API that it is asked in. */
    purser.upstream.handle = (call, response) => {
      const limit = Number(call.body.max_tokens ?? call.body.max_output_tokens);
      const written = Math.min(completion, limit);
      const usage = { input_tokens: prompt, output_tokens: written };
      if (call.path.endsWith('/chat/completions'))
        return answers({ content: 'ok' }, 'stop', { prompt_tokens: prompt, completion_tokens: written })(
          call,
          response,
        );
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(
        JSON.stringify(
          call.path.endsWith('/messages')
            ? { ...MESSAGE_HEAD, content: [{ type: 'text', text: 'ok' }], stop_reason: 'end_turn', usage }
            : { id: 'resp_1', object: 'response', status: 'completed', output: [], error: null, usage },
        ),
      );
    };
    const text = 'A line of what an agent sends. '.repeat(250);
    for (const [api, ask] of [
      [
        'messages',
        (key: string) =>
          vendorClients(purser.url, key)
            .anthropic.messages.create({
              model: 'sonnet',
              max_tokens: 16_000,
              messages: [{ role: 'user', content: text }],
            })
            .withResponse(),
      ],
      [
        'responses',
        (key: string) =>
          vendorClients(purser.url, key).openai.responses.create({ model: 'sonnet', input: text }).withResponse(),
      ],
    ] as const) {
      const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
      let paid = 0n;
      let cut = 0;
      const told: (string | null)[] = [];
      let error: any;
      for (let i = 0; !error; i++) {
        assert.ok(i < 200);
        try {
          const { headers } = (await ask(gateway.key)).response;
          paid += parseUsd(headers.get('x-purser-cost-usd') as string);
          if (headers.has('x-purser-max-tokens')) cut++;
          told.push(headers.get('anthropic-ratelimit-unified-7d-surpassed-threshold'));
        } catch (it) {
          error = it;
        }
      }
      assert.equal(error.status, 402);
      assert.equal(error.headers.get('x-should-retry'), 'false');
      const sentence = /This request needs [\d.]+ USD at most; the wallet has [\d.]+ USD available/;
      const shown = api === 'messages' ? error.error.error : error.error;
      assert.equal(shown.type, 'billing_error');
      assert.match(shown.message, sentence);
      assert.match(error.message, sentence, 'as the client shows it');
      if (api === 'responses') assert.equal(shown.code, 'insufficient_funds');
      const { used_usd: used, available_usd: left } = await purser.budget(gateway.token);
      assert.equal(parseUsd(used), paid, 'what the answers said adds up');
      assert.ok(Number(left) < 0.04, `${left} USD are too little for this prompt and 256 tokens`);
      assert.ok(cut > 0, 'limits are cut to fit before the end');
      if (api === 'messages') assert.deepEqual([...new Set(told)], [null, '0.75', '0.95']);
    }
  });
