import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import * as v from 'valibot';
import { Router } from '../../src/config/router.ts';
import { boundChat } from '../../src/router/bound.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { randomFrom } from '../helper/random.ts';
import type { ChatRequest } from '../helper/tokenizers.ts';

export const model = createCatalogue({
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
export const boundOf = (request: ChatRequest) =>
  boundChat(model, { model: 'm', ...request }).maxUsage(model.routes[0]).promptTokens;

const read = (name: string) => readFileSync(join(import.meta.dirname, '../..', name), 'utf8');
export const user = (content: unknown) => ({ role: 'user', content });
export const asks = (content: unknown): ChatRequest => ({ messages: [user(content)] });
const tool = (parameters: unknown, name = 'look', description = 'Looks.') => ({
  type: 'function',
  function: { name, description, parameters },
});
const withTools = (...tools: unknown[]): ChatRequest => ({ messages: [user('hi')], tools });
/** A call that was made earlier, and what it answered. */
export const called = (json: string, answer = 'done'): ChatRequest => ({
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
export function randomText(next: () => number, length: number): string {
  let text = '';
  while (text.length < length) {
    const [from, to] = BLOCKS[Math.floor(next() * BLOCKS.length)] as [number, number];
    const run = 1 + Math.floor(next() * 30);
    for (let i = 0; i < run; i++) text += String.fromCodePoint(from + Math.floor(next() * (to - from + 1)));
  }
  return text;
}
export function randomValue(next: () => number, depth: number): unknown {
  const kind = next();
  if (depth === 0 || kind < 0.2) return randomText(next, 1 + next() * 10);
  if (kind < 0.35) return Math.floor(next() * 10);
  if (kind < 0.45) return next() * 10 ** Math.floor(next() * 40 - 20);
  if (kind < 0.5) return [true, false, null][Math.floor(next() * 3)];
  const items = Array.from({ length: Math.floor(next() * 6) }, () => randomValue(next, depth - 1));
  if (kind < 0.75) return items;
  return Object.fromEntries(items.map((it) => [randomText(next, 1 + next() * 4), it]));
}

// Texts that never change, so that the recorded counts stay right.
const prose = read('LICENSE').repeat(10);
const code = read('migrations/0000_spine.sql');
const schema = {
  type: 'object',
  properties: {
    path: { type: 'string', description: 'The file to read, relative to the root of the project.' },
    from: { type: 'integer', minimum: 1, description: 'The first line.' },
    kind: { type: 'string', enum: ['text', 'bytes', 'lines'] },
  },
  required: ['path'],
};

type Prompt = [what: string, request: ChatRequest];
const ORDINARY: Prompt[] = [
  ['hello', asks('Hello!')],
  [
    'two parts of text',
    asks([
      { type: 'text', text: 'What is this?' },
      { type: 'text', text: prose.slice(0, 500) },
    ]),
  ],
  ['10 kB of prose', asks(prose)],
  ['8 kB of code', asks(code)],
  ['Chinese', asks('人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。'.repeat(40))],
  [
    'a conversation',
    { messages: Array.from({ length: 21 }, (_, i) => (i % 2 ? { role: 'assistant', content: 'Yes.' } : user('And?'))) },
  ],
  ['12 tools', withTools(...Array.from({ length: 12 }, (_, i) => tool(schema, `tool_${i}`)))],
  [
    'a call and its answer in code',
    called(JSON.stringify({ path: 'migrations/0000_spine.sql', content: code.slice(0, 3000) }), code.slice(0, 3000)),
  ],
];
const HOSTILE: Prompt[] = [
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

/** Returns prompts of texts and values that follow from a seed. */
export function randomPrompts(seed: number): Prompt[] {
  const next = randomFrom(seed);
  return Array.from({ length: 12 }, (_, i) => [
    `random ${i}`,
    i % 3 === 0
      ? asks(randomText(next, 2000))
      : i % 3 === 1
        ? withTools(tool(randomValue(next, 6)), tool(randomValue(next, 6)))
        : called(JSON.stringify({ a: randomValue(next, 6), b: randomValue(next, 6) }), randomText(next, 300)),
  ]);
}

/** Ordinary and hostile prompts, each with what the real tokenizers and templates count of it in `real-counts.json`. */
export const PROMPTS: readonly Prompt[] = [...ORDINARY, ...HOSTILE, ...randomPrompts(1)];

/** The counts of each prompt, by the model whose tokenizer and template counted them. `rendered.soak.test.ts` proves them. */
export const REAL_COUNTS: Readonly<Record<string, Record<string, number>>> = JSON.parse(
  readFileSync(join(import.meta.dirname, 'real-counts.json'), 'utf8'),
);

/** Asserts that no count is above the bound, and reports how far below it they are. */
export function assertBounded(t: TestContext, [what, request]: Prompt, counts: Record<string, number>): void {
  const bound = boundOf(request);
  const each = Object.entries(counts).map(([name, count]) => `${name} ${count} (${(bound / count).toFixed(1)})`);
  t.diagnostic(`${what}: ${bound}; ${each.join(', ')}`);
  for (const [name, count] of Object.entries(counts))
    assert(count <= bound, `${what}: ${name} counts ${count} tokens where the bound is ${bound}`);
}
