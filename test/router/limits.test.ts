import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { completion, failure, gate } from '../helper/upstream.ts';

const price = { prompt: '0', completion: '0.001' };
const limits = { upstream: 'house', context_length: 100_000 };
const MODELS = [
  { id: 'long', ...limits, max_output_tokens: 50_000, pricing: price },
  { id: 'dear', ...limits, max_output_tokens: 50_000, pricing: { prompt: '0', completion: '0.0033' } },
  { id: 'dearest', ...limits, max_output_tokens: 50_000, pricing: { prompt: '0', completion: '0.005' } },
  { id: 'short', ...limits, max_output_tokens: 1000, pricing: price },
  { id: 'told', ...limits, max_output_tokens: 50_000, default_output_tokens: 700, pricing: price },
  { id: 'terse', ...limits, max_output_tokens: 50, pricing: price },
  { id: 'newer', ...limits, max_output_tokens: 50_000, output_limit: 'max_completion_tokens', pricing: price },
  { id: 'narrow', upstream: 'house', context_length: 8000, max_output_tokens: 6000, pricing: price },
  {
    id: 'two',
    upstream: 'house',
    context_length: 1000,
    max_output_tokens: 100,
    pricing: { prompt: '0.000001', completion: '0' },
    fallbacks: [{ upstream: 'cloud', context_length: 50_000, prompt_overhead_tokens: 300 }],
  },
  {
    id: 'adds',
    ...limits,
    max_output_tokens: 1,
    prompt_overhead_tokens: 5000,
    pricing: { prompt: '0.000001', completion: '0' },
  },
];
const settings: TestServerOptions = {
  change: (all) => ({
    ...all,
    router: { upstreams: [all.router.upstreams[0], { ...all.router.upstreams[0], name: 'cloud' }], models: MODELS },
  }),
};
const latest = async (house: TestServer): Promise<any> => (await house.run('operation.list', {})).operations[0];
const USAGE = completion({ prompt_tokens: 1, completion_tokens: 1 });
const open = async (t: test.TestContext, cents = 10_000) => {
  const house = await openTestServer(t, settings);
  house.upstream.handle = USAGE;
  return { house, gateway: await openGateway(house, { wallet: { budget_cents: cents } }) };
};

test('where the caller names no limit, the default of the model is held for and written', async (t) => {
  const { house, gateway } = await open(t);
  for (const [model, expected] of [
    ['long', 4096],
    ['short', 1000],
    ['told', 700],
    ['terse', 50],
  ] as const) {
    assert.equal((await gateway.chat({ model, max_tokens: null })).status, 200);
    assert.equal(house.upstream.calls.at(-1)?.body.max_tokens, expected, model);
    assert.equal((await latest(house)).price.bound_completion_tokens, expected);
  }
  await gateway.chat({ model: 'newer', max_tokens: null });
  const { body } = house.upstream.calls.at(-1) as { body: Record<string, unknown> };
  assert.deepEqual([body.max_tokens, body.max_completion_tokens], [undefined, 4096], 'under the name that is obeyed');
  await gateway.chat({ model: 'long', max_tokens: 20_000 });
  assert.equal(house.upstream.calls.at(-1)?.body.max_tokens, 20_000, 'a named limit up to the model’s is as named');
});

for (const stream of [false, true])
  test(`where the wallet has less, what fits is held for and written, down to 256 (stream: ${stream})`, async (t) => {
    const { house } = await open(t);
    for (const [model, cents, n, expected] of [
      ['long', 410, 1, 4096],
      ['long', 400, 1, 4000],
      ['long', 400, 3, 1333],
      ['dear', 100, 1, 303],
    ] as const) {
      const gateway = await openGateway(house, { wallet: { budget_cents: cents } });
      const answer = await gateway.chat({ model, max_tokens: null, n, stream });
      assert.equal(answer.status, 200, answer.text);
      assert.equal(house.upstream.calls.at(-1)?.body.max_tokens, expected);
      const { hold_usd: hold, price: row } = await latest(house);
      assert.equal(row.bound_completion_tokens, expected * n);
      const price = model === 'dear' ? 33 : 10;
      assert.equal(Math.round(Number(hold) * 10_000), expected * n * price, 'and no more is held');
    }
    assert.deepEqual(house.problems(), []);
  });

test('below 256 it is refused, and the sentence names the max_tokens that fits; a named limit is not reduced', async (t) => {
  const { house } = await open(t);
  const gateway = await openGateway(house, { wallet: { budget_cents: 100 } });
  const count = house.upstream.calls.length;
  for (const refused of [
    await gateway.chat({ model: 'dearest', max_tokens: null }),
    await gateway.chat({ model: 'dearest', max_tokens: 300 }),
    await house.chat(gateway.token, { model: 'dearest', max_tokens: 300 }),
    await house.chat(gateway.token, { model: 'dearest', max_tokens: undefined }),
  ]) {
    assert.deepEqual([refused.status, refused.body.error.code], [402, 'insufficient_funds'], refused.text);
    assert.match(refused.body.error.message, /with max_tokens 200 it would fit/);
  }
  assert.equal(house.upstream.calls.length, count);
  assert.equal(house.wallet(gateway.walletId).held, 0n);
  assert.equal((await gateway.chat({ model: 'dearest', max_tokens: 200 })).status, 200);
});

test('what would fit when the holds in flight settle is `funds_held`, also where only a shorter answer would', async (t) => {
  const { house } = await open(t);
  const gateway = await openGateway(house, { wallet: { budget_cents: 400 } });
  const before = house.upstream.calls.length;
  const slow = gate(USAGE);
  house.upstream.handle = slow.handler;
  const first = gateway.chat({ model: 'long', max_tokens: null }); // 4,000 tokens, all that there is.
  await house.upstream.arrived(before + 1);
  const second = await gateway.chat({ model: 'long', max_tokens: null });
  assert.deepEqual([second.status, second.body.error.code], [429, 'funds_held'], second.text);
  const strict = await house.chat(gateway.token, { model: 'long', max_tokens: undefined });
  assert.deepEqual([strict.status, strict.body.error.code], [402, 'funds_held'], strict.text);
  const never = await gateway.chat({ model: 'long', max_tokens: 4001 });
  assert.deepEqual([never.status, never.body.error.code], [402, 'insufficient_funds'], never.text);
  house.upstream.handle = USAGE;
  slow.open();
  assert.equal((await first).status, 200);
  assert.equal((await gateway.chat({ model: 'long', max_tokens: null })).status, 200);
  assert.deepEqual(house.problems(), []);
});

test('the strict endpoint, too, writes what fits where no limit is named', async (t) => {
  const { house } = await open(t);
  const { token } = await house.openWallet({ budget_cents: 100 });
  assert.equal((await house.chat(token, { model: 'long', max_tokens: undefined })).status, 200);
  assert.equal(house.upstream.calls.at(-1)?.body.max_tokens, 1000);
});

test('a price limit of the gateway key is met by a shorter answer, too, where no limit is named', async (t) => {
  const { house } = await open(t);
  const gateway = await openGateway(house, { options: { max_price_usd: '0.50' }, wallet: { budget_cents: 1000 } });
  assert.equal((await gateway.chat({ model: 'long', max_tokens: null })).status, 200);
  assert.equal(house.upstream.calls.at(-1)?.body.max_tokens, 500);
  assert.equal((await gateway.chat({ model: 'long', max_tokens: 501 })).status, 402);
});

test('twenty-four requests without a limit share a dollar of a model at 2.5 and 10 USD a million', async (t) => {
  const house = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        ...all.router,
        models: [
          {
            id: 'm',
            upstream: 'house',
            context_length: 128_000,
            max_output_tokens: 16_384,
            pricing_per_million: { prompt: '2.5', completion: '10' },
          },
        ],
      },
    }),
  });
  const gateway = await openGateway(house, { wallet: { budget_cents: 100 } });
  const all = Promise.withResolvers<void>();
  house.upstream.handle = async (call, response) => {
    await all.promise;
    USAGE(call, response);
  };
  const answers = Array.from({ length: 24 }, () => gateway.chat({ model: 'm', max_tokens: null }));
  await house.upstream.arrived(24);
  all.resolve();
  for (const answer of await Promise.all(answers)) assert.equal(answer.status, 200);
  assert(
    house.upstream.calls.slice(0, 20).every(({ body }) => body.max_tokens === 4096),
    'twenty of them in full',
  );
});

test('a limit that nobody named leaves room for the prompt; one that was named is as named', async (t) => {
  const { house, gateway } = await open(t);
  const messages = (bytes: number) => [{ role: 'user', content: 'x'.repeat(bytes) }];
  for (const [bytes, expected] of [
    [10_000, 4096], // about 2,500 tokens of 8,000
    [20_000, 3000],
    [31_000, 256],
    [60_000, 256],
  ] as const) {
    await gateway.chat({ model: 'narrow', max_tokens: null, messages: messages(bytes) });
    const written = house.upstream.calls.at(-1)?.body.max_tokens as number;
    assert(written <= expected && written >= expected - 20, `${bytes} bytes: ${written}`);
  }
  await gateway.chat({ model: 'narrow', max_tokens: 6000, messages: messages(20_000) });
  assert.equal(house.upstream.calls.at(-1)?.body.max_tokens, 6000);
});

test('each route bounds the prompt by its own context length and overhead, and the hold is at the dearest', async (t) => {
  const { house, gateway } = await open(t);
  const ask = () =>
    gateway.chat({ model: 'two', max_tokens: 1, messages: [{ role: 'user', content: 'x'.repeat(20_000) }] });
  await ask();
  const { bound_prompt_tokens: bound } = (await latest(house)).price;
  assert(bound > 20_300 && bound < 20_600, `the longer context is that of the fallback: ${bound}`);
  house.upstream.handle = ({ headers, body }, response) =>
    house.upstream.calls.length % 2 === 0
      ? failure(503)({ path: '', headers, body }, response)
      : completion({ prompt_tokens: 15_000, completion_tokens: 1 })({ path: '', headers, body }, response);
  const before = house.wallet(gateway.walletId).spent;
  assert.equal((await ask()).status, 200);
  assert.equal(house.wallet(gateway.walletId).spent - before, 15_000n * 1000n, 'all that the fallback counted');
});

test('prompt_overhead_tokens is what a server adds by itself', async (t) => {
  const { house, gateway } = await open(t);
  house.upstream.handle = completion({ prompt_tokens: 5050, completion_tokens: 1 });
  await gateway.chat({ model: 'adds' });
  const operation = await latest(house);
  assert(operation.price.bound_prompt_tokens > 5050);
  assert.equal(operation.charge_usd, '0.00505');
  assert(!house.log.some((line) => line.includes('bound_exceeded')));
});

test('embeddings of lists of token ids are bounded by one for each, texts by their longest form', async (t) => {
  const house = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        ...all.router,
        models: [
          { id: 'e', kind: 'embeddings', upstream: 'house', context_length: 8192, pricing: { prompt: '0.000001' } },
        ],
      },
    }),
  });
  const gateway = await openGateway(house);
  house.upstream.handle = failure(200, { data: [], usage: { prompt_tokens: 1, total_tokens: 1 } });
  const boundOf = async (input: unknown) => {
    const answer = await gateway.ask('POST', '/embeddings', { body: { model: 'e', input } });
    assert.equal(answer.status, 200, answer.text);
    return (await latest(house)).price.bound_prompt_tokens;
  };
  assert.equal(await boundOf(Array(100).fill(Array(300).fill(99_999))), 100 * 308);
  assert.equal(await boundOf('\ufdfa'.repeat(100)), 3308, 'NFKC, as bge-m3 reads it');
});
