import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { Router } from '../../src/config/router.ts';
import { boundChat } from '../../src/router/bound.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion } from '../helper/upstream.ts';

test('a member that is null is left out, as OpenAI does it: some clients send all that they know', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const nulls = [
    'n',
    'stop',
    'stream',
    'stream_options',
    'max_completion_tokens',
    'tools',
    'tool_choice',
    'functions',
    'response_format',
    'store',
    'service_tier',
    'modalities',
    'audio',
    'prediction',
    'logit_bias',
    'seed',
    'user',
  ];
  const answer = await gateway.chat(Object.fromEntries(nulls.map((name) => [name, null])));
  assert.equal(answer.status, 200, answer.text);
  assert.deepEqual(purser.upstream.calls[0]?.body, {
    model: 'real/chat',
    messages: [{ role: 'user', content: 'hi' }],
    max_tokens: 100,
    stream: false,
  });
  const unlimited = await gateway.chat({ max_tokens: null });
  assert.equal(unlimited.status, 200);
  assert.equal(purser.upstream.calls[1]?.body.max_tokens, 1000, 'the limit that was reserved for');
});

/** The body of a call of the upstream. */
const sent = (purser: TestServer, at: number): Record<string, unknown> => purser.upstream.calls[at]?.body ?? {};

test('the strict endpoint takes null as left out, too', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const names = [
    'n',
    'max_tokens',
    'max_completion_tokens',
    'stream',
    'tools',
    'store',
    'service_tier',
    'audio',
    'user',
  ];
  const answer = await purser.chat(token, Object.fromEntries(names.map((name) => [name, null])));
  assert.equal(answer.status, 200, answer.text);
  const { model: _, messages: __, ...rest } = sent(purser, 0);
  assert.deepEqual(rest, { stream: false, max_tokens: 1000 });
});

test('what would make the upstream remember or cost another price is passed on as harmless, metadata not at all', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const asked = { store: false, service_tier: 'default', metadata: { tags: ['cheap'] } };
  assert.equal((await gateway.chat(asked)).status, 200);
  const { store, service_tier: tier, metadata } = sent(purser, 0);
  assert.deepEqual([store, tier, metadata], [false, 'default', undefined]);
  await gateway.chat();
  assert(!('store' in sent(purser, 1)), 'a server that may not know it is not sent it');
});

test('OpenAI’s own API is told so with every chat: there the settings of the project would decide', () => {
  for (const [base_url, forced] of [
    ['https://api.openai.com/v1', { store: false, service_tier: 'default' }],
    ['https://eu.api.openai.com/v1', { store: false, service_tier: 'default' }],
    ['https://notapi.openai.com.example/v1', {}],
    ['http://127.0.0.1:8000/v1', {}],
  ] as const) {
    const model = { id: 'm', upstream: 'u', context_length: 1000, max_output_tokens: 100, pricing: { request: '0.1' } };
    const router = v.parse(Router, { upstreams: [{ name: 'u', base_url }], models: [model] });
    const found = createCatalogue({ router }).find('m');
    const bounded = boundChat(found, { model: 'm', messages: [{ role: 'user', content: 'hi' }] });
    const { store, service_tier: tier } = JSON.parse(String(bounded.bodyFor(found.routes[0])));
    assert.deepEqual({ ...(store === undefined ? {} : { store, service_tier: tier }) }, forced);
  }
});

test('what is not priced is refused by name, whatever its value', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const unpriced = {
    audio: { voice: 'a', format: 'mp3' },
    web_search_options: {},
    prediction: { type: 'content', content: 'a' },
    service_tier: 'priority',
    store: true,
    modalities: ['text', 'audio'],
    background: false,
    extra_body: {},
    models: ['chat', 'dear'],
    route: 'fallback',
    provider: { order: ['x'] },
    plugins: [],
    usage: { include: true },
  };
  for (const [name, value] of Object.entries(unpriced))
    for (const stream of [true, false]) {
      const { status, body } = await gateway.chat({ stream, [name]: value });
      assert.deepEqual([status, body.error.code, body.error.param], [400, 'unsupported_parameter', name]);
    }
  assert.deepEqual(purser.upstream.calls, []);
});

/** Messages as stock clients and model servers write them. */
const ANSWERS: [what: string, message: Record<string, unknown>][] = [
  ['OpenAI', { role: 'assistant', content: 'a', refusal: null, annotations: [] }],
  [
    'OpenAI with an audio that is none',
    { role: 'assistant', content: 'a', audio: null, function_call: null, tool_calls: [] },
  ],
  ['vLLM with a thought', { role: 'assistant', content: 'a', reasoning_content: 'let me think', tool_calls: [] }],
  ['OpenRouter with a thought', { role: 'assistant', content: 'a', reasoning: 'let me think', refusal: null }],
  ['vLLM without a thought', { role: 'assistant', content: 'a', reasoning_content: null, reasoning: null }],
];
for (const [whose, message] of ANSWERS)
  test(`an answer of ${whose} can be sent back as it came`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    purser.upstream.handle = completion();
    const messages = [{ role: 'user', content: 'hi' }, message, { role: 'user', content: 'go on' }];
    const answer = await gateway.chat({ messages });
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(purser.upstream.calls[0]?.body.messages, messages);
    const bound = (await purser.run('operation.list', {})).operations[0]?.price.bound_prompt_tokens as number;
    assert(bound >= JSON.stringify(messages).length, 'the thought is among the bytes');
  });

test('a thought that is no text is not forwarded: bytes bound text only', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  for (const message of [
    { reasoning: { file_id: 'a' } },
    { reasoning_content: [{ type: 'image_url' }] },
    { thinking: 'a' },
  ]) {
    const answer = await gateway.chat({ messages: [{ role: 'assistant', content: 'a', ...message }] });
    assert.deepEqual(
      [answer.status, answer.body.error.code, answer.body.error.param],
      [400, 'unsupported_parameter', `messages.0.${Object.keys(message)[0]}`],
    );
  }
  assert.deepEqual(purser.upstream.calls, []);
});
