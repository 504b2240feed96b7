import assert from 'node:assert/strict';
import test from 'node:test';
import { boundChat } from '../../src/router/bound.ts';
import { quotedBytes, textBytes, valueBytes } from '../../src/router/rendered.ts';
import { cpuOf } from '../helper/cpu.ts';
import { randomFrom } from '../helper/random.ts';
import { assertBounded, boundOf, called, model, PROMPTS, REAL_COUNTS, randomValue, user } from './rendered-shared.ts';

test('every real count is within the bound: recorded of real tokenizers and templates, ordinary and hostile prompts', (t) => {
  for (const prompt of PROMPTS) {
    const counts = REAL_COUNTS[prompt[0]];
    assert(counts, `real-counts.json lacks ${prompt[0]}: rendered.soak.test.ts prints what has to be there`);
    assertBounded(t, prompt, counts);
  }
});

test('the bytes of a text are those of its longest form', () => {
  assert.equal(textBytes('abc'), 3);
  assert.equal(textBytes('é'), 2);
  assert.equal(textBytes('\ufb2c'), 6, 'NFC makes three letters of two bytes of one of three');
  assert.equal(textBytes('\ufdfa'), 33, 'NFKC');
  assert.equal(textBytes('Ａ'), 3, 'as it is');
  assert.equal(textBytes('\ud800'.repeat(3)), 9, 'half a character');
});

test('a quoted text has the bytes of its longest escapes', () => {
  assert.equal(quotedBytes('abc'), 3);
  assert.equal(quotedBytes('"\\\n'), 6);
  assert.equal(quotedBytes("<>&'"), 24);
  assert.equal(quotedBytes('\u0001\u007f'), 12);
  assert.equal(quotedBytes('é'), 6);
  assert.equal(quotedBytes('😀'), 12);
  assert.equal(quotedBytes('\ufdfa'), 33, 'a form that is longer than its escape');
});

test('a value is never bounded by less than its JSON, indented by four', () => {
  const next = randomFrom(7);
  for (let i = 0; i < 300; i++) {
    const value = randomValue(next, 8);
    assert(valueBytes(value) >= Buffer.byteLength(JSON.stringify(value, null, 4)), JSON.stringify(value));
  }
});

test('what came with an answer counts with its name, as JSON and as text', () => {
  const next = randomFrom(11);
  const boundWith = (more: object) => boundOf({ messages: [{ role: 'assistant', content: '', ...more }] });
  const plain = boundWith({});
  for (const name of [
    'reasoning_details',
    'thinking_blocks',
    'provider_specific_fields',
    'extra_content',
    'annotations',
    'matched_stop',
  ])
    for (let i = 0; i < 50; i++) {
      const value = randomValue(next, 6) ?? 0;
      if (Array.isArray(value) && value.length === 0) continue;
      const written = JSON.stringify({ [name]: value }, null, 4);
      assert(boundWith({ [name]: value }) - plain >= Buffer.byteLength(written), written);
    }
  for (const text of ['a', 'é', '\ufdfa', '<', '\u0001'].map((it) => it.repeat(1000)))
    for (const thinking of [text, [{ type: 'text', text }]]) {
      const part = { type: 'thinking', thinking, closed: true, signature: text };
      assert(boundWith({ content: [part] }) - plain >= Buffer.byteLength(JSON.stringify(part, null, 4)));
      assert(boundWith({ content: [part] }) - plain >= 2 * textBytes(text));
    }
});

test('arguments that are nested deeper than a body may be are refused', () => {
  const request = called(`${'['.repeat(5000)}${']'.repeat(5000)}`);
  assert.throws(() => boundOf(request), /nested too deep/);
});

test('what is far longer than any context is not read to its end', () => {
  const messages = [user('\ufdfa'.repeat(2_500_000))];
  const timed = (contextLength: number) =>
    cpuOf(() => {
      const { reducible } = boundChat(
        { ...model, routes: [{ ...model.routes[0], contextLength }] },
        { model: 'm', messages },
      );
      assert.equal(reducible?.outputTokens, 1);
    });
  const [beginning, whole] = [timed(1000), timed(1e8)];
  // Finding out how long it is reads it once in either case.
  assert(beginning < 0.75 * whole, `${beginning} ms, where the whole takes ${whole} ms`);
});

test('whole numbers in arguments count all their digits, however a double is written', () => {
  for (const digits of [20, 21, 22, 23, 24]) {
    const numbers = Array(1000).fill('9'.repeat(digits));
    const call = (json: string) =>
      boundOf({ messages: [{ role: 'assistant', function_call: { name: 'f', arguments: json } }] });
    // As Python's json.dumps writes them.
    assert(call(`{"a":[${numbers.join(',')}]}`) - call('{"a":[]}') >= numbers.join(', ').length, `${digits} digits`);
  }
});

test('arguments that are longer than any context are not parsed', (t) => {
  const parse = t.mock.method(JSON, 'parse');
  const short = { ...model, routes: [{ ...model.routes[0], contextLength: 1000 }] } as const;
  const bound = (json: string) =>
    boundChat(short, { model: 'm', ...called(json) }).maxUsage(short.routes[0]).promptTokens;
  assert.equal(bound(`[${'{},'.repeat(1000)}1]`), 1000);
  assert.equal(parse.mock.callCount(), 0);
  assert(bound('[1]') < 1000);
  assert.equal(parse.mock.callCount(), 1);
});

test('parts of a content are not read beyond any context together', (t) => {
  const normalize = t.mock.method(String.prototype, 'normalize');
  const short = { ...model, routes: [{ ...model.routes[0], contextLength: 1000 }] } as const;
  const parts = Array.from({ length: 1000 }, () => ({ type: 'text', text: 'ü'.repeat(100) }));
  for (const role of ['user', 'tool']) {
    const bound = boundChat(short, { model: 'm', messages: [{ role, content: parts }] });
    assert.equal(bound.maxUsage(short.routes[0]).promptTokens, 1000);
  }
  assert(normalize.mock.callCount() < 50, `${normalize.mock.callCount()} times`);
});
