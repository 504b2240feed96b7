import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { completion, failure, gate, reset } from '../helper/upstream.ts';

const price = { prompt: '0', completion: '0.001' };
const limits = { upstream: 'local', context_length: 100_000 };
const MODELS = [
  { id: 'long', ...limits, max_output_tokens: 50_000, pricing: price },
  { id: 'dear', ...limits, max_output_tokens: 50_000, pricing: { prompt: '0', completion: '0.0033' } },
  { id: 'dearest', ...limits, max_output_tokens: 50_000, pricing: { prompt: '0', completion: '0.005' } },
  { id: 'short', ...limits, max_output_tokens: 1000, pricing: price },
  { id: 'told', ...limits, max_output_tokens: 50_000, default_output_tokens: 700, pricing: price },
  { id: 'terse', ...limits, max_output_tokens: 50, pricing: price },
  { id: 'newer', ...limits, max_output_tokens: 50_000, output_limit: 'max_completion_tokens', pricing: price },
  { id: 'narrow', upstream: 'local', context_length: 8000, max_output_tokens: 6000, pricing: price },
  {
    id: 'two',
    upstream: 'local',
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
const latest = async (purser: TestServer): Promise<any> => (await purser.run('operation.list', {})).operations[0];
const USAGE = completion({ prompt_tokens: 1, completion_tokens: 1 });
const open = async (t: test.TestContext, cents = 10_000) => {
  const purser = await openTestServer(t, settings);
  purser.upstream.handle = USAGE;
  return { purser, gateway: await openGateway(purser, { wallet: { budget_cents: cents } }) };
};

test('where the caller names no limit, the default of the model is held for and written', async (t) => {
  const { purser, gateway } = await open(t);
  for (const [model, expected] of [
    ['long', 4096],
    ['short', 1000],
    ['told', 700],
    ['terse', 50],
  ] as const) {
    assert.equal((await gateway.chat({ model, max_tokens: null })).status, 200);
    assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, expected, model);
    assert.equal((await latest(purser)).price.bound_completion_tokens, expected);
  }
  await gateway.chat({ model: 'newer', max_tokens: null });
  const { body } = purser.upstream.calls.at(-1) as { body: Record<string, unknown> };
  assert.deepEqual([body.max_tokens, body.max_completion_tokens], [undefined, 4096], 'under the name that is obeyed');
  await gateway.chat({ model: 'long', max_tokens: 20_000 });
  assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, 20_000, 'a named limit up to the model’s is as named');
});

for (const stream of [false, true])
  test(`where the wallet has less, what fits is held for and written, down to 256 (stream: ${stream})`, async (t) => {
    const { purser } = await open(t);
    for (const [model, cents, n, expected] of [
      ['long', 410, 1, 4096],
      ['long', 400, 1, 4000],
      ['long', 400, 3, 1333],
      ['dear', 100, 1, 303],
    ] as const) {
      const gateway = await openGateway(purser, { wallet: { budget_cents: cents } });
      const answer = await gateway.chat({ model, max_tokens: null, n, stream });
      assert.equal(answer.status, 200, answer.text);
      assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, expected);
      const { hold_usd: hold, price: row } = await latest(purser);
      assert.equal(row.bound_completion_tokens, expected * n);
      const price = model === 'dear' ? 33 : 10;
      assert.equal(Math.round(Number(hold) * 10_000), expected * n * price, 'and no more is held');
    }
    assert.deepEqual(purser.problems(), []);
  });

test('below 256 it is refused, and the sentence names the max_tokens that fits, a named limit included', async (t) => {
  const { purser } = await open(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  const count = purser.upstream.calls.length;
  for (const refused of [
    await gateway.chat({ model: 'dearest', max_tokens: null }),
    await gateway.chat({ model: 'dearest', max_tokens: 300 }),
    await purser.chat(gateway.token, { model: 'dearest', max_tokens: 300 }),
    await purser.chat(gateway.token, { model: 'dearest', max_tokens: undefined }),
  ]) {
    assert.deepEqual([refused.status, refused.body.error.code], [402, 'insufficient_funds'], refused.text);
    assert.match(refused.body.error.message, /with max_tokens 200 it would fit/);
  }
  assert.equal(purser.upstream.calls.length, count);
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
  assert.equal((await gateway.chat({ model: 'dearest', max_tokens: 200 })).status, 200);
});

test('money that only an unknown outcome holds is named, and not waited for in seconds', async (t) => {
  const { purser } = await open(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 400 } });
  purser.upstream.handle = reset;
  const lost = await gateway.chat({ model: 'long', max_tokens: 3000 });
  assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain'], lost.text);
  const strict = await purser.chat(gateway.token, { model: 'long', max_tokens: 2000 });
  assert.deepEqual([strict.status, strict.body.error.code], [402, 'funds_held'], strict.text);
  assert.match(
    strict.body.error.message,
    /3\.00 USD held by requests in flight\. 3\.00 USD of that is held by requests whose outcome nobody knows/,
  );
  assert.equal(strict.headers['retry-after'], '60');
});

test('what would fit when the holds in flight settle is `funds_held`, also where only a shorter answer would', async (t) => {
  const { purser } = await open(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 400 } });
  const before = purser.upstream.calls.length;
  const slow = gate(USAGE);
  purser.upstream.handle = slow.handler;
  const first = gateway.chat({ model: 'long', max_tokens: null }); // 4,000 tokens, all that there is.
  await purser.upstream.arrived(before + 1);
  const second = await gateway.chat({ model: 'long', max_tokens: null });
  assert.deepEqual([second.status, second.body.error.code], [429, 'funds_held'], second.text);
  const strict = await purser.chat(gateway.token, { model: 'long', max_tokens: undefined });
  assert.deepEqual([strict.status, strict.body.error.code], [402, 'funds_held'], strict.text);
  const named = await gateway.chat({ model: 'long', max_tokens: 4001 });
  assert.deepEqual([named.status, named.body.error.code], [429, 'funds_held'], 'what is cut would fit');
  const never = await purser.chat(gateway.token, { model: 'long', max_tokens: 4001 });
  assert.deepEqual([never.status, never.body.error.code], [402, 'insufficient_funds'], never.text);
  purser.upstream.handle = USAGE;
  slow.open();
  assert.equal((await first).status, 200);
  assert.equal((await gateway.chat({ model: 'long', max_tokens: null })).status, 200);
  assert.deepEqual(purser.problems(), []);
});

for (const stream of [false, true])
  test(`a named limit that does not fit the wallet is cut under the gateway, and a header says so (stream: ${stream})`, async (t) => {
    const { purser } = await open(t);
    const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
    const ask = async (body: object) => {
      const { status, headers, text } = await gateway.chat({ stream, ...body });
      return [status, headers['x-purser-max-tokens'], /\d+ it would fit/.exec(text)?.[0]];
    };
    const written = () => purser.upstream.calls.at(-1)?.body.max_tokens;
    assert.deepEqual(
      await ask({ model: 'long', max_tokens: 1000 }),
      [200, undefined, undefined],
      'it fits to the cent',
    );
    // One token was charged: 99.9 cents are left.
    assert.deepEqual(await ask({ model: 'long', max_tokens: 1000 }), [200, '999', undefined]);
    assert.equal(written(), 999);
    assert.deepEqual(
      await ask({ model: 'long', max_tokens: 50_000, n: 2 }),
      [200, '499', undefined],
      'for each answer',
    );
    assert.equal(written(), 499);
    assert.deepEqual(
      await ask({ model: 'long', max_tokens: null }),
      [200, '997', undefined],
      'a limit that nobody named, too',
    );
    assert.deepEqual(await ask({ model: 'dear', max_tokens: 400 }), [200, '301', undefined]);
    assert.deepEqual(
      await ask({ model: 'dear', max_tokens: 300 }),
      [200, undefined, undefined],
      'what fits is as named',
    );
    assert.deepEqual(
      await ask({ model: 'dearest', max_tokens: 400 }),
      [402, undefined, '197 it would fit'],
      'below 256',
    );
    const strict = await purser.chat(gateway.token, { model: 'long', max_tokens: 1000 });
    assert.deepEqual(
      [strict.status, strict.body.error.code],
      [402, 'insufficient_funds'],
      'the strict endpoint cuts none',
    );
    assert.deepEqual(purser.problems(), []);
  });

test('an answer that was cut to fit says so in its finish reason, which comes from the model server', async (t) => {
  const { purser } = await open(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  purser.upstream.handle = ({ body }, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const usage = { prompt_tokens: 1, completion_tokens: body.max_tokens };
    response.end(JSON.stringify({ choices: [{ message: { content: 'a' }, finish_reason: 'length' }], usage }));
  };
  const { body } = await gateway.chat({ model: 'long', max_tokens: 30_000 });
  assert.deepEqual([body.choices[0].finish_reason, body.usage.completion_tokens], ['length', 1000]);
  assert.equal(purser.wallet(gateway.walletId).spent, 1_000_000_000n, 'to the last cent');
});

test('the strict endpoint, too, writes what fits where no limit is named', async (t) => {
  const { purser } = await open(t);
  const { token } = await purser.openWallet({ budget_cents: 100 });
  assert.equal((await purser.chat(token, { model: 'long', max_tokens: undefined })).status, 200);
  assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, 1000);
});

test('a price limit of the gateway key is met by a shorter answer, too, where no limit is named', async (t) => {
  const { purser } = await open(t);
  const gateway = await openGateway(purser, { options: { max_price_usd: '0.50' }, wallet: { budget_cents: 1000 } });
  assert.equal((await gateway.chat({ model: 'long', max_tokens: null })).status, 200);
  assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, 500);
  assert.equal((await gateway.chat({ model: 'long', max_tokens: 501 })).status, 402);
});

test('twenty-four requests without a limit share a dollar of a model at 2.5 and 10 USD a million', async (t) => {
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        ...all.router,
        models: [
          {
            id: 'm',
            upstream: 'local',
            context_length: 128_000,
            max_output_tokens: 16_384,
            pricing_per_million: { prompt: '2.5', completion: '10' },
          },
        ],
      },
    }),
  });
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  const all = Promise.withResolvers<void>();
  purser.upstream.handle = async (call, response) => {
    await all.promise;
    USAGE(call, response);
  };
  const answers = Array.from({ length: 24 }, () => gateway.chat({ model: 'm', max_tokens: null }));
  await purser.upstream.arrived(24);
  all.resolve();
  for (const answer of await Promise.all(answers)) assert.equal(answer.status, 200);
  assert(
    purser.upstream.calls.slice(0, 20).every(({ body }) => body.max_tokens === 4096),
    'twenty of them in full',
  );
});

test('a limit that nobody named leaves room for the prompt; one that was named is as named', async (t) => {
  const { purser, gateway } = await open(t);
  const messages = (bytes: number) => [{ role: 'user', content: 'x'.repeat(bytes) }];
  for (const [bytes, expected] of [
    [10_000, 4096], // about 2,500 tokens of 8,000
    [20_000, 3000],
    [31_000, 256],
    [60_000, 256],
  ] as const) {
    await gateway.chat({ model: 'narrow', max_tokens: null, messages: messages(bytes) });
    const written = purser.upstream.calls.at(-1)?.body.max_tokens as number;
    assert(written <= expected && written >= expected - 20, `${bytes} bytes: ${written}`);
  }
  await gateway.chat({ model: 'narrow', max_tokens: 6000, messages: messages(20_000) });
  assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, 6000);
});

test('each route bounds the prompt by its own context length and overhead, and the hold is at the dearest', async (t) => {
  const { purser, gateway } = await open(t);
  const ask = () =>
    gateway.chat({ model: 'two', max_tokens: 1, messages: [{ role: 'user', content: 'x'.repeat(20_000) }] });
  await ask();
  const { bound_prompt_tokens: bound } = (await latest(purser)).price;
  assert(bound > 20_300 && bound < 20_600, `the longer context is that of the fallback: ${bound}`);
  purser.upstream.handle = (call, response) =>
    purser.upstream.calls.length % 2 === 0
      ? failure(503)(call, response)
      : completion({ prompt_tokens: 15_000, completion_tokens: 1 })(call, response);
  const before = purser.wallet(gateway.walletId).spent;
  assert.equal((await ask()).status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent - before, 15_000n * 1000n, 'all that the fallback counted');
});

test('prompt_overhead_tokens is what a server adds by itself', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = completion({ prompt_tokens: 5050, completion_tokens: 1 });
  await gateway.chat({ model: 'adds' });
  const operation = await latest(purser);
  assert(operation.price.bound_prompt_tokens > 5050);
  assert.equal(operation.charge_usd, '0.00505');
  assert(!purser.log.some((line) => line.includes('bound_exceeded')));
});

test('embeddings of lists of token ids are bounded by one for each, texts by their longest form', async (t) => {
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        ...all.router,
        models: [
          { id: 'e', kind: 'embeddings', upstream: 'local', context_length: 8192, pricing: { prompt: '0.000001' } },
        ],
      },
    }),
  });
  const gateway = await openGateway(purser);
  purser.upstream.handle = failure(200, { data: [], usage: { prompt_tokens: 1, total_tokens: 1 } });
  const boundOf = async (input: unknown) => {
    const answer = await gateway.ask('POST', '/embeddings', { body: { model: 'e', input } });
    assert.equal(answer.status, 200, answer.text);
    return (await latest(purser)).price.bound_prompt_tokens;
  };
  assert.equal(await boundOf(Array(100).fill(Array(300).fill(99_999))), 100 * 308);
  assert.equal(await boundOf('\ufdfa'.repeat(100)), 3308, 'NFKC, as bge-m3 reads it');
});
