import assert from 'node:assert/strict';
import test from 'node:test';
import {
  centsToNanos,
  formatDecimal,
  formatUsd,
  Nanos,
  nanosToCentsDown,
  nanosToCentsUp,
  parseDecimal,
  parseUsd,
  sum,
  ZERO,
} from '../../src/base/money.ts';
import { affordableCompletion, costOf, holdOf, type Price } from '../../src/router/price.ts';
import fc from '../helper/property.ts';

const INT64_MAX = 2n ** 63n - 1n;
const NANOS_PER_USD = 10n ** 9n;
const NANOS_PER_CENT = 10n ** 7n;
/** Any amount that fits, with a preference for small and round ones, where mistakes are likely. */
const amount = fc
  .oneof(
    fc.bigInt({ min: 0n, max: INT64_MAX }),
    fc.bigInt({ min: 0n, max: 2n * NANOS_PER_USD }),
    fc.bigInt({ min: 0n, max: 900_000_000n }).map((cents) => cents * NANOS_PER_CENT),
  )
  .map(Nanos);
const digits = (min: number, max: number) =>
  fc.array(fc.integer({ min: 0, max: 9 }), { minLength: min, maxLength: max }).map((list) => list.join(''));

test('an amount written and read again is the same amount', () => {
  fc.assert(fc.property(amount, (it) => parseUsd(formatUsd(it)) === it));
});

test('an amount is written plainly: at least two decimals, at most nine, no zeros beyond two', () => {
  fc.assert(
    fc.property(amount, (it) => {
      const text = formatUsd(it);
      assert.match(text, /^(0|[1-9]\d*)\.\d{2,9}$/);
      assert.doesNotMatch(text, /\.\d{2,}0$/);
    }),
  );
});

test('the digits of a written amount are those of the whole number inside', () => {
  fc.assert(
    fc.property(amount, (it) => {
      const [whole, fraction] = formatUsd(it).split('.') as [string, string];
      assert.equal(BigInt(whole) * NANOS_PER_USD + BigInt(fraction.padEnd(9, '0')), it);
    }),
  );
});

for (const [amount, text] of [
  [0n, '0.00'],
  [1n, '0.000000001'],
  [1234n, '0.000001234'],
  [10_000_000n, '0.01'],
  [100_000_000n, '0.10'],
  [500_000_000n, '0.50'],
  [505_000_000n, '0.505'],
  [1_000_000_000n, '1.00'],
  [10_000_000_000n, '10.00'],
  [4_999_875_000n, '4.999875'],
  [INT64_MAX, '9223372036.854775807'],
  [-1n, '-0.000000001'],
  [-2_500_000_000n, '-2.50'],
] as const)
  test(`${amount} nanos are written ${text}`, () => {
    assert.equal(formatUsd(Nanos(amount)), text);
  });

test('any plain decimal is read exactly, as whole numbers would have it', () => {
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 9_000_000_000n }), digits(0, 9), (whole, fraction) => {
      const text = fraction ? `${whole}.${fraction}` : `${whole}`;
      assert.equal(parseUsd(text), whole * NANOS_PER_USD + BigInt(fraction.padEnd(9, '0')));
    }),
  );
});

test('a price is read exactly at the scale of nano-dollars per million tokens', () => {
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 999n }), digits(1, 15), (whole, fraction) => {
      assert.equal(parseDecimal(`${whole}.${fraction}`, 15), whole * 10n ** 15n + BigInt(fraction.padEnd(15, '0')));
    }),
  );
});

test('zeros at the end say nothing, so any number of them is read', () => {
  assert.equal(parseUsd('1.500000000000000000'), 1_500_000_000n);
  assert.equal(parseUsd('0.0000000000'), 0n);
});

test('a digit beyond the nano-dollar is refused and never rounded', () => {
  fc.assert(
    fc.property(digits(9, 12), fc.integer({ min: 1, max: 9 }), (fraction, last) => {
      assert.throws(() => parseUsd(`0.${fraction}${last}`), RangeError);
    }),
  );
});

// biome-ignore format: one list
for (const text of [
  '', ' ', '.', '.5', '1.', '-1', '+1', '--1', '1e3', '1E3', '1e-7', '0x10', '0b1', '0o7', '1,5', '1,000.00', '1_000',
  ' 1', '1 ', '1\n', '\n1', '1.2.3', 'NaN', 'Infinity', '$1', '1 USD', 'one', '１', '٣', '½', '1n', '1.5n', 'null',
  '1000000000000', '9223372036.854775808',
])
  test(`${JSON.stringify(text)} is no amount`, () => {
    assert.throws(() => parseUsd(text), RangeError);
  });

test('whatever is not digits with at most one point between them is refused', () => {
  fc.assert(
    fc.property(fc.string(), (text) => {
      if (/^\d+(\.\d+)?$/.test(text)) return;
      assert.throws(() => parseUsd(text), RangeError);
    }),
  );
});

test('a scaled number keeps all its decimals, and no more than are needed', () => {
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 10n ** 27n }), fc.integer({ min: 1, max: 15 }), (scaled, decimals) => {
      const text = formatDecimal(scaled, decimals, 0);
      assert.doesNotMatch(text, /\.$|\.\d*0$/);
      const [whole = '', fraction = ''] = text.split('.');
      assert.equal(BigInt(whole + fraction.padEnd(decimals, '0')), scaled);
    }),
  );
});

test('cents become nanos and nanos cents again, exactly', () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 100_000_000_000 }), (cents) => {
      const nanos = centsToNanos(cents);
      assert.equal(nanos, BigInt(cents) * NANOS_PER_CENT);
      assert.equal(nanosToCentsUp(nanos), cents);
      assert.equal(nanosToCentsDown(nanos), cents);
    }),
  );
});

test('rounding up is the smallest number of cents that is enough, rounding down the largest that is not too much', () => {
  fc.assert(
    fc.property(amount, (it) => {
      const up = BigInt(nanosToCentsUp(it)) * NANOS_PER_CENT;
      const down = BigInt(nanosToCentsDown(it)) * NANOS_PER_CENT;
      assert(up >= it && up - NANOS_PER_CENT < it);
      assert(down <= it && down + NANOS_PER_CENT > it);
    }),
  );
});

test('what was spent, rounded up, and what is left, rounded down, are together the budget', () => {
  const parts = fc
    .integer({ min: 100, max: 1_000_000 })
    .chain((cents) => fc.tuple(fc.constant(cents), fc.bigInt({ min: 0n, max: BigInt(cents) * NANOS_PER_CENT })));
  fc.assert(
    fc.property(parts, ([cents, spent]) => {
      const left = Nanos(centsToNanos(cents) - spent);
      assert.equal(nanosToCentsUp(Nanos(spent)) + nanosToCentsDown(left), cents);
    }),
  );
});

for (const cents of [0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53, '5' as unknown as number])
  test(`${JSON.stringify(cents)} (${typeof cents}) is no number of cents`, () => {
    assert.throws(() => centsToNanos(cents), RangeError);
  });

test('an amount that an INTEGER cannot hold is refused, in a value and in a sum', () => {
  assert.equal(Nanos(INT64_MAX), INT64_MAX);
  assert.throws(() => Nanos(INT64_MAX + 1n), RangeError);
  assert.throws(() => Nanos(-INT64_MAX - 2n), RangeError);
  assert.throws(() => sum(INT64_MAX, 1n), RangeError);
  assert.equal(sum(), 0n);
  assert.equal(sum(INT64_MAX, -INT64_MAX, 3n), 3n);
});

/** Rates as the configuration keeps them, whole nano-dollars per million tokens: from one to USD 10,000. */
const rate = fc.bigInt({ min: 0n, max: 10n ** 13n });
const rates = fc.record({
  prompt: rate,
  completion: rate,
  cacheRead: rate,
  cacheWrite: rate,
  cacheWriteHour: rate,
  reasoning: rate,
});
const request = fc.bigInt({ min: 0n, max: 10n ** 13n }).map(Nanos);
const tokens = fc.oneof(fc.integer({ min: 0, max: 1000 }), fc.integer({ min: 0, max: 100_000_000 }));
const MILLION = 1_000_000n;

/** A price of one tier, whose special rates are the plain ones. */
const plainPrice = (prompt: bigint, completion: bigint, each: bigint): Price => ({
  tiers: [
    {
      above: 0,
      rates: {
        prompt,
        completion,
        cacheRead: prompt,
        cacheWrite: prompt,
        cacheWriteHour: prompt,
        reasoning: completion,
      },
    },
  ],
  request: Nanos(each),
  image: ZERO,
});
const price = fc.tuple(rate, rate, request).map(([prompt, completion, each]) => plainPrice(prompt, completion, each));
const affordable = (it: Price, promptTokens: number, left: Nanos) =>
  affordableCompletion(it, { promptTokens, images: 0 }, left);
const priceOf = (it: Price, promptTokens: number, completionTokens: number) =>
  holdOf(it, { promptTokens, completionTokens, images: 0 });

test('tokens cost their exact price, rounded up to one nano, once', () => {
  fc.assert(
    fc.property(price, tokens, tokens, (it, prompt, completion) => {
      const { rates } = it.tiers[0] as Price['tiers'][number];
      const exact = rates.prompt * BigInt(prompt) + rates.completion * BigInt(completion);
      const paid = (priceOf(it, prompt, completion) - it.request) * MILLION;
      assert(paid >= exact && paid < exact + MILLION);
    }),
  );
});

test('whatever an upstream counts within the bound costs at most the hold: cached, written, reasoning, any tier', () => {
  const tiered = fc
    .tuple(
      rates,
      fc.array(fc.tuple(fc.integer({ min: 1, max: 100_000_000 }), rates), { maxLength: 3 }),
      request,
      request,
    )
    .map(([plain, longer, each, image]): Price => {
      const above = [...new Map(longer)].sort(([a], [b]) => a - b);
      return {
        tiers: [{ above: 0, rates: plain }, ...above.map(([above, it]) => ({ above, rates: it }))],
        request: each,
        image,
      };
    });
  const share = fc.double({ min: 0, max: 1, noNaN: true });
  fc.assert(
    fc.property(
      tiered,
      tokens,
      tokens,
      fc.nat(10),
      fc.array(share, { minLength: 6, maxLength: 6 }),
      (it, p, c, images, s) => {
        const [a, b, d, e, f, g] = s as [number, number, number, number, number, number];
        const promptTokens = Math.floor(p * a);
        const cacheReadTokens = Math.floor(promptTokens * b);
        const cacheWriteTokens = Math.floor((promptTokens - cacheReadTokens) * d);
        const completionTokens = Math.floor(c * e);
        const reasoningTokens = Math.floor(completionTokens * f);
        const usage = { promptTokens, completionTokens, cacheReadTokens, cacheWriteTokens, reasoningTokens };
        const max = { promptTokens: p, completionTokens: c, images };
        assert(costOf(it, usage, images) <= holdOf(it, max));
        const kept = { ...usage, cacheWriteHourTokens: Math.floor(cacheWriteTokens * g) };
        assert(costOf(it, kept, images) <= holdOf(it, { ...max, isCachedForHour: true }));
      },
    ),
    { numRuns: 2000 },
  );
});

test('two halves of a nano are one nano, not two', () => {
  const half = plainPrice(500_000n, 500_000n, 7n);
  assert.equal(priceOf(half, 1, 1), 8n);
  assert.equal(priceOf(half, 1, 0), 8n);
  assert.equal(priceOf(half, 0, 0), 7n);
});

test('nobody pays less for more tokens', () => {
  fc.assert(
    fc.property(price, tokens, tokens, tokens, (it, prompt, completion, more) => {
      assert(priceOf(it, prompt, completion + more) >= priceOf(it, prompt, completion));
      assert(priceOf(it, prompt + more, completion) >= priceOf(it, prompt, completion));
    }),
  );
});

test('the affordable output fits into what is left, and one token more does not', () => {
  const left = fc.oneof(fc.bigInt({ min: 0n, max: 10n ** 13n }), fc.bigInt({ min: 0n, max: 10n ** 9n })).map(Nanos);
  const cheap = fc
    .tuple(
      fc.bigInt({ min: 0n, max: 10n ** 9n }),
      fc.bigInt({ min: 1n, max: 10n ** 9n }),
      fc.bigInt({ min: 0n, max: 10n ** 6n }),
    )
    .map(([prompt, completion, each]) => plainPrice(prompt, completion, each));
  fc.assert(
    fc.property(fc.oneof(cheap, price), tokens, left, (it, prompt, available) => {
      const count = affordable(it, prompt, available);
      assert(Number.isSafeInteger(count) && count >= 0);
      if (priceOf(it, prompt, 0) > available) return assert.equal(count, 0);
      assert(priceOf(it, prompt, count) <= available, 'it fits');
      if (count < Number.MAX_SAFE_INTEGER) assert(priceOf(it, prompt, count + 1) > available, 'one more does not');
    }),
    { numRuns: 1000 },
  );
});

test('where output costs nothing any amount of it is affordable, if the rest is', () => {
  const free = plainPrice(1_000_000n, 0n, 5n);
  assert.equal(affordable(free, 10, Nanos(15n)), Number.MAX_SAFE_INTEGER);
  assert.equal(affordable(free, 10, Nanos(14n)), 0);
});

test('the largest affordable count is a whole number even at the lowest price and the largest budget', () => {
  const lowest = plainPrice(0n, 1n, 0n);
  assert.equal(affordable(lowest, 0, centsToNanos(1_000_000)), Number.MAX_SAFE_INTEGER);
});
