import assert from 'node:assert/strict';
import { isUtf8 } from 'node:buffer';
import test from 'node:test';
import { fingerprint, fingerprintOf } from '../../src/base/fingerprint.ts';
import { parseText } from '../../src/base/json-text.ts';
import { Refusal } from '../../src/base/refusal.ts';
import { collectPieces } from '../../src/net/pieces.ts';
import { belowFrom, jsonWriter } from '../helper/json-writer.ts';
import { length, SEED } from '../helper/random.ts';

// What the scan accepts, counts, finds and hashes, held against JSON.parse.

type Read = { value: unknown; counts: object; members: object; print: Buffer };

/** Reads a body; the words of its refusal if it is refused. */
function read(bytes: Buffer): Read | string {
  let counts = {};
  try {
    const take = (found: { values: number; numbers: number }) => {
      counts = { values: found.values, numbers: found.numbers };
    };
    const { text, outline, value } = parseText(bytes, 0, take, Number.MAX_SAFE_INTEGER); // The limit has tests of its own.
    return { value, counts, members: outline.members, print: fingerprintOf(text) };
  } catch (error) {
    assert(error instanceof Refusal && error.code === 'invalid_json', String(error));
    return error.message;
  }
}

const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depthOf)) : 0;

/** Holds what is read of a body against JSON.parse. Duplicate names are counted as often as they are written. */
function holdAgainstParse(bytes: Buffer, what: string): 'JSON' | 'none' {
  const found = read(bytes);
  if (!isUtf8(bytes)) {
    assert.equal(found, 'The body is not valid UTF-8.', what);
    return 'none';
  }
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch {
    // Of two faults the first one is named.
    const isNamed =
      typeof found === 'string' && /^The body is (not valid JSON|empty; send JSON|nested deeper)/.test(found);
    assert(isNamed, `${what}: ${JSON.stringify(found)}`);
    return 'none';
  }
  if (depthOf(value) > 100) assert.equal(found, 'The body is nested deeper than 100 levels.', what);
  else {
    assert(typeof found === 'object', `${what}: ${found}`);
    assert.deepStrictEqual(found.value, value, what);
    assert.deepEqual(found.print, fingerprint(value), what);
    for (const { name, start, end } of found.members as { name: string; start: number; end: number }[])
      assert(Object.hasOwn(JSON.parse(`{${bytes.toString('utf8', start, end)}}`), name), what);
  }
  return 'JSON';
}

/** Byte sequences that break JSON or UTF-8 somewhere. */
const SPLINTERS = [
  ...['"', '\\', '\\u', '\\ud83d', '\\u12', '\\x', '{', '}', '[', ']', ',', ':', ' ', '\t', '\0', '\x1f', '\x7f'],
  ...[
    '0',
    '-',
    '.',
    'e',
    '+',
    '01',
    '1.',
    '.5',
    '1e',
    '-01',
    '1e+',
    'nul',
    'true',
    'NaN',
    '\ufeff',
    'é',
    '\u2028',
    "'",
  ],
].map((it) => Buffer.from(it));
SPLINTERS.push(
  ...[[0x80], [0xff], [0xc0, 0xaf], [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80]].map((it) => Buffer.from(it)),
);

test(`a scan takes what JSON.parse takes, finds the same in it, and refuses the rest, seed ${SEED}`, () => {
  const random = belowFrom(SEED);
  const { value, space, pick } = jsonWriter(random);
  const seen = { JSON: 0, none: 0 };
  for (let round = 0; round < length(6000, 100_000); round++) {
    const pieces = collectPieces();
    const body = Buffer.from(`${space()}${value(1 + random(6))}${space()}`);
    const changed = round % 2 ? changedAt(body, random(body.length + 1), pick([0, 1, 2]), pick(SPLINTERS)) : body;
    for (const byte of changed) pieces.add(Buffer.of(byte));
    seen[holdAgainstParse(pieces.whole(), `seed ${SEED}, round ${round}: ${JSON.stringify(String(changed))}`)]++;
  }
  assert(seen.JSON > 100 && seen.none > 100, JSON.stringify(seen));
});

/** Returns the bytes without `dropped` of them at `at`, and with others there. */
const changedAt = (bytes: Buffer, at: number, dropped: number, others: Buffer) =>
  Buffer.concat([bytes.subarray(0, at), others, bytes.subarray(at + dropped)]);

test(`a long text is read in pieces as it is read as a whole, seed ${SEED}`, () => {
  const random = belowFrom(SEED + 1);
  const { value, text, member, list, pick, space } = jsonWriter(random);
  /** Repeats a few texts up to about this length: escapes, characters and values lie on every kind of border. */
  const many = (bytes: number, one: () => string) => {
    const some = Array.from({ length: 1 + random(5) }, one);
    const all: string[] = [];
    for (let sum = 0; sum < bytes; sum += (all.at(-1) as string).length + 1) all.push(pick(some));
    return all;
  };
  const longString = () =>
    `"${pick(['', 'a', 'ab', 'é'])}${many(70_000 + random(130_000), () => text().slice(1, -1) || 'x').join('')}"`;
  const long = (levels: number): string =>
    pick([
      longString,
      () => `[${list(many(70_000 + random(70_000), () => value(2)))}]`,
      () => `[${many(140_000, () => pick(['1', '-0', '1.50', '12345', '1e3'])).join(pick([',', ', ']))}]`,
      () => `{${many(70_000, () => member(`${pick(['a', 'b', 'ü'])}${random(100)}`, value(1))).join()}}`,
      () => (levels ? `[${list([value(2), long(levels - 1), value(2)])}]` : value(3)),
      () => (levels ? `{${list([member('a', long(levels - 1)), member('b', value(2)), member('a', '1')])}}` : value(3)),
      () => `[1${' '.repeat(70_000)},${space()}2]`,
    ])();
  for (let round = 0; round < length(60, 1500); round++) {
    const body = Buffer.from(long(2));
    assert.equal(holdAgainstParse(body, `seed ${SEED}, round ${round}`), 'JSON');
  }
});

test('JSON that is unusual, and texts that nearly are JSON', () => {
  const nested = (levels: number, open: string, close: string) => open.repeat(levels) + close.repeat(levels);
  const texts = [
    ...[
      '',
      ' ',
      '\ufeff{}',
      '{}\ufeff',
      '"',
      '"\\',
      '"\\"',
      '[',
      ']',
      '{',
      '}',
      '{]',
      '[}',
      '[1}',
      '{"a":1]',
      ',',
      ':',
    ],
    ...['[,]', '[1,]', '[,1]', '{,}', '{"a":1,}', '{"a"}', '{"a":}', '{:1}', '{a:1}', '{1:1}', '[1 2]', '[] []', '1 1'],
    ...[
      '01',
      '-',
      '-a',
      '1.',
      '1.e1',
      '1e',
      '1e+',
      '+1',
      '.5',
      '0x1',
      '1_0',
      'Infinity',
      'NaN',
      'nul',
      'nulll',
      'True',
    ],
    ...[
      '"\t"',
      '"\n"',
      '"\u007f"',
      '"\\x41"',
      '"\\u00g0"',
      '"\\u00"',
      '"\\ud800"',
      '"\\udc00\\ud800"',
      '"\\ud83d\\ude00"',
    ],
    ...[
      '0',
      '-0',
      '1e400',
      '-1e400',
      '1E-400',
      `1${'0'.repeat(400)}`,
      `0.${'1'.repeat(70_000)}`,
      '[1,[2],3,{"a":4},5]',
    ],
    ...[
      '{"a":1,"a":2}',
      '{"\\u0061":1,"a":2}',
      '{"__proto__":{"x":1},"constructor":2}',
      '{"":1," ":2,"":3}',
      '{"2":1,"1":2}',
    ],
    ...[99, 100, 101, 500].flatMap((it) => [nested(it, '[', ']'), nested(it, '{"a":', '}').replace(':}', ':1}')]),
    '[1 , 2\n,3]',
    ...Array.from({ length: 14 }, (_, i) => `"${'x'.repeat(i)}${'\\ud83d\\ude00'.repeat(12_000)}\\\\ud83d\\ude00"`),
    ...Array.from({ length: 6 }, (_, i) => `["${'x'.repeat(i)}${'\\\\'.repeat(70_000)}\\/"]`),
    `{"a${'b'.repeat(70_000)}":[${'1,'.repeat(40_000)}1],"c":1}`,
  ];
  for (const text of texts) holdAgainstParse(Buffer.from(text), JSON.stringify(text.slice(0, 60)));
});
