import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { Router } from '../../src/config/router.ts';
import { boundChat } from '../../src/router/bound.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion } from '../helper/upstream.ts';
import { vendorClients } from '../helper/vendor-clients.ts';

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
  };
  for (const [name, value] of Object.entries(unpriced))
    for (const stream of [true, false]) {
      const { status, body } = await gateway.chat({ stream, [name]: value });
      assert.deepEqual([status, body.error.code, body.error.param], [400, 'unsupported_parameter', name]);
    }
  assert.deepEqual(purser.upstream.calls, []);
});

const CALL = { id: 'call_1', type: 'function', function: { name: 'look', arguments: '{}' } };
/** Messages as stock clients and model servers write them. */
const ANSWERS: [what: string, message: Record<string, unknown>][] = [
  ['OpenAI', { role: 'assistant', content: 'a', refusal: null, annotations: [] }],
  [
    'OpenAI with an audio that is none',
    { role: 'assistant', content: 'a', audio: null, function_call: null, tool_calls: [] },
  ],
  ['vLLM with a thought', { role: 'assistant', content: 'a', reasoning_content: 'let me think', tool_calls: [] }],
  ['OpenRouter with a thought', { role: 'assistant', content: 'a', reasoning: 'let me think', refusal: null }],
  [
    'OpenRouter with details of its thought',
    {
      role: 'assistant',
      content: null,
      reasoning: 'hm',
      reasoning_details: [
        { type: 'reasoning.text', text: 'hm', signature: 's'.repeat(200), format: 'anthropic-claude-v1', index: 0 },
        { type: 'reasoning.encrypted', data: 'x'.repeat(200), id: 'rs_1', format: 'openai-responses-v1', index: 1 },
      ],
      tool_calls: [CALL],
    },
  ],
  [
    'LiteLLM with thinking blocks',
    {
      role: 'assistant',
      content: 'a',
      thinking_blocks: [{ type: 'thinking', thinking: 'é'.repeat(200), signature: 's', cache_control: null }],
      provider_specific_fields: { citations: [[{ type: 'char_location', cited_text: 'c', document_index: 0 }]] },
    },
  ],
  ['SGLang', { role: 'assistant', content: 'a', matched_stop: 151645 }],
  ['Gemini', { role: 'assistant', content: 'a', extra_content: { google: { thought_signature: 'x'.repeat(200) } } }],
  [
    'OpenAI with sources',
    {
      role: 'assistant',
      content: 'a',
      annotations: [{ type: 'url_citation', url_citation: { url: 'https://a.example/', title: 'A', start_index: 0 } }],
    },
  ],
  [
    'Mistral with a thought',
    {
      role: 'assistant',
      content: [
        { type: 'thinking', thinking: [{ type: 'text', text: '<'.repeat(200) }], closed: true },
        { type: 'text', text: 'a' },
      ],
      tool_calls: [CALL],
    },
  ],
  [
    'vLLM with a thought as a part',
    { role: 'assistant', content: [{ type: 'thinking', thinking: 'let me think', closed: true }] },
  ],
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

test('what came with an answer passes in a message of the model alone, and only as text', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const thought = { type: 'thinking', thinking: [{ type: 'text', text: 'a' }] };
  const image = { type: 'image_url', image_url: { url: 'https://a.example/' } };
  for (const [message, where] of [
    [{ role: 'user', reasoning_details: [{ type: 'reasoning.text', text: 'a' }] }, 'reasoning_details'],
    [{ role: 'tool', tool_call_id: 'c', provider_specific_fields: { a: 1 } }, 'provider_specific_fields'],
    [{ role: 'user', content: [thought] }, 'content.0.thinking'],
    [{ role: 'assistant', content: [{ ...thought, source: 'a' }] }, 'content.0.source'],
    [{ role: 'assistant', content: [{ ...thought, thinking: [image] }] }, 'content.0'],
    [{ role: 'assistant', annotations: [{ type: 'file', file: { hash: 'a', content: [image] } }] }, 'annotations'],
    [
      { role: 'assistant', provider_specific_fields: { parts: [{ input_audio: { data: 'a' } }] } },
      'provider_specific_fields',
    ],
    [{ role: 'assistant', thinking_blocks: [{ ...thought, cache_control: { type: 'ephemeral' } }] }, 'thinking_blocks'],
  ] as const) {
    const { status, body } = await gateway.chat({ messages: [{ content: 'a', ...message }] });
    assert.deepEqual(
      [status, body.error.code, body.error.param],
      [400, 'unsupported_parameter', `messages.0.${where}`],
    );
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('hints for a cache are left out, and the tier that a server takes by itself; OpenAI’s own API gets its key', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const hints = { prompt_cache_key: 'c', prompt_cache_retention: '24h', service_tier: 'auto' } as const;
  const asked = { model: 'chat', messages: [{ role: 'user' as const, content: 'hi' }], max_tokens: 100 };
  const { openai } = vendorClients(purser.url, gateway.key);
  await openai.chat.completions.create({ ...asked, ...hints });
  assert.equal((await purser.chat(gateway.token, { ...asked, ...hints })).status, 200, 'at the strict endpoint, too');
  for (const { body } of purser.upstream.calls) assert.deepEqual(body, { ...asked, model: 'real/chat', stream: false });

  const bodyAt = (base_url: string, forward: string[]) => {
    const upstreams = [{ name: 'x', base_url, forward }];
    const models = [{ id: 'm', upstream: 'x', context_length: 1000, max_output_tokens: 10, pricing: { request: '0' } }];
    const found = createCatalogue({ router: v.parse(Router, { upstreams, models }) }).find('m');
    const bounded = boundChat(found, { ...asked, ...hints, model: 'm' });
    return JSON.parse(String(bounded.bodyFor(found.routes[0])));
  };
  const openAi = bodyAt('https://api.openai.com/v1', []);
  assert.deepEqual([openAi.prompt_cache_key, openAi.prompt_cache_retention], ['c', undefined]);
  assert.equal(openAi.service_tier, 'default', 'the tier that has the price');
  const { prompt_cache_key, prompt_cache_retention } = bodyAt('http://gpu/v1', Object.keys(hints).slice(0, 2));
  assert.deepEqual([prompt_cache_key, prompt_cache_retention], ['c', '24h']);
});
