import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import test from 'node:test';
import { parseNested, parseText } from '../../src/base/json-text.ts';
import { parseJson } from '../../src/base/parse-json.ts';
import { createJsonParser } from '../../src/net/json-answer.ts';
import { forwardedFrom, spliced } from '../../src/router/forwarded.ts';
import { createRandom, length, type Random, SEED } from '../helper/random.ts';

// JSON.parse of V8 13.6 (Node 24) expects the names of the last object that began alike. It compares the expected name with the
// text of the next one before the escapes in that are decoded, so `"\u0069mage"` is read as `\u006` if an object with that name
// came before. A caller may send one first.

const bodyOf = (text: string) => parseText(Buffer.from(text), 0, () => {});

/** All functions that read JSON from outside. */
const READERS: Record<string, (text: string) => unknown> = {
  parseJson,
  parseText: (text) => bodyOf(text).value,
  parseNested: (text) => parseNested(text)?.value,
  createJsonParser(text) {
    const parser = createJsonParser();
    parser.push(Buffer.from(text));
    parser.end();
    return parser.value();
  },
};

const CHARACTERS = ['a', 'b', '1', '/', '"', '\\', '\n', '\u0001', '\x80', '\x7f', 'é', '中', '\ud83d', '\ude00', '_'];
const SHORT: Record<string, string> = { '"': '\\"', '\\': '\\\\', '\n': '\\n', '/': '\\/' };

const nameFrom = ({ whole, pick }: Random) =>
  pick([
    ...['', '1', '__proto__', 'type', 'caf\\', '\x80', '\x806100'],
    Array.from({ length: whole(1, 6) }, () => pick(CHARACTERS)).join(''),
  ]);

/** Writes a name with escapes, required and optional ones. */
function written(name: string, { pick }: Random): string {
  const characters = Array.from({ length: name.length }, (_, i) => {
    const character = name[i] as string;
    const code = `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;
    const needsEscape = /["\\\p{Cc}\p{Cs}]/u.test(character);
    return pick([...(needsEscape ? [] : [character]), SHORT[character] ?? code, code]);
  });
  return `"${characters.join('')}"`;
}

/** Returns the text of an object with members of these names, and its entries. */
function objectOf(names: readonly string[], texts: readonly string[]): { text: string; entries: [string, number][] } {
  const entries = Object.entries(Object.fromEntries(names.map((name, i) => [name, i])));
  return { text: `{${texts.map((it, i) => `${it} :${i}`).join(', ')}}`, entries };
}

for (const [reader, read] of Object.entries(READERS))
  test(`${reader} reads every name as it is written, whatever was read before, seed ${SEED}`, () => {
    const random = createRandom(SEED);
    for (let round = 0; round < length(2000, 50_000); round++) {
      // Unique names: an object that began alike and continued differently would hide the fault.
      const before = [`${reader}${round}`, nameFrom(random)];
      const name = nameFrom(random);
      const text = written(name, random);
      const shape = before.map((it) => JSON.stringify(it));
      const expected = text.slice(1, 1 + name.length);
      read(`[[[[[{${[...shape, JSON.stringify(expected), '""'].map((it) => `${it}:0`).join()}}]]]]]`);
      const { text: object, entries } = objectOf([...before, name, ''], [...shape, text, '""']);
      const found = read(`[[[[[${object}, "\\\\"]]]]]`) as [[[[[object]]]]];
      assert.deepEqual(Object.entries(found[0][0][0][0][0]), entries, object);
      assert.equal(Object.getPrototypeOf(found[0][0][0][0][0]), Object.prototype);
    }
  });

test('what is no JSON is none with escapes in its names, too', () => {
  for (const text of [
    '{"a\\x":1}',
    '{"a\\u12":1}',
    '{"a\\n":}',
    '{"a\\n":1',
    '{"a\\n\n":1}',
    '["a\\n":1]',
    '{"a\\":1}',
    '"\\',
  ])
    assert.throws(() => parseJson(text), SyntaxError, text);
});

test('no source but those of Purser itself is parsed by another', () => {
  // The parts that the build puts into the executable.
  const own = ['files/bundle.ts', 'files/version.ts', 'files/build-cache.cjs', 'ui/assets.ts', 'ui/assets/page.js'];
  const exempt = [...own, 'db/known-schema.ts', 'db/migrate.ts', 'base/parse-json.ts'].map((it) => `src/${it}`);
  const code = (file: string) => readFileSync(file, 'utf8').replace(/^ *(\/?\*|\/\/).*/gm, '');
  const found = globSync('src/**/*.{ts,cjs,js}').filter((it) => /JSON\.parse\b|\.json\(\)/.test(code(it)));
  assert.deepEqual(found.sort(), [...exempt, 'src/demo/narrator.ts'].sort());
});

test('a name with an escape is forwarded as it was read: the model server may misread it', () => {
  const parsed = bodyOf('{"messages":[{"type":"a","\\u0069mage":1}]}');
  const forwarded = spliced(forwardedFrom(parsed.text.bytes, parsed, ['messages']), { model: 'x' });
  assert.equal(forwarded.toString(), '{"model":"x","messages":[{"type":"a","image":1}]}');
});

test('a body without such a name goes on as it came', () => {
  const bytes = Buffer.from('{"a": "\\u00e9\\\\", "é": {"b": ["\\""]}}');
  const { bytes: passed } = forwardedFrom(
    bytes,
    parseText(bytes, 0, () => {}),
    ['a', 'é'],
  );
  assert.equal(passed, bytes);
});
