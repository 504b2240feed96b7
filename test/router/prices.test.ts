import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure } from '../helper/upstream.ts';

const limits = { upstream: 'local', context_length: 100_000, max_output_tokens: 1000 };
const plain = { prompt: '0.000001', completion: '0.000002' }; // 1000 and 2000 nano-dollars a token
const special = { input_cache_read: '0.0000001', input_cache_write: '0.00000125', internal_reasoning: '0.000003' };
const MODELS = [
  { id: 'plain', ...limits, pricing: plain },
  { id: 'special', ...limits, pricing: { ...plain, ...special } },
  {
    id: 'tiered',
    ...limits,
    pricing: {
      ...plain,
      request: '0.000005',
      tiers: [
        { above_tokens: 1000, prompt: '0.000003', completion: '0.000005' },
        { above_tokens: 2000, prompt: '0.000007', completion: '0.000011', input_cache_read: '0.000001' },
      ],
    },
  },
  { id: 'seeing', ...limits, image_tokens: 500, pricing: { ...plain, image: '0.005' } },
  { id: 'fetching', ...limits, image_tokens: 500, image_urls: true, pricing: { ...plain, image: '0.005' } },
  { id: 'tiny', ...limits, pricing_per_million: { prompt: '0.000001', completion: '0.0125' } },
  {
    id: 'embedding',
    kind: 'embeddings',
    upstream: 'local',
    context_length: 8192,
    pricing_per_million: { prompt: '0.02', request: '0.000001' },
  },
];
const settings: TestServerOptions = {
  change: (all) => ({ ...all, router: { upstreams: all.router.upstreams, models: MODELS } }),
};
/** The latest operation, its JSON in any shape. */
const latest = async (purser: TestServer): Promise<any> => (await purser.run('operation.list', {})).operations[0];

type Case = [what: string, model: string, usage: object, nanos: bigint];
const usage = (prompt: number, completion: number, more: object = {}) => ({
  prompt_tokens: prompt,
  completion_tokens: completion,
  total_tokens: prompt + completion,
  ...more,
});
const cached = (count: number, more: object = {}) => ({ prompt_tokens_details: { cached_tokens: count, ...more } });
const reasoning = (count: number) => ({ completion_tokens_details: { reasoning_tokens: count } });

/** Each figure by hand. The prompt has 2,500 letters, so all of these are within the bound. */
const CASES: Case[] = [
  ['plain tokens', 'plain', usage(100, 10), 100n * 1000n + 10n * 2000n],
  ['cached tokens without a price of their own', 'plain', usage(100, 10, cached(90)), 100n * 1000n + 10n * 2000n],
  ['cached tokens, counted once', 'special', usage(100, 10, cached(90)), 10n * 1000n + 90n * 100n + 10n * 2000n],
  ['a prompt that is cached whole', 'special', usage(100, 0, cached(100)), 100n * 100n],
  [
    'cached tokens as DeepSeek counts them',
    'special',
    usage(100, 0, { prompt_cache_hit_tokens: 90, prompt_cache_miss_tokens: 10 }),
    10n * 1000n + 90n * 100n,
  ],
  ['cached tokens as Moonshot counts them', 'special', usage(100, 0, { cached_tokens: 90 }), 10n * 1000n + 90n * 100n],
  [
    'cached tokens as Mistral counts them',
    'special',
    usage(100, 0, { num_cached_tokens: 90, prompt_tokens_details: null }),
    10n * 1000n + 90n * 100n,
  ],
  [
    'tokens read from the cache and written to it',
    'special',
    usage(100, 0, cached(50, { cache_write_tokens: 30 })),
    20n * 1000n + 50n * 100n + 30n * 1250n,
  ],
  [
    'written tokens as LiteLLM counts them',
    'special',
    usage(100, 0, { ...cached(50), cache_creation_input_tokens: 30, cache_read_input_tokens: 50 }),
    20n * 1000n + 50n * 100n + 30n * 1250n,
  ],
  [
    'written tokens that LiteLLM left out of the prompt',
    'special',
    usage(20, 0, { cache_creation_input_tokens: 30 }),
    20n * 1000n + 30n * 1250n,
  ],
  [
    'written tokens as Qwen counts them',
    'special',
    usage(100, 0, cached(50, { cache_creation_input_tokens: 30 })),
    20n * 1000n + 50n * 100n + 30n * 1250n,
  ],
  ['reasoning among the completion', 'special', usage(10, 50, reasoning(40)), 10n * 1000n + 10n * 2000n + 40n * 3000n],
  [
    'reasoning beside the completion',
    'special',
    usage(10, 5, { ...reasoning(40), total_tokens: 55 }),
    10n * 1000n + 5n * 2000n + 40n * 3000n,
  ],
  [
    'details that are null',
    'special',
    usage(10, 5, { prompt_tokens_details: null, ...{ completion_tokens_details: null } }),
    20_000n,
  ],
  [
    'details whose members are null',
    'special',
    usage(10, 5, { ...cached(null as never), ...reasoning(null as never) }),
    20_000n,
  ],
  ['a prompt below the first tier', 'tiered', usage(1000, 10), 1000n * 1000n + 10n * 2000n + 5000n],
  ['a prompt in the first tier, charged at it whole', 'tiered', usage(1001, 10), 1001n * 3000n + 10n * 5000n + 5000n],
  [
    'a prompt in the last tier, with its own rate for what is cached',
    'tiered',
    usage(2001, 10, cached(1000)),
    1001n * 7000n + 1000n * 1000n + 10n * 11_000n + 5000n,
  ],
  [
    'what the upstream says that it costs',
    'plain',
    usage(100, 10, { cost: 12.5, cost_details: { upstream_inference_cost: 9 } }),
    120_000n,
  ],
  ['a cost of nothing', 'plain', usage(100, 10, { cost: 0 }), 120_000n],
  ['a fraction of a nano-dollar, rounded up once', 'tiny', usage(1, 1), 13n], // 0.001 + 12.5
  ['nothing at all', 'plain', usage(0, 0), 0n],
];

const long = [{ role: 'user', content: 'x'.repeat(2500) }];

test('what an upstream counts is charged by our price, streamed or not', async (t) => {
  const purser = await openTestServer(t, settings);
  for (const [what, model, it, nanos] of CASES)
    await t.test(what, async () => {
      const gateway = await openGateway(purser);
      purser.upstream.handle = completion(it);
      assert.equal((await gateway.chat({ model, messages: long })).status, 200);
      assert.equal(purser.wallet(gateway.walletId).spent, nanos);
      purser.upstream.handle = streaming(said('a'), FINISHED, counted(it), DONE);
      assert((await gateway.streamed({ model, messages: long })).text.endsWith(DONE));
      assert.equal(purser.wallet(gateway.walletId).spent, 2n * nanos);
    });
  assert.deepEqual(purser.problems(), []);
});

test('price, bound and count stand on the row: enough to compute hold and charge again', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  const it = usage(1001, 10, { ...cached(1), ...reasoning(2) });
  purser.upstream.handle = completion(it);
  await gateway.chat({ model: 'tiered', messages: long, max_tokens: 20, n: 3 });
  const operation = await latest(purser);
  const { bound_prompt_tokens: promptTokens, bound_completion_tokens: completionTokens, ...price } = operation.price;
  assert.deepEqual(price, {
    prompt_nanos_per_million: '1000000000',
    completion_nanos_per_million: '2000000000',
    request_nanos: '5000',
    tiers: [
      { above_tokens: 1000, prompt_nanos_per_million: '3000000000', completion_nanos_per_million: '5000000000' },
      {
        above_tokens: 2000,
        prompt_nanos_per_million: '7000000000',
        completion_nanos_per_million: '11000000000',
        cache_read_nanos_per_million: '1000000000',
      },
    ],
  });
  assert.equal(completionTokens, 60);
  assert.deepEqual(operation.usage, {
    prompt_tokens: 1001,
    completion_tokens: 10,
    cache_read_tokens: 1,
    reasoning_tokens: 2,
  });
  const hold = BigInt(promptTokens) * 7000n + 60n * 11_000n + 5000n; // The bound lies in the last tier.
  assert.equal(operation.hold_usd, `0.0${String(hold).padStart(8, '0').replace(/0+$/, '')}`);
});

test('the hold takes the dearest rate that a token can have', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completion(usage(1, 1));
  await gateway.chat({ model: 'special', max_tokens: 10 });
  const operation = await latest(purser);
  const { bound_prompt_tokens: bound } = operation.price;
  // Written to the cache, and reasoning.
  assert.equal(operation.hold_usd, `0.000${String(BigInt(bound) * 1250n + 10n * 3000n)}`.replace(/0+$/, ''));
});

const PNG = `data:image/png;base64,${'A'.repeat(40_000)}`;
const picture = (url: string, detail?: string) => ({
  type: 'image_url',
  image_url: { url, ...(detail ? { detail } : {}) },
});

test('images cost what the configuration says for each, and as many tokens as one can become', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  const content = [{ type: 'text', text: 'what is this?' }, picture(PNG), picture('https://a.example/b.png', 'high')];
  purser.upstream.handle = completion(usage(900, 10));
  const answer = await gateway.chat({ model: 'fetching', messages: [{ role: 'user', content }] });
  assert.equal(answer.status, 200, answer.text);
  assert.equal(purser.wallet(gateway.walletId).spent, 900n * 1000n + 10n * 2000n + 2n * 5_000_000n);
  const operation = await latest(purser);
  const { bound_prompt_tokens: bound, image_nanos: image } = operation.price;
  assert.equal(image, '5000000');
  assert(bound > 1000 && bound < 2000, `two images of 500 tokens each and some text, not the bytes: ${bound}`);
  assert.equal(operation.usage.images, 2);
  assert.deepEqual(purser.upstream.calls[0]?.body.messages, [{ role: 'user', content }]);
});

test('images go only to models that have a price for them, and only as addresses of images', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  const ask = (model: string, part: unknown) => gateway.chat({ model, messages: [{ role: 'user', content: [part] }] });
  assert.equal((await ask('plain', picture(PNG))).body.error.code, 'unsupported_parameter');
  for (const part of [
    picture('file:///etc/passwd'),
    picture('https://a.example/b.png'),
    picture('http://169.254.169.254/latest/meta-data/'),
    picture('data:image/svg+xml;base64,AAAA'),
    picture('data:image/pngish;base64,AAAA'),
    picture('data:text/html,hello'),
    picture(''),
    { type: 'image_url', image_url: PNG },
    { type: 'image_url' },
    { type: 'image_url', image_url: { url: PNG, extra: 'x' } },
    { ...picture(PNG), text: 'x' },
    { type: 'input_image', image_url: PNG },
    { type: 'file', file: { file_data: PNG } },
  ]) {
    const answer = await ask('seeing', part);
    assert.equal(answer.status, 400, JSON.stringify(part).slice(0, 100));
    assert.match(String(answer.body.error.param), /^messages\.0\.content\.0/);
  }
  assert.deepEqual(purser.upstream.calls, []);
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('a model without a price is not there: not listed, not read, not asked', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { body } = await gateway.ask('GET', '/models');
  assert(!body.data.some(({ id }: { id: string }) => id === 'unpriced'));
  assert.equal((await gateway.ask('GET', '/models/unpriced')).body.error.code, 'model_not_found');
  for (const stream of [true, false]) {
    const answer = await gateway.chat({ model: 'unpriced', stream });
    assert.deepEqual([answer.status, answer.body.error.code], [404, 'model_not_found']);
    assert.equal(answer.body.error.param, 'model');
  }
  const options = await purser.ask('POST', '/v1/router/key', { token: gateway.token, body: { models: ['unpriced'] } });
  assert.equal(options.body.error.code, 'model_not_found');
  assert.deepEqual(purser.upstream.calls, []);
});

test('embeddings are charged by their prompt, and their answer is passed on', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  const body = { object: 'list', data: [{ embedding: [0.5], index: 0 }], usage: { prompt_tokens: 7, total_tokens: 7 } };
  purser.upstream.handle = failure(200, body);
  const inputs = ['hello', ['a', 'b'], [1, 2, 3], [[1, 2], [3]]];
  for (const input of inputs) {
    const answer = await gateway.ask('POST', '/embeddings', {
      body: { model: 'embedding', input, encoding_format: 'float', dimensions: null, user: null },
    });
    assert.deepEqual([answer.status, answer.body], [200, body], answer.text);
  }
  assert.equal(purser.wallet(gateway.walletId).spent, BigInt(inputs.length) * (7n * 20n + 1000n));
  assert.deepEqual(
    purser.upstream.calls.map((it) => [it.path, it.body]),
    inputs.map((input) => ['/v1/embeddings', { input, model: 'embedding', encoding_format: 'float' }]),
  );
});

test('embeddings whose server counts a total alone are charged by it, as Voyage does', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  const data = [{ embedding: [0.5], index: 0 }];
  purser.upstream.handle = failure(200, { object: 'list', data, usage: { total_tokens: 7 } });
  const body = { model: 'embedding', input: 'a text that is bounded by more than 7 tokens' };
  assert.equal((await gateway.ask('POST', '/embeddings', { body })).status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent, 7n * 20n + 1000n);
});

test('embeddings and chats are asked of models of their kind only, with what is priced', async (t) => {
  const purser = await openTestServer(t, settings);
  const gateway = await openGateway(purser);
  const embed = (body: object) =>
    gateway.ask('POST', '/embeddings', { body: { model: 'embedding', input: 'a', ...body } });
  const refused: [Promise<{ body: any }>, string][] = [
    [embed({ model: 'plain' }), 'model_not_found'],
    [gateway.chat({ model: 'embedding' }), 'model_not_found'],
    [gateway.streamed({ model: 'embedding' }), 'model_not_found'],
    [purser.chat(gateway.token, { model: 'embedding' }), 'model_not_found'],
    [embed({ input: undefined }), 'invalid_request'],
    [embed({ input: [] }), 'invalid_request'],
    [embed({ input: ['a', 1] }), 'invalid_request'],
    [embed({ input: [[]] }), 'invalid_request'],
    [embed({ input: [-1] }), 'invalid_request'],
    [embed({ input: { text: 'a' } }), 'invalid_request'],
    [embed({ input: Array(2049).fill('a') }), 'invalid_request'],
    [embed({ dimensions: 0 }), 'invalid_request'],
    [embed({ stream: true }), 'unsupported_parameter'],
    [embed({ input_type: 'query' }), 'unsupported_parameter'],
  ];
  for (const [asked, code] of refused) assert.equal((await asked).body.error.code, code);
  assert.deepEqual(purser.upstream.calls, []);
  const longest = Array(2048).fill('x'.repeat(1000));
  assert.equal((await embed({ input: longest })).status, 200);
  const { bound_prompt_tokens: bound } = (await latest(purser)).price;
  assert.equal(bound, 2048 * 1008);
});
