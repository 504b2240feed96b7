import assert from 'node:assert/strict';
import test from 'node:test';
import { READINGS } from '../../src/router/apart.ts';
import { createEventSplitter, errorIn, type SseEvent } from '../../src/router/sse.ts';
import fc from '../helper/property.ts';

const MEBIBYTE = 1024 * 1024;

/** Everything that a stream of these chunks comes to. */
function split(chunks: Iterable<string | Buffer>): SseEvent[] {
  const splitter = createEventSplitter();
  const events = [...chunks].flatMap((it) => splitter.push(Buffer.from(it)));
  const last = splitter.end();
  return last ? [...events, last] : events;
}
const dataOf = (events: SseEvent[]) => events.map(({ data }) => data);

/** The stream as text, and what its events say. */
const STREAMS: [what: string, text: string, data: (string | undefined)[]][] = [
  ['events', 'data: 1\n\ndata: 2\n\n', ['1', '2']],
  ['events with CRLF', 'data: 1\r\n\r\ndata: 2\r\n\r\n', ['1', '2']],
  ['both kinds of line ends', 'data: 1\n\r\ndata: 2\r\n\ndata: 3\n\n', ['1', '2', '3']],
  ['no space behind the colon', 'data:1\n\n', ['1']],
  ['two spaces behind the colon, of which one is data', 'data:  1\n\n', [' 1']],
  ['data of several lines', 'data: {\ndata: "a": 1\ndata: }\n\n', ['{\n"a": 1\n}']],
  ['a data line without a colon', 'data\n\n', ['']],
  ['comments', ': PROCESSING\n\ndata: 1\n\n:\n\n', [undefined, '1', undefined]],
  ['a comment inside an event', ': a\ndata: 1\n: b\n\n', ['1']],
  ['other fields', 'event: x\nid: 7\nretry: 10\ndata: 1\n\n', ['1']],
  ['fields that only begin like data', 'database: 1\n\ndata : 2\n\n', [undefined, undefined]],
  ['a byte order mark', '\ufeffdata: 1\n\ndata: 2\n\n', ['1', '2']],
  ['a byte order mark where it is none', 'data: 1\n\n\ufeffdata: 2\n\n', ['1', undefined]],
  ['more blank lines than needed', 'data: 1\n\n\n\ndata: 2\n\n\n', ['1', undefined, '2']],
  ['text of several bytes a character', 'data: {"a":"höß 漢字 🎈"}\n\n', ['{"a":"höß 漢字 🎈"}']],
  ['an end that is not quite written as it should be', 'data: 1\n\ndata:  [DONE] \n\n', ['1', '[DONE]']],
  ['an end without its blank line', 'data: 1\n\ndata: [DONE]\n', ['1', '[DONE]']],
  ['an end without its line end', 'data: 1\n\ndata: [DONE]', ['1', '[DONE]']],
  ['a last event without its blank line', 'data: {"a":1}', ['{"a":1}']],
  ['nothing', '', []],
  ['blank lines at the end', 'data: 1\n\n\r\n', ['1']],
];

for (const [what, text, data] of STREAMS) {
  test(`a stream with ${what} says the same, wherever it is cut`, () => {
    const bytes = Buffer.from(text);
    const whole = split([bytes]);
    assert.deepEqual(dataOf(whole), data);
    for (let at = 0; at <= bytes.length; at++) {
      const halves = split([bytes.subarray(0, at), bytes.subarray(at)]);
      assert.deepEqual(dataOf(halves), data, `cut at byte ${at}`);
    }
    assert.deepEqual(dataOf(split(Array.from(bytes, (it) => Buffer.of(it)))), data, 'byte by byte');
    // Not a byte is lost or made up, but for the blank line that is missing at an end.
    const raw = Buffer.concat(whole.map((it) => it.raw)).toString();
    assert(raw === text || raw === `${text}\n\n` || text.startsWith(raw), JSON.stringify(raw));
  });
}

for (const text of ['data: {"a":', 'data: 1\n\ndata: {"usage":{"prompt_tokens":1', 'data: hello'])
  test(`a stream that ends with ${JSON.stringify(text)} has ended inside an event`, () => {
    const last = split([text]).at(-1) as SseEvent;
    assert.throws(() => READINGS.last(last.raw, 'chat'), /ended inside an event/);
  });

test('any bytes in any pieces come out as they went in', () => {
  const piece = fc.oneof(
    fc.uint8Array({ maxLength: 20 }),
    fc.constantFrom('\n', '\r', '\r\n', '\n\n', 'data:', 'data: 1\n\n', ':', '\ufeff').map((it) => Buffer.from(it)),
  );
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 40 }), (pieces) => {
      const chunks = pieces.map((it) => Buffer.from(it));
      const splitter = createEventSplitter();
      const inPieces = chunks.flatMap((it) => splitter.push(it));
      const atOnce = createEventSplitter().push(Buffer.concat(chunks));
      assert.deepEqual(inPieces, atOnce);
      assert(Buffer.concat(chunks).indexOf(Buffer.concat(inPieces.map((it) => it.raw))) === 0);
    }),
    { numRuns: 2000 },
  );
});

test('an event of more than 8 MiB is refused, and what came of it is not kept', () => {
  const splitter = createEventSplitter();
  assert.throws(() => {
    for (let i = 0; i < 10; i++) splitter.push(Buffer.alloc(MEBIBYTE, 'a'));
  }, /longer than any model server sends/);
});

test('an event of almost 8 MiB is taken, in time that grows with its length only', () => {
  const body = `data: ${'a'.repeat(7 * MEBIBYTE)}`;
  // Some model servers send a chunk for each token; a hundred thousand of them must not be joined a hundred thousand times.
  const chunks = Array.from({ length: Math.ceil(body.length / 64) }, (_, i) =>
    Buffer.from(`${body.slice(i * 64, (i + 1) * 64)}`),
  );
  const before = process.cpuUsage(); // What others do on this machine is not counted.
  const events = split([...chunks, '\ndata: b\n\n']);
  assert.equal(events[0]?.data?.length, 7 * MEBIBYTE + 2);
  assert(process.cpuUsage(before).user < 5_000_000);
});

const ERRORS: [text: string, isError: boolean][] = [
  ['{"error":{"message":"no","code":429}}', true],
  ['{"error":{}}', true],
  ['{"error":"Request failed during generation","error_type":"generation"}', true],
  ['{"object":"error","message":"no","code":400}', true],
  ['{"id":"a","choices":[{"finish_reason":"error"}],"error":{"message":"overloaded"}}', true],
  ['{"error":null,"choices":[]}', false],
  ['{"error":""}', false],
  ['{"choices":[{"delta":{"content":"\\"error\\": {}"}}]}', false],
  ['{"choices":[{"delta":{"error":{}}}]}', false],
  ['"error"', false],
  ['null', false],
];
for (const [text, isError] of ERRORS)
  test(`${text} is ${isError ? 'an' : 'no'} error`, () =>
    assert.equal(errorIn(JSON.parse(text)) !== undefined, isError));
