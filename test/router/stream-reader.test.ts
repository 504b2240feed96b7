import assert from 'node:assert/strict';
import test from 'node:test';
import { createPlainText } from '../../src/router/plain-text.ts';
import { createEventSplitter } from '../../src/router/sse.ts';
import { createStreamReader, type Heard, type Reading } from '../../src/router/stream-reader.ts';
import { collectGarbage } from '../helper/garbage.ts';
import fc from '../helper/property.ts';
import { counted, DONE, event, FINISHED, said } from '../helper/sse.ts';

/** Events of the same treatment may be one piece. */
const withoutRuns = (readings: readonly Reading[]) => readings.filter((it, i) => it !== readings[i - 1]);

/** A stream as its client gets it: what is heard of it, its text, and what becomes of its events, however they are grouped. */
type Told = { heard: Heard; passed: string; readings: Reading[] };

function hear(pieces: Iterable<Buffer>, isEach = false): Told {
  const splitter = createEventSplitter(isEach ? undefined : createPlainText());
  const reader = createStreamReader(1);
  const events = [...pieces].flatMap((it) => splitter.push(it));
  const last = splitter.end();
  const readings: Reading[] = [];
  let passed = '';
  for (const it of last ? [...events, last] : events) {
    const reading = reader.read(it);
    if (reading === 'pass') passed += it.raw.toString();
    readings.push(reading);
  }
  return { heard: reader.heard(), passed, readings: withoutRuns(readings) };
}

const counts = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
const TOLD = { counts, isCounted: true };
const UNTOLD = { counts: undefined, isCounted: false };
const ERROR = event({ error: { message: 'no' } });
const thought = (reasoning: string) =>
  event({ id: 'a', choices: [{ index: 0, delta: { reasoning }, finish_reason: null }] });
const withCrlf = (text: string) => text.replaceAll('\n', '\r\n');

/** The steps, what is heard, and the steps that the client gets. */
const STREAMS: [what: string, steps: string[], heard: Heard, passed: number[], readings: Reading[]][] = [
  [
    'text, its end and its usage',
    [said('hel'), said('lo'), FINISHED, counted(), DONE],
    { ...TOLD, tokensDelivered: 5, isWhole: true },
    [0, 1, 2],
    ['pass', 'usage', 'end'],
  ],
  [
    'lines that end in CRLF',
    [said('hel'), said('lo'), said(''), FINISHED, counted(), DONE].map(withCrlf),
    { ...TOLD, tokensDelivered: 5, isWhole: true },
    [0, 1, 2, 3],
    ['pass', 'usage', 'end'],
  ],
  [
    'reasoning, and text with other members around it',
    [thought('ab'), thought('c'), said('d', { usage: null }), said('e', { id: 'b' }), said('f', { id: 'c' }), DONE],
    { ...UNTOLD, tokensDelivered: 6, isWhole: true },
    [0, 1, 2, 3, 4],
    ['pass', 'end'],
  ],
  [
    'escapes and letters beyond ASCII',
    [said('a "word"\n'), said('höß 💶'), said('\\'), said('e'), FINISHED, DONE],
    { ...UNTOLD, tokensDelivered: 9 + 10 + 2, isWhole: true },
    [0, 1, 2, 3, 4],
    ['pass', 'end'],
  ],
  [
    'text that speaks of an error and of its usage',
    [said('a'), said('"error": {"usage":1}'), said('error'), said('data: [DONE]'), FINISHED, counted(), DONE],
    { ...TOLD, tokensDelivered: 38, isWhole: true },
    [0, 1, 2, 3, 4],
    ['pass', 'usage', 'end'],
  ],
  [
    'a usage in the middle, and text after it',
    [said('a', { usage: { prompt_tokens: 10, completion_tokens: 1 } }), said('bc'), FINISHED, DONE],
    { counts: { prompt_tokens: 10, completion_tokens: 1 }, isCounted: false, tokensDelivered: 3, isWhole: true },
    [0, 1, 2],
    ['pass', 'end'],
  ],
  [
    'a usage in the last choice, as Moonshot writes it',
    [said('ab'), event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop', usage: counts }] }), DONE],
    { ...TOLD, tokensDelivered: 2, isWhole: true },
    [0, 1],
    ['pass', 'end'],
  ],
  [
    'a usage without choices between text',
    [said('a'), counted(), said('bc'), said('d'), DONE],
    { counts, isCounted: false, tokensDelivered: 4, isWhole: true },
    [0, 2, 3],
    ['pass', 'usage', 'pass', 'end'],
  ],
  [
    'an error in the middle, and its usage after it',
    [said('ab'), ERROR, counted()],
    { ...TOLD, tokensDelivered: 2, isWhole: false },
    [0],
    ['pass', 'error', 'drop'],
  ],
  [
    'an error in the middle, and text after it',
    [said('ab'), ERROR, said('c'), said('d'), DONE],
    { ...UNTOLD, tokensDelivered: 2, isWhole: false },
    [0],
    ['pass', 'error', 'drop', 'drop', 'end'],
  ],
  [
    'an error beside text',
    [said('ab'), said('c', { error: 'no' }), said('d')],
    { ...UNTOLD, tokensDelivered: 2, isWhole: false },
    [0],
    ['pass', 'error', 'drop'],
  ],
  [
    'text alone, broken off',
    [said('ab'), ': comment\n\n', said('c')],
    { ...UNTOLD, tokensDelivered: 3, isWhole: false },
    [0, 1, 2],
    ['pass'],
  ],
];

for (const [what, steps, heard, passed, readings] of STREAMS)
  test(`a stream of ${what} is accounted for in the same way wherever it is cut`, () => {
    const bytes = Buffer.from(steps.join(''));
    const expected = { heard, passed: passed.map((at) => steps[at]).join(''), readings: withoutRuns(readings) };
    assert.deepEqual(hear([bytes]), expected);
    assert.deepEqual(hear([bytes], true), expected, 'each event split');
    for (let at = 1; at < bytes.length; at++)
      assert.deepEqual(hear([bytes.subarray(0, at), bytes.subarray(at)]), expected, `cut at byte ${at}`);
    assert.deepEqual(hear(Array.from(bytes, (it) => Buffer.of(it))), expected, 'byte by byte');
  });

test('a usage of one of several choices is not that of the answer', () => {
  const reader = createStreamReader(2);
  const splitter = createEventSplitter();
  const finished = (index: number) =>
    event({ choices: [{ index, delta: { content: 'a' }, finish_reason: 'stop', usage: counts }] });
  for (const it of splitter.push(Buffer.from(finished(0) + finished(1) + DONE))) reader.read(it);
  assert.deepEqual(reader.heard(), { ...UNTOLD, tokensDelivered: 2, isWhole: true });
});

test('a stream that ends ever more choices fills no memory', () => {
  const reader = createStreamReader(1);
  const heapUsed = () => {
    collectGarbage();
    return process.memoryUsage().heapUsed;
  };
  const read = (i: number) => {
    const choices = Array.from({ length: 1000 }, (_, j) => ({ index: 1000 * i + j, finish_reason: 'stop' }));
    reader.read({ raw: Buffer.alloc(0), data: JSON.stringify({ choices }) });
  };
  read(0);
  const before = heapUsed();
  for (let i = 1; i < 500; i++) read(i);
  const grown = heapUsed() - before;
  assert(grown < 4 * 1024 * 1024, `${grown} bytes are kept of a stream`);
  assert(reader.heard().isWhole);
});

test('events of plain text with the same members are one piece, which is not looked into', () => {
  const steps = [said('hel'), said('lo'), said(' th'), said('ere', { usage: null }), said('!', { usage: null })];
  const events = createEventSplitter(createPlainText()).push(Buffer.from(steps.join('')));
  assert.deepEqual(
    events.map(({ raw, data, textBytes }) => [String(raw), data, textBytes]),
    [
      [steps[0], undefined, 3],
      [`${steps[1]}${steps[2]}`, undefined, 5],
      [steps[3], undefined, 3],
      [steps[4], undefined, 1],
    ],
  );
});

test('a stream of any events in any pieces is accounted for as if each event were read as JSON', () => {
  const content = fc.oneof(fc.string({ maxLength: 8 }), fc.string({ unit: 'grapheme', maxLength: 4 }));
  const more = fc.constantFrom(
    {},
    {},
    {},
    { id: 'b' },
    { usage: null },
    { usage: { prompt_tokens: 10, completion_tokens: 1 } },
  );
  const step = fc.oneof(
    { weight: 10, arbitrary: fc.tuple(content, more).map(([text, it]) => said(text, it)) },
    { weight: 3, arbitrary: content.map(thought) },
    { weight: 3, arbitrary: fc.constantFrom(FINISHED, counted(), ': comment\n\n', ERROR, DONE, '\n', 'data: {"a":') },
  );
  const stream = fc.tuple(fc.array(step, { maxLength: 20 }), fc.boolean(), fc.array(fc.nat(2000), { maxLength: 8 }));
  fc.assert(
    fc.property(stream, ([steps, isCrlf, cuts]) => {
      const text = steps.join('');
      const bytes = Buffer.from(isCrlf ? withCrlf(text) : text);
      const ends = [...new Set(cuts)].filter((it) => it < bytes.length).sort((a, b) => a - b);
      const pieces = [...ends, bytes.length].map((end, i) => bytes.subarray(ends[i - 1] ?? 0, end));
      assert.deepEqual(
        attempt(() => hear(pieces)),
        attempt(() => hear([bytes], true)),
      );
    }),
    { numRuns: 5000 },
  );
});

/** Returns what an attempt comes to, be it an error. */
function attempt<T>(of: () => T): T | string {
  try {
    return of();
  } catch (error) {
    return (error as Error).message;
  }
}
