import assert from 'node:assert/strict';
import test from 'node:test';
import type Anthropic from '@anthropic-ai/sdk';
import { claudeCode } from '../fixtures/agents.ts';
import { DONE, streaming } from '../helper/sse.ts';
import { failure, reset } from '../helper/upstream.ts';
import {
  ASKED,
  answers,
  bodyOf,
  call,
  callDelta,
  delta,
  HI,
  MESSAGES_TOOL,
  open,
  twoCalls,
} from './dialects-shared.ts';

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
    usage: {
      input_tokens: 30,
      cache_creation_input_tokens: 10,
      cache_read_input_tokens: 60,
      output_tokens: 20,
      output_tokens_details: { thinking_tokens: 8 },
    },
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
    ['system', 'user', 'assistant', 'tool', 'tool', 'user'],
  );
  assert.match(JSON.stringify(last.messages[5].content), /Go on\..*<system-reminder>.*A file has changed\./);
  assert.deepEqual(
    last.messages[2].tool_calls.map((it: any) => it.id),
    [last.messages[3].tool_call_id, last.messages[4].tool_call_id],
  );
});

test('a tool with a longer name than chat completions have is called by its own', async (t) => {
  const { purser, anthropic } = await open(t);
  const long = (end: string) => `mcp__plugin_content-strategist_youtube-analytics__get_video_details_${end}`;
  const [first, second] = [long('first'), long('second')] as const;
  const tools = [first, second].map((name) => ({ ...MESSAGES_TOOL, name }));
  const asked = { ...ASKED, tools, tool_choice: { type: 'tool' as const, name: second } };
  purser.upstream.handle = ({ body }, response) => {
    const { name } = (body as any).tool_choice.function;
    const handle = (body as any).stream
      ? streaming(callDelta(0, { id: 'call_1', name, arguments: '{}' }), delta({}, 'tool_calls'), DONE)
      : answers({ content: null, tool_calls: [call('call_1', name, '{}')] }, 'tool_calls');
    handle({ body } as never, response);
  };
  const whole = await anthropic.messages.create(asked);
  const streamed = await anthropic.messages.stream(asked).finalMessage();
  for (const { content } of [whole, streamed])
    assert.deepEqual(
      content.map((it) => it.type === 'tool_use' && it.name),
      [second],
    );
  const result = { type: 'tool_result' as const, tool_use_id: 'call_1' };
  const found = { type: 'tool_reference' as const, tool_name: first };
  await anthropic.messages.create({
    ...asked,
    messages: [
      ...HI,
      { role: 'assistant', content: whole.content },
      { role: 'user', content: [{ ...result, content: [found] }] },
    ],
  });
  const sent = bodyOf(purser, -1);
  const names = sent.tools.map((it: any) => it.function.name);
  for (const name of names) assert.match(name, /^mcp__plugin_[a-z_-]{43}_[0-9a-f]{8}$/);
  assert.notEqual(names[0], names[1]);
  assert.equal(sent.messages[1].tool_calls[0].function.name, names[1]);
  assert.equal(sent.messages[2].content, `The tool ${names[0]} is now available.`);
});
