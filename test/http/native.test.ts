import assert from 'node:assert/strict';
import test from 'node:test';
import { claudeCode, codex } from '../fixtures/agents.ts';
import { UPSTREAM_KEY } from '../helper/server.ts';
import { failure } from '../helper/upstream.ts';
import {
  ASKED,
  COST,
  latest,
  MESSAGE,
  MESSAGE_EVENTS,
  MESSAGE_TEXT,
  message,
  messageStream,
  open,
  RESPONSE,
  RESPONSE_COST,
  RESPONSE_EVENTS,
  response,
  responseStream,
  sent,
  usd,
} from './native-shared.ts';

/** A stream with the comment that tells its cost, which stands before its last event. */
const withCost = (events: readonly string[], cost: number, left: string) =>
  [...events.slice(0, -1), `: x-purser-cost-usd=${usd(cost)} x-purser-available-usd=${left}\n\n`, events.at(-1)].join(
    '',
  );

const MARKS = /, "cache_control": \{[^}]*\}/;
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

test('tools that an item brings pass, without those that the server would run, and are bounded', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = response;
  const look = { type: 'function', name: 'look', parameters: null, strict: false };
  const group = (...tools: object[]) => ({ type: 'namespace', name: 'functions', tools });
  const brings = (...tools: object[]) => ({ type: 'additional_tools', role: 'developer', tools });
  const ask = async (...items: object[]) => {
    const input = [...items, { role: 'user', content: 'hi' }];
    const body = { model: 'own', input, tools: [{ type: 'web_search' }], tool_choice: 'required' };
    const { status, text } = await gateway.ask('POST', '/responses', { body });
    assert.equal(status, 200, text);
    return { sent: sent(purser).body, bound: (await latest(purser)).price.bound_prompt_tokens };
  };
  const { bound, sent: none } = await ask();
  assert.deepEqual([none.tools, none.tool_choice], [undefined, undefined]);
  const all = await ask(brings(group(look, { type: 'web_search' }), { type: 'image_generation' }));
  assert.deepEqual(all.sent.input[0], brings(group(look)));
  assert.deepEqual([all.sent.tools, all.sent.tool_choice], [undefined, 'required']);
  assert(all.bound > bound + 600, 'as for other tools');
});

test('a search for tools that the client does passes, and what it found', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = response;
  const look = { type: 'function', name: 'look', parameters: null, strict: false };
  const found = { call_id: 'c', execution: 'client', status: 'completed' };
  const tools = [{ type: 'tool_search', execution: 'client', description: 'Finds tools.', parameters: {} }];
  const output = (...found_: object[]) => ({ type: 'tool_search_output', ...found, tools: found_ });
  const input = [
    { role: 'user', content: 'hi' },
    { type: 'tool_search_call', ...found, arguments: {} },
  ];
  const ask = (...items: object[]) =>
    gateway.ask('POST', '/responses', { body: { model: 'own', input: [...input, ...items], tools } });
  assert.equal((await ask(output(look, { type: 'web_search' }))).status, 200);
  assert.deepEqual([sent(purser).body.input, sent(purser).body.tools], [[...input, output(look)], tools]);
  assert((await latest(purser)).price.bound_prompt_tokens > 2048);
  assert.equal((await ask(output({ type: 'mcp', server_label: 'x' }))).status, 400);
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
