import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openHouse } from '../helper/house.ts';
import { completion } from '../helper/upstream.ts';

test('a member that is null is left out, as OpenAI does it: some clients send all that they know', async (t) => {
  const house = await openHouse(t);
  const gateway = await openGateway(house);
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
  assert.deepEqual(house.upstream.calls[0]?.body, {
    model: 'real/chat',
    messages: [{ role: 'user', content: 'hi' }],
    max_tokens: 100,
    stream: false,
  });
  const unlimited = await gateway.chat({ max_tokens: null });
  assert.equal(unlimited.status, 200);
  assert.equal(house.upstream.calls[1]?.body.max_tokens, 1000, 'the limit that was reserved for');
});

test('what is not priced is refused by name, whatever its value', async (t) => {
  const house = await openHouse(t);
  const gateway = await openGateway(house);
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
  assert.deepEqual(house.upstream.calls, []);
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
    const house = await openHouse(t);
    const gateway = await openGateway(house);
    house.upstream.handle = completion();
    const messages = [{ role: 'user', content: 'hi' }, message, { role: 'user', content: 'go on' }];
    const answer = await gateway.chat({ messages });
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(house.upstream.calls[0]?.body.messages, messages);
    const bound = (await house.run('operation.list', {})).operations[0]?.price.bound_prompt_tokens as number;
    assert(bound >= JSON.stringify(messages).length, 'the thought is among the bytes');
  });

test('a thought that is no text is not forwarded: bytes bound text only', async (t) => {
  const house = await openHouse(t);
  const gateway = await openGateway(house);
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
  assert.deepEqual(house.upstream.calls, []);
});
