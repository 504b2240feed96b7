import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { Router } from '../../src/config/router.ts';
import { FREE_MEMBERS } from '../../src/router/free-members.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, openUpstream } from '../helper/upstream.ts';

const sent = (purser: TestServer) => purser.upstream.calls.at(-1)?.body as Record<string, any>;
const boundOf = async (purser: TestServer): Promise<number> =>
  ((await purser.run('operation.list', {})).operations[0] as any).price.bound_prompt_tokens;

test('samplers and switches of templates pass as they came, and are bounded by their bytes', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  await gateway.chat();
  const plain = await boundOf(purser);
  const members = Object.fromEntries(FREE_MEMBERS.map((name, i) => [name, i % 2 ? i / 8 : { a: [i, 'b', null] }]));
  assert.equal((await gateway.chat(members)).status, 200);
  for (const [name, value] of Object.entries(members)) assert.deepEqual(sent(purser)[name], value, name);
  assert((await boundOf(purser)) - plain >= JSON.stringify(members).length / 2);
  assert.equal((await gateway.streamed(members)).status, 200);
  assert.equal((await purser.chat(gateway.token, members)).status, 200, 'at the strict endpoint, too');
  const dull = { top_k: null, chat_template_kwargs: null };
  assert.equal((await gateway.chat(dull)).status, 200);
  assert(!('top_k' in sent(purser)), 'null is absent');
});

test('what runs code, swaps templates or goes around the output limit does not pass', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  for (const name of [
    'chat_template',
    'logits_processors',
    'best_of',
    'use_beam_search',
    'n_predict',
    'options',
    'max_new_tokens',
    'lora_path',
  ]) {
    const { status, body } = await gateway.chat({ [name]: 1 });
    assert.deepEqual([status, body.error.code, body.error.param], [400, 'unsupported_parameter', name]);
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('a switch that is none does not pass in any API: it would choose the template, or the length of the prompt', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  for (const [path, asked] of [
    ['/chat/completions', { messages: [{ role: 'user', content: 'hi' }] }],
    ['/messages', { messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 }],
    ['/responses', { input: 'hi' }],
  ] as const)
    for (const [name, value] of [
      ['chat_template', "{{ 'a ' * 100000 }}"],
      ['padding', 'max_length'],
      ['tokenizer_kwargs', { padding: 'max_length', max_length: 100_000 }],
    ] as const) {
      const body = { model: 'chat', ...asked, chat_template_kwargs: { enable_thinking: false, [name]: value } };
      const { status, text } = await gateway.ask('POST', path, { body });
      assert.equal(status, 400, `${path} ${name}`);
      assert.match(text, new RegExp(`chat_template_kwargs.${name}`));
    }
  assert.deepEqual(purser.upstream.calls, []);
});

test('`forward` adds members for one upstream; another upstream of the model does not get them', async (t) => {
  const other = await openUpstream(t);
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        upstreams: [
          { ...all.router.upstreams[0], forward: ['documents', 'keep_alive'] },
          { name: 'other', base_url: other.url },
        ],
        models: [
          { ...all.router.models[0], fallbacks: [{ upstream: 'other' }] },
          { ...all.router.models[1], upstream: 'other' },
        ],
      },
    }),
  });
  const gateway = await openGateway(purser);
  const asked = { documents: [{ text: 'x'.repeat(1000) }], keep_alive: -1 };
  assert.equal((await gateway.chat(asked)).status, 200);
  assert.deepEqual([sent(purser).documents, sent(purser).keep_alive], [asked.documents, -1]);
  assert((await boundOf(purser)) > 1000, 'their bytes are bounded');
  purser.upstream.handle = failure(503);
  assert.equal((await gateway.chat(asked)).status, 200);
  const { body = {} } = other.calls[0] ?? {};
  assert.deepEqual([body.model, body.documents, body.keep_alive], ['real/chat', undefined, undefined]);
  const refused = await gateway.chat({ model: 'flat', ...asked });
  assert.deepEqual([refused.status, refused.body.error.param], [400, 'documents']);
});

test('`forward` adds members on the other wires, too; elsewhere they are refused or left out as without it', async (t) => {
  const other = await openUpstream(t);
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        upstreams: [
          { ...all.router.upstreams[0], forward: ['documents', 'prompt_cache_key', 'context_management', 'stop'] },
          { name: 'other', base_url: other.url },
        ],
        models: [
          { ...all.router.models[0], fallbacks: [{ upstream: 'other' }] },
          { ...all.router.models[1], upstream: 'other' },
        ],
      },
    }),
  });
  const gateway = await openGateway(purser);
  const documents = [{ text: 'x'.repeat(1000) }];
  for (const [path, leftOut, asked] of [
    ['/messages', 'context_management', { messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 }],
    ['/responses', 'prompt_cache_key', { input: 'hi', max_output_tokens: 100 }],
  ] as const) {
    const ask = (body: object) => gateway.ask('POST', path, { body: { model: 'chat', ...asked, ...body } });
    purser.upstream.handle = completion();
    assert.equal((await ask({})).status, 200);
    const [plain, bound] = [sent(purser), await boundOf(purser)];
    assert.equal((await ask({ documents, [leftOut]: 'k', keep_alive: null })).status, 200);
    assert.deepEqual(sent(purser), { ...plain, documents, [leftOut]: 'k' });
    assert((await boundOf(purser)) - bound > 1000, 'their bytes are bounded');

    purser.upstream.handle = failure(503);
    assert.equal((await ask({ documents, [leftOut]: 'k' })).status, 200);
    const { body = {} } = other.calls.at(-1) ?? {};
    assert.deepEqual([body.documents, body[leftOut]], [undefined, undefined], 'another upstream does not get them');

    assert.equal((await ask({ model: 'flat', [leftOut]: 'k' })).status, 200, 'what is left out elsewhere still is');
    const callCount = other.calls.length;
    for (const name of ['documents', 'keep_alive']) {
      const refused = await ask({ model: 'flat', [name]: documents });
      assert.equal(refused.status, 400);
      assert.match(
        refused.body.error.message,
        new RegExp(`^${name}: this gateway does not know it\\. Leave it out\\.`),
      );
    }
    assert.equal(other.calls.length, callCount);
  }
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, documents };
  const { body: counted } = await gateway.ask('POST', '/messages/count_tokens', { body });
  assert(counted.input_tokens > 250, 'they are counted, too');
  const twice = { ...body, stop_sequences: ['a'], stop: ['b'] };
  const refused = await gateway.ask('POST', '/messages', { body: twice });
  assert.equal(refused.status, 400, 'what the translation writes itself is not written twice');
});

test('`forward` adds members to embeddings, bounded for each input', async (t) => {
  const vectors = (count: number) => Array.from({ length: count }, (_, index) => ({ index, embedding: [0] }));
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        upstreams: [
          { ...all.router.upstreams[0], forward: ['input_type', 'deep'] },
          { name: 'other', base_url: all.router.upstreams[0].base_url },
        ],
        models: ['local', 'other'].map((upstream) => ({
          ...all.router.models[0],
          id: `of-${upstream}`,
          kind: 'embeddings',
          upstream,
          context_length: 1_000_000,
          max_output_tokens: undefined,
          pricing: { prompt: '0.000001' },
        })),
      },
    }),
  });
  const gateway = await openGateway(purser);
  purser.upstream.handle = (_, answer) =>
    answer.end(JSON.stringify({ data: vectors(2), usage: { prompt_tokens: 2, total_tokens: 2 } }));
  const ask = (body: object) => gateway.ask('POST', '/embeddings', { body: { input: ['a', [7]], ...body } });
  assert.equal((await ask({ model: 'of-local' })).status, 200);
  const plain = await boundOf(purser);
  assert.equal((await ask({ model: 'of-local', input_type: 'q'.repeat(100), deep: null })).status, 200);
  assert.deepEqual([sent(purser).input_type, sent(purser).deep], ['q'.repeat(100), undefined]);
  assert((await boundOf(purser)) - plain >= 200, 'before each of the two inputs');
  const tooDeep = await ask({ model: 'of-local', deep: { arguments: '['.repeat(200) + ']'.repeat(200) } });
  assert.deepEqual([tooDeep.status, tooDeep.body.error.code], [400, 'invalid_request']);
  const refused = await ask({ model: 'of-other', input_type: 'query' });
  assert.deepEqual([refused.status, refused.body.error.param], [400, 'input_type']);
  assert.deepEqual(purser.problems(), []);
});

test('`forward` takes names of members, and none that Purser reads itself', () => {
  const parse = (forward: unknown) =>
    v.safeParse(Router, { upstreams: [{ name: 'u', base_url: 'http://u', forward }] });
  assert(parse(['documents', 'x_1']).success);
  for (const forward of [
    'documents',
    [''],
    ['a b'],
    ['max_tokens'],
    ['n'],
    ['stream_options'],
    ['cache_control'],
    ['messages'],
    [1],
  ])
    assert(!parse(forward).success, JSON.stringify(forward));
});

const mark = { type: 'ephemeral', ttl: '1h' };
/** Marks wherever a client may put one, and the same name where it is none. */
const marked = (padding = '') => ({
  cache_control: mark,
  messages: [
    { role: 'system', content: [{ type: 'text', text: `a${padding}`, cache_control: mark }], cache_control: mark },
    {
      role: 'assistant',
      content: null,
      tool_calls: [
        {
          id: 'c',
          type: 'function',
          cache_control: mark,
          function: { name: 'f', arguments: '{"cache_control":1}', cache_control: mark },
        },
      ],
    },
    { role: 'tool', tool_call_id: 'c', content: 'cache_control', cache_control: mark },
    { role: 'user', content: 'hi', cache_control: null },
  ],
  tools: [
    {
      type: 'function',
      cache_control: mark,
      function: {
        name: 'f',
        cache_control: mark,
        parameters: { type: 'object', properties: { cache_control: { type: 'string' } } },
      },
    },
  ],
});
const countMarks = (value: unknown) =>
  (JSON.stringify(value).match(/"cache_control":\{"type":"ephemeral"/g) ?? []).length;
const SCHEMA = { type: 'object', properties: { cache_control: { type: 'string' } } };

for (const [size, padding] of [
  ['small', ''],
  ['large', 'x'.repeat(300_000)],
] as const)
  test(`cache_control, nested or not, goes where cache writes have a price, and nowhere else (${size})`, async (t) => {
    const other = await openUpstream(t);
    const price = { prompt: '0.000001', completion: '0.000002' };
    const limits = { context_length: 1_000_000, max_output_tokens: 1000 };
    const purser = await openTestServer(t, {
      change: (all) => ({
        ...all,
        router: {
          upstreams: [...all.router.upstreams, { name: 'other', base_url: other.url }],
          models: [
            { id: 'plain', upstream: 'local', ...limits, pricing: price },
            {
              id: 'caches',
              upstream: 'local',
              ...limits,
              pricing: { ...price, input_cache_write: '0.00000125' },
              fallbacks: [{ upstream: 'other', pricing: price }],
            },
          ],
        },
      }),
    });
    const gateway = await openGateway(purser);
    const first = await gateway.chat({ model: 'plain', ...marked(padding) });
    assert.equal(first.status, 200, first.text);
    assert.equal(countMarks(sent(purser)), 0);
    assert.deepEqual(sent(purser).tools[0].function.parameters, SCHEMA);
    assert.match(sent(purser).messages[1].tool_calls[0].function.arguments, /cache_control/);

    purser.upstream.handle = completion({
      prompt_tokens: 100,
      completion_tokens: 0,
      prompt_tokens_details: { cache_write_tokens: 100 },
    });
    const before = purser.wallet(gateway.walletId).spent;
    assert.equal((await gateway.chat({ model: 'caches', ...marked(padding) })).status, 200);
    assert.equal(countMarks(sent(purser)), 8);
    assert.doesNotMatch(JSON.stringify(sent(purser)), /ttl/, 'the price is that of the shortest time');
    assert.deepEqual(sent(purser).tools[0].function.parameters, SCHEMA);
    assert.equal(purser.wallet(gateway.walletId).spent - before, 125_000n);

    purser.upstream.handle = failure(503);
    assert.equal((await gateway.chat({ model: 'caches', ...marked(padding) })).status, 200);
    assert.equal(countMarks(other.calls[0]?.body), 0, 'the fallback has no price for it');
    assert.deepEqual(purser.problems(), []);
  });

test('a mark is found however its name is written', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const body = `{"model":"chat","max_tokens":10,"messages":[{"role":"user","content":"hi","cache\\u005fcontrol":{"type":"ephemeral"}}]}`;
  const answer = await purser.ask('POST', '/v1/router/chat/completions', { token: gateway.key, body });
  assert.equal(answer.status, 200, answer.text);
  assert.equal(countMarks(sent(purser)), 0);
});
