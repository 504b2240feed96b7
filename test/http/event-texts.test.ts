import assert from 'node:assert/strict';
import test from 'node:test';
import { textsOf } from '../../src/http/dialects/event-texts.ts';
import { responsesDialect } from '../../src/http/dialects/responses.ts';

const KIB = 1024;
/** A piece of the text, with every unit of it as an escape, and what stands around it. */
const PIECE_LENGTH_MAX = 7 * 32 * KIB;

const joined = (events: readonly { type: string }[]) =>
  events.map((it) => `event: ${it.type}\ndata: ${JSON.stringify(it)}\n\n`).join('');

test('long events come in pieces, and are the same as in one', () => {
  const long = (piece: string) => piece.repeat(Math.ceil((100 * KIB) / piece.length));
  const events = [
    { type: 'a', text: 'short', none: null, no: undefined, list: [], object: {}, number: 1.5, is: false },
    { type: 'b', text: long('\0'), 'a "name"': [{ text: long('é😀') }, [long('\n"'), 7]] },
    { type: 'c', text: `a${long('😀')}`, broken: `${long('😀')}\ud83d${long('\udc00')}` },
    { type: 'd', items: Array.from({ length: 5000 }, (_, i) => ({ id: `item_${i}`, text: 'hello' })) },
  ];
  const pieces = [...textsOf(events)];
  assert.equal(pieces.join(''), joined(events));
  assert(Math.max(...pieces.map((it) => it.length)) <= PIECE_LENGTH_MAX);
  assert(pieces.length > 20);
  assert.deepEqual([...textsOf(events.slice(0, 1))], [joined(events.slice(0, 1))], 'short ones in one piece');
});

test('the end of a translated stream, and the end of each of its parts, comes in pieces', () => {
  const { kept } = responsesDialect.translate({ model: 'chat', input: 'hi' });
  const stream = responsesDialect.answers(kept, 'seed').stream();
  const told: string[] = [];
  const tell = (delta: object) => {
    for (const piece of stream.chunk({ id: 'c', choices: [{ delta }] })) told.push(piece);
  };
  for (let i = 0; i < 64; i++) tell({ content: '\n'.repeat(16 * KIB) });
  const call = (index: number, args: string) =>
    tell({ tool_calls: [{ index, function: { name: 'f', arguments: args } }] });
  call(0, '{"a":"');
  for (let i = 0; i < 8; i++) call(1, '\\n'.repeat(16 * KIB)); // Waits for the first.
  call(0, '"}');
  tell({ tool_calls: [{ index: 2, function: { name: 'f', arguments: '{}' } }] });
  told.push(...stream.end());
  assert(Math.max(...told.map((it) => it.length)) <= PIECE_LENGTH_MAX);
  const events = [...told.join('').matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data as string));
  const texts = events.filter(({ type }) => type === 'response.output_text.done');
  assert.deepEqual(
    texts.map(({ text }) => text.length),
    [1024 * KIB],
  );
  assert.equal(events.at(-1).response.output.length, 4);
  assert.deepEqual(
    events.map(({ sequence_number: number }) => number),
    events.map((_, i) => i),
  );
});
