import assert from 'node:assert/strict';
import test from 'node:test';
import { breakOff, counted, DONE, said, streaming } from '../helper/sse.ts';
import { failure, reset } from '../helper/upstream.ts';
import { ASKED, answers, call, callDelta, delta, open, RESPONSES_TOOL, twoCalls, USAGE } from './dialects-shared.ts';

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

test('an answer that was cut says so in each API, in whatever words', async (t) => {
  const { purser, openai, anthropic } = await open(t);
  for (const [reason, inResponses, inMessages] of [
    ['length', 'max_output_tokens', 'max_tokens'],
    ['model_context_window_exceeded', 'max_output_tokens', 'max_tokens'],
    ['content_filter', 'content_filter', 'refusal'],
    ['sensitive', 'content_filter', 'refusal'],
  ] as const) {
    purser.upstream.handle = answers({ content: 'half' }, reason);
    const response = await openai.responses.create({ model: 'chat', input: 'hi' });
    assert.deepEqual([response.status, response.incomplete_details?.reason], ['incomplete', inResponses], reason);
    assert.equal((await anthropic.messages.create(ASKED)).stop_reason, inMessages, reason);
  }
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
      /^input\.0\.content\.0: an input_file by its id/,
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

test('a path that is not served says what is', async (t) => {
  const { gateway } = await open(t);
  const { status, body } = await gateway.ask('POST', '/images/generations', { body: {} });
  assert.deepEqual([status, body.error.type], [404, 'invalid_request_error']);
  assert.match(body.error.message, /serves .*POST \/chat\/completions.*POST \/responses.*POST \/messages/);
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
    ['/messages', { ...ASKED, output_config: { effort: 'constructor' } }, /output_config.effort: must be low, medium/],
    [
      '/messages',
      { ...ASKED, tools: [{ name: 'look', input_schema: {} }], tool_choice: { type: 'toString' } },
      /tool_choice.type: must be auto, any, tool or none/,
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
