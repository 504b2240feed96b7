import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { model, write } from './written.ts';

const priceOf = (t: TestContext, ...lines: string[]) => {
  const [it] = write(t, model(...lines)).read().router.models;
  return it?.pricing ?? it?.pricing_per_million;
};

test('a price is exact, quoted or not: it never goes by way of a binary fraction', (t) => {
  for (const [text, expected] of [
    ['0.0000001', 100_000_000n],
    ['0.000000000000001', 1n],
    ['0.000000300000000', 300_000_000n],
    ['0.001000000000001', 1_000_000_000_001n],
    ['0', 0n],
    ['0.01', 10_000_000_000_000n],
  ] as const)
    for (const written of [text, `"${text}"`, `'${text}'`]) {
      const price = priceOf(t, `pricing: { prompt: ${written}, completion: ${written}, request: 0.000000001 }`);
      assert.deepEqual(price, { prompt: expected, completion: expected, request: 1n, tiers: [] });
    }
});

test('a price per million tokens is the same price as a millionth of it per token', (t) => {
  const perMillion = priceOf(t, 'pricing_per_million: { prompt: 0.10, completion: 0.40 }');
  const perToken = priceOf(t, 'pricing: { prompt: 0.0000001, completion: "0.0000004" }');
  assert.deepEqual(perMillion, perToken);
  assert.deepEqual(perToken, { prompt: 100_000_000n, completion: 400_000_000n, tiers: [] });
});

for (const text of [
  '1e-7',
  '"1e-7"',
  '.5',
  '-0.1',
  '+1',
  '0x10',
  '0o7',
  '.inf',
  '.nan',
  '1_000',
  '"1,5"',
  '"$1"',
  '"free"',
  '0.0000000000000001',
])
  test(`a price of ${text} is not exact, and refused at its line`, (t) => {
    const [fault = '', ...more] = write(
      t,
      model('pricing:', '  request: 0', `  prompt: ${text}`, '  completion: 0'),
    ).faults();
    assert.match(fault, /^yaml:11: router\.models\.0\.pricing\.prompt: not an exact price/);
    assert.deepEqual(more, []);
  });

test('a price beyond belief is refused: somebody has slipped with the decimal point', (t) => {
  assert.match(
    write(t, model('pricing: { prompt: 0.0100001, completion: 0 }')).faults().join(),
    /not a believable price/,
  );
  assert.match(write(t, model('pricing: { request: 10000.01 }')).faults().join(), /not a believable price/);
});

for (const text of [
  '{ prompt: 0.1 }',
  '{ completion: 0.1 }',
  '{ prompt: 0, request: 0.1 }',
  '{ completion: 0, request: 0.1 }',
  '{}',
])
  test(`half a price, ${text}, is refused: what is left out would be free`, (t) => {
    const faults = write(t, model(`pricing_per_million: ${text}`)).faults();
    assert.equal(faults.length, 1);
    assert.match(faults[0] as string, /^yaml:9: .*a price that is left out would be a price of 0/);
  });

for (const [where, line] of [
  ['a model', (price: string) => [price]],
  ['a server of a pool', (price: string) => ['upstreams:', `  - { upstream: other, ${price} }`]],
  ['a fallback', (price: string) => ['fallbacks:', `  - { upstream: other, ${price} }`]],
] as const)
  for (const key of ['pricing', 'pricing_per_million'])
    test(`half a price is refused wherever a price may stand: ${key} of ${where}`, (t) => {
      const lines = (price: string) => model('kind: chat', ...line(`${key}: ${price}`));
      const said = (price: string) =>
        write(t, lines(price))
          .faults()
          .filter((it) => it.includes('would be a price of 0'));
      assert.equal(said('{ prompt: 0.000001 }').length, 1);
      assert.deepEqual(said('{ prompt: 0.000001, completion: 0.000002 }'), []);
    });

test('a price per request may stand alone, and a model may have no price at all', (t) => {
  assert.deepEqual(priceOf(t, 'pricing: { request: 0.01 }'), { request: 10_000_000n, tiers: [] });
  assert.equal(priceOf(t), undefined);
});

test('a tier begins above a whole number of tokens, in ascending order, and has both prices', (t) => {
  const tiers = (text: string) => `pricing_per_million: { prompt: 1, completion: 2, tiers: ${text} }`;
  const tier = (above: string, rest = 'prompt: 3, completion: 4') => `{ above_tokens: ${above}, ${rest} }`;
  assert.deepEqual(priceOf(t, tiers(`[${tier('200000')}, ${tier('400000', 'prompt: 5, completion: 6')}]`)), {
    prompt: 10n ** 9n,
    completion: 2n * 10n ** 9n,
    tiers: [
      { above_tokens: 200_000, prompt: 3n * 10n ** 9n, completion: 4n * 10n ** 9n },
      { above_tokens: 400_000, prompt: 5n * 10n ** 9n, completion: 6n * 10n ** 9n },
    ],
  });
  for (const [text, fault] of [
    [`[${tier('0')}]`, /above_tokens/],
    [`[${tier('1.5')}]`, /above_tokens: must be a whole number/],
    [`[${tier('1e5')}]`, /above_tokens: must be a whole number/],
    [`[${tier('100000001')}]`, /above_tokens/],
    [`[${tier('5')}, ${tier('5')}]`, /ascending order/],
    [`[${tier('5')}, ${tier('4')}]`, /ascending order/],
    [`[${tier('5', 'prompt: 3')}]`, /a tier needs prompt and completion/],
    [`[${tier('5', 'completion: 3')}]`, /a tier needs prompt and completion/],
  ] as const)
    assert.match(
      write(t, model(tiers(text)))
        .faults()
        .join(),
      fault,
      text,
    );
});

test('two prices for one model are refused', (t) => {
  const faults = write(t, model('pricing: { request: 1 }', 'pricing_per_million: { request: 1 }')).faults();
  assert.match(faults.join(), /give pricing or pricing_per_million, not both/);
});
