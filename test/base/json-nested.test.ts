import assert from 'node:assert/strict';
import test from 'node:test';
import { parseNested, UncountedJson } from '../../src/base/json-text.ts';
import { tagsOfBody } from '../../src/http/tags.ts';
import { assertLinear } from '../helper/cpu.ts';

test('JSON inside a string is parsed with the levels and values of a body, or not at all', () => {
  assert.deepEqual(parseNested(' {"a":[1,"]",{}]}'), { value: { a: [1, ']', {}] } });
  assert.deepEqual(parseNested('null'), { value: null });
  const nested = (levels: number) => `${'['.repeat(levels)}${']'.repeat(levels)}`;
  assert(parseNested(nested(100)));
  assert.throws(() => parseNested(nested(101)), UncountedJson);
  assert.throws(() => parseNested(`[${'{"a":1},'.repeat(100_000)}1]`), UncountedJson);
  assert.equal(parseNested('{"a":1}', 6), undefined);
});

test('what is no JSON is none however deep it goes', () => {
  for (const text of ['['.repeat(100_000), ']', '{"a"', `${'['.repeat(200)}"`, `so, ${'then, '.repeat(200_000)}`, ''])
    assert.equal(parseNested(text), undefined, text.slice(0, 20));
});

for (const piece of ['[', '\\', '"', '"\\', '{"a":', ',', '\\"', ' '])
  test(`${JSON.stringify(piece)} again and again takes a time that grows with its length`, () =>
    assertLinear(piece, 8 * 1024 * 1024, (units) => {
      const text = `[${piece.repeat(units / piece.length)}`;
      return () => {
        try {
          parseNested(text);
        } catch {}
      };
    }));

test('a user that is longer than any of Claude Code is not looked into', () => {
  const ids = (more: string) => tagsOfBody({ metadata: { user_id: `{"device_id":"d","session_id":"s"${more}}` } });
  assert.equal(ids('').length, 2);
  assert.deepEqual(ids(`,"a":"${'x'.repeat(1000)}"`), []);
});
