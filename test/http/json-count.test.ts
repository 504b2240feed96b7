import assert from 'node:assert/strict';
import test from 'node:test';
import { parseText } from '../../src/base/json-text.ts';
import { Refusal } from '../../src/base/refusal.ts';
import { NUMBER_BYTES, VALUE_BYTES } from '../../src/http/body.ts';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';
import { SEED } from '../helper/random.ts';

/** Parses, and answers what was counted for it. */
function parse(text: string | Buffer, numbersMax = 0): { value: unknown; counted: number } {
  const share = createMemoryQuota().open('a');
  let counted = 0;
  const count = ({ values, numbers }: { values: number; numbers: number }) => {
    const bytes = values * VALUE_BYTES + numbers * NUMBER_BYTES;
    counted += bytes;
    share.take(bytes);
  };
  return { value: parseText(Buffer.from(text), numbersMax, count).value, counted };
}
const refused = (text: string | Buffer, message: RegExp, numbersMax = 0) =>
  assert.throws(
    () => parse(text, numbersMax),
    (it) => it instanceof Refusal && it.code === 'invalid_json' && message.test(it.message),
  );

/** Values of a parsed text, numbers directly in lists apart. */
function valuesOf(value: unknown, isInList = false): { values: number; numbers: number } {
  if (typeof value === 'number' && isInList) return { values: 0, numbers: 1 };
  const sum = { values: 1, numbers: 0 };
  if (typeof value !== 'object' || value === null) return sum;
  for (const it of Object.values(value)) {
    const { values, numbers } = valuesOf(it, Array.isArray(value));
    sum.values += values;
    sum.numbers += numbers;
  }
  return sum;
}

test('values are counted on the bytes as they are in the parsed text', () => {
  let state = SEED;
  const random = (below: number) => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return (state >> 8) % below;
  };
  const TEXTS = ['', 'a', '"', '\\', '\\"', '[', ']', '{', '}', ',', ':', '\u2028', '\n', 'ü', '💶', '1', 'a,b:[c'];
  const text = () => TEXTS[random(TEXTS.length)] as string;
  const space = () => [' ', '', '\n\t', '', ''][random(5)] as string;
  const write = (levels: number): string => {
    const kind = random(levels ? 7 : 5);
    if (kind === 0) return JSON.stringify(text());
    if (kind === 1) return ['-1', '0', '1.5e3', '-0.1E-2', '123'][random(5)] as string;
    if (kind < 5) return ['true', 'false', 'null'][random(3)] as string;
    const items = Array.from({ length: random(5) }, (_, i) => {
      const name = kind === 6 ? `${JSON.stringify(`${text()}${i}`)}${space()}:` : '';
      return `${space()}${name}${space()}${write(levels - 1)}${space()}`;
    });
    return kind === 5 ? `[${items.join(',') || space()}]` : `{${items.join(',') || space()}}`;
  };
  for (let i = 0; i < 3000; i++) {
    const body = `${space()}${write(6)}${space()}`;
    const { value, counted } = parse(body, 1_000_000);
    assert.deepEqual(value, JSON.parse(body));
    const { values, numbers } = valuesOf(value);
    assert.equal(counted, values * VALUE_BYTES + numbers * NUMBER_BYTES, `seed ${SEED}: ${body}`);
  }
});

test('100 levels and 50,000 values are taken, and one more is not', () => {
  const nested = (levels: number) => `${'['.repeat(levels)}${']'.repeat(levels)}`;
  const list = (count: number, item: string) => `[${Array(count).fill(item).join(',')}]`;
  parse(nested(100));
  refused(nested(101), /^The body is nested deeper than 100 levels\.$/);
  refused(`{"a":${nested(100)}}`, /nested deeper/);
  for (const item of ['1', '{}', '""', '[]', 'null', '"[[[{{{,,,"', '{"a":"\\"[,,"}']) {
    const each = item.includes(':') ? 2 : 1;
    const countMax = Math.floor(49_999 / each);
    parse(list(countMax, item));
    refused(list(countMax + 1, item), /^The body has more than 50000 values\.$/);
  }
});

test('numbers in lists have a limit of their own where a body is made of them, and no others have', () => {
  const tokens = JSON.stringify({ input: Array(200).fill(Array.from({ length: 300 }, (_, i) => i * 331)) });
  refused(tokens, /50000 values/);
  assert.equal(parse(tokens, 60_000).counted, (2 + 200) * VALUE_BYTES + 60_000 * NUMBER_BYTES);
  refused(`[${Array(50_001).fill('"1"')}]`, /50000 values/, 1_000_000);
  refused(`{${Array.from({ length: 50_000 }, (_, i) => `"${i}":1`)}}`, /50000 values/, 1_000_000);
  refused(`[${Array(50_100).fill('1')}]`, /50000 values/, 100);
});

test('a body of 8 MiB that is nested too deep or has too many values is refused before anything is made of it', () => {
  const size = 8 * 1024 * 1024;
  for (const [unit, message] of [
    ['[', /nested deeper/],
    ['{"a":', /nested deeper/],
    ['[],', /./],
  ] as const) {
    const bytes = Buffer.alloc(size, unit);
    if (unit === '[],') bytes.write('[');
    const before = process.memoryUsage().heapUsed;
    refused(bytes, message);
    const grown = process.memoryUsage().heapUsed - before;
    assert(grown < 4 * 1024 * 1024, `${unit}: ${grown} bytes`);
  }
});
