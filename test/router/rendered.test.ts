import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import * as v from 'valibot';
import { Router } from '../../src/config/router.ts';
import { boundChat } from '../../src/router/bound.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { quotedBytes, textBytes, valueBytes } from '../../src/router/rendered.ts';
import { cpuOf } from '../helper/cpu.ts';
import { randomFrom, SEED } from '../helper/random.ts';
import { type ChatRequest, openCounters } from '../helper/tokenizers.ts';

const model = createCatalogue({
  router: v.parse(Router, {
    upstreams: [{ name: 'local', base_url: 'http://127.0.0.1:1/v1' }],
    models: [
      {
        id: 'm',
        upstream: 'local',
        context_length: 1e8,
        max_output_tokens: 1,
        pricing: { prompt: '0', completion: '0' },
      },
    ],
  }),
}).find('m');
const boundOf = (request: ChatRequest) =>
  boundChat(model, { model: 'm', ...request }).maxUsage(model.routes[0]).promptTokens;

const read = (name: string) => readFileSync(join(import.meta.dirname, '../..', name), 'utf8');
const user = (content: unknown) => ({ role: 'user', content });
const asks = (content: unknown): ChatRequest => ({ messages: [user(content)] });
const tool = (parameters: unknown, name = 'look', description = 'Looks.') => ({
  type: 'function',
  function: { name, description, parameters },
});
const withTools = (...tools: unknown[]): ChatRequest => ({ messages: [user('hi')], tools });
/** A call that was made earlier, and what it answered. */
const called = (json: string, answer = 'done'): ChatRequest => ({
  messages: [
    user('hi'),
    {
      role: 'assistant',
      content: '',
      tool_calls: [{ id: 'call00001', type: 'function', function: { name: 'look', arguments: json } }],
    },
    { role: 'tool', tool_call_id: 'call00001', content: answer },
  ],
});
const nested = (depth: number, width: number): unknown =>
  depth === 0 ? Array(width).fill(1) : [nested(depth - 1, width), 1];
const list = (item: string, count: number) => `{"a":[${Array(count).fill(item).join(',')}]}`;

const BLOCKS: [from: number, to: number][] = [
  [0x20, 0x7e],
  [0x00, 0x1f],
  [0xa0, 0x2ff],
  [0x300, 0x36f],
  [0x600, 0x6ff],
  [0x1100, 0x11ff],
  [0x3300, 0x33ff],
  [0x4e00, 0x9fff],
  [0xac00, 0xd7a3],
  [0xfb1d, 0xfdff],
  [0xff00, 0xffee],
  [0x1d400, 0x1d7ff],
  [0x1f300, 0x1faff],
  [0x2f800, 0x2fa1d],
  [0xe0000, 0xe007f],
];
function randomText(next: () => number, length: number): string {
  let text = '';
  while (text.length < length) {
    const [from, to] = BLOCKS[Math.floor(next() * BLOCKS.length)] as [number, number];
    const run = 1 + Math.floor(next() * 30);
    for (let i = 0; i < run; i++) text += String.fromCodePoint(from + Math.floor(next() * (to - from + 1)));
  }
  return text;
}
function randomValue(next: () => number, depth: number): unknown {
  const kind = next();
  if (depth === 0 || kind < 0.2) return randomText(next, 1 + next() * 10);
  if (kind < 0.35) return Math.floor(next() * 10);
  if (kind < 0.45) return next() * 10 ** Math.floor(next() * 40 - 20);
  if (kind < 0.5) return [true, false, null][Math.floor(next() * 3)];
  const items = Array.from({ length: Math.floor(next() * 6) }, () => randomValue(next, depth - 1));
  if (kind < 0.75) return items;
  return Object.fromEntries(items.map((it) => [randomText(next, 1 + next() * 4), it]));
}

const prose = read('docs/security.md').slice(0, 10_000);
const code = read('src/ledger/operation.ts').slice(0, 10_000);
const schema = {
  type: 'object',
  properties: {
    path: { type: 'string', description: 'The file to read, relative to the root of the project.' },
    from: { type: 'integer', minimum: 1, description: 'The first line.' },
    kind: { type: 'string', enum: ['text', 'bytes', 'lines'] },
  },
  required: ['path'],
};

const ORDINARY: [what: string, request: ChatRequest][] = [
  ['hello', asks('Hello!')],
  [
    'two parts of text',
    asks([
      { type: 'text', text: 'What is this?' },
      { type: 'text', text: prose.slice(0, 500) },
    ]),
  ],
  ['10 kB of prose', asks(prose)],
  ['10 kB of code', asks(code)],
  ['Chinese', asks('人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。'.repeat(40))],
  [
    'a conversation',
    { messages: Array.from({ length: 21 }, (_, i) => (i % 2 ? { role: 'assistant', content: 'Yes.' } : user('And?'))) },
  ],
  ['12 tools', withTools(...Array.from({ length: 12 }, (_, i) => tool(schema, `tool_${i}`)))],
  [
    'a call and its answer in code',
    called(JSON.stringify({ path: 'src/ledger/operation.ts', content: code.slice(0, 3000) }), code.slice(0, 3000)),
  ],
];
const HOSTILE: [what: string, request: ChatRequest][] = [
  ['letters that NFC takes apart', asks('\ufb2c'.repeat(3000))],
  [
    'letters that NFC lengthens among letters that NFKC shortens',
    asks(`${'\ufb2c'.repeat(20)}${'Ａ'.repeat(60)}`.repeat(20)),
  ],
  ['a letter that NFKC takes apart into 18', asks('\ufdfa'.repeat(500))],
  ['a mark that breaks a letter up', asks('é\u0323'.repeat(1000))],
  ['control characters', asks('\u0001\u0002\u0007'.repeat(500))],
  ['letters that no vocabulary has', asks('\u{1d7d8}\u{10330}\u{e0041}'.repeat(300))],
  ['marks of the template', asks('<|im_start|><start_of_turn>[INST]</s><|eot_id|>'.repeat(100))],
  [
    'many short messages',
    { messages: Array.from({ length: 401 }, (_, i) => (i % 2 ? { role: 'assistant', content: 'a' } : user('a'))) },
  ],
  ['many short parts', asks(Array(500).fill({ type: 'text', text: 'a' }))],
  ['a list of small numbers in a tool', withTools(tool({ enum: Array(3000).fill(1) }))],
  ['nested lists in a tool', withTools(tool({ enum: nested(60, 50) }))],
  ['deep lists of one number', withTools(...Array(20).fill(tool({ enum: nested(30, 1) })))],
  ['1e300 in a tool', withTools(tool({ enum: Array(1000).fill(1e300) }))],
  ['a tool in quotes and brackets', withTools(tool({}, 'look', `"'<>&\\\n`.repeat(500)))],
  [
    'many tools of nothing',
    withTools(...Array(200).fill({ type: 'function', function: { name: 'f', description: '' } })),
  ],
  ['small numbers in arguments', called(list('1', 3000))],
  ['1e15 in arguments', called(list('1e15', 1500))],
  ['whole numbers of 300 digits in arguments', called(list('9'.repeat(300), 20))],
  ['numbers that only Python reads', called(list('NaN,1e15,[1,1]', 500))],
  ['quotes in arguments that stay a text', called(JSON.stringify({ a: '"\\"\n'.repeat(500) }))],
  ['arguments that are no JSON', called('[1,1,'.repeat(500))],
  ['an answer of a tool in quotes and brackets', called('{}', `"'<>&\\\n`.repeat(500))],
  ['an answer of a tool in letters beyond ASCII', called('{}', 'é人😀'.repeat(300))],
];

test('every real count is within the bound: real tokenizers and templates, ordinary and hostile prompts', (t) => {
  t.diagnostic(`seed ${SEED}`);
  const next = randomFrom(SEED);
  const RANDOM: [string, ChatRequest][] = Array.from({ length: 12 }, (_, i) => [
    `random ${i}`,
    i % 3 === 0
      ? asks(randomText(next, 2000))
      : i % 3 === 1
        ? withTools(tool(randomValue(next, 6)), tool(randomValue(next, 6)))
        : called(JSON.stringify({ a: randomValue(next, 6), b: randomValue(next, 6) }), randomText(next, 300)),
  ]);
  const counters = openCounters();
  const names = counters.map(({ name }) => name);
  t.diagnostic(`bound / real by ${names.join(', ')}`);
  for (const [what, request] of [...ORDINARY, ...HOSTILE, ...RANDOM]) {
    const bound = boundOf(request);
    const counts = counters.map(({ count }) => count(request));
    t.diagnostic(
      `${what}: ${bound} / ${counts.join(', ')} = ${counts.map((it) => (bound / it).toFixed(1)).join(', ')}`,
    );
    for (const [i, counted] of counts.entries())
      assert(
        counted <= bound,
        `${what}: ${names[i]} counts ${counted} tokens where the bound is ${bound} (seed ${SEED})`,
      );
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
