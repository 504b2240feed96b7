import assert from 'node:assert/strict';
import test from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { createJsonParser, readJsonAnswer } from '../../src/net/json-answer.ts';
import { createRandom, length, type Random, SEED } from '../helper/random.ts';

const KIB = 1024;
const PARTS = [
  '{',
  '}',
  '[',
  ']',
  ',',
  ':',
  '"',
  '\\',
  ' ',
  '\n',
  '1',
  '-',
  '.',
  'e',
  'true',
  'null',
  '"a"',
  '\\u00e9',
  'é',
];
const STRINGS = ['', 'a', '"', 'é', '😀', '\ud800', '\n', '__proto__', ']', '}', ',', '1'];

function drawn(random: Random, depth = 0): unknown {
  const kind = random.whole(0, depth > 7 ? 3 : 7);
  if (kind === 0) return random.pick([0, -1, 1.5, 1e300, -0.1e-7]);
  if (kind === 1) return random.pick([true, false, null]);
  if (kind <= 3) return random.pick(STRINGS);
  const count = random.whole(0, 4);
  const values = Array.from({ length: count }, () => drawn(random, depth + 1));
  if (kind <= 5) return values;
  return JSON.parse(`{${values.map((it) => `${JSON.stringify(random.pick(STRINGS))}:${JSON.stringify(it)}`).join()}}`);
}

/** Returns the value of a text that is cut into pieces anywhere, or that it is not JSON. */
function parsed(text: Buffer, random: Random): unknown {
  const parser = createJsonParser();
  try {
    for (let at = 0; at < text.length; ) {
      const end = at + random.whole(1, 12);
      parser.push(text.subarray(at, end));
      at = end;
    }
    parser.end();
    return parser.value();
  } catch (error) {
    assert(error instanceof SyntaxError, error as Error);
    return 'not JSON';
  }
}

function expected(text: Buffer): unknown {
  try {
    return JSON.parse(text.toString());
  } catch {
    return 'not JSON';
  }
}

test(`what comes in pieces is read as JSON.parse reads the whole (seed ${SEED})`, () => {
  const random = createRandom(SEED);
  let count = 0;
  for (let i = 0; i < length(4000, 200_000); i++) {
    let text = Buffer.from(JSON.stringify(drawn(random), undefined, random.pick([undefined, 1])));
    if (i % 2) {
      const [at, gone] = [random.whole(0, text.length), random.whole(0, 2)];
      text = Buffer.concat([text.subarray(0, at), Buffer.from(random.pick([...PARTS, ''])), text.subarray(at + gone)]);
    }
    if (text.includes('\\\\')) continue; // Then JSON.parse itself confuses names (test/base/json-names.test.ts).
    const whole = expected(text);
    if (whole !== 'not JSON') count++;
    assert.equal(JSON.stringify(parsed(text, random)), JSON.stringify(whole)); // deepEqual would not see an own __proto__.
  }
  assert(count > length(1000, 50_000));
});

async function* inChunks(text: string, bytes = 64 * KIB) {
  const all = Buffer.from(text);
  for (let at = 0; at < all.length; at += bytes) yield all.subarray(at, at + bytes);
}
const read = (text: string, bytesMax = 64 * KIB * KIB) => readJsonAnswer(inChunks(text), bytesMax);

test('of a long list little is parsed at once, and others have a turn in between', async (t) => {
  const item = { Id: 'a'.repeat(64), Labels: { a: 'b'.repeat(1000) }, Ports: [1, 2, 3], Mounts: [{ x: { y: 'z' } }] };
  const list = Array.from({ length: 2000 }, () => item);
  const text = JSON.stringify({ type: 'sync', metadata: list });
  let now = performance.now();
  t.mock.method(performance, 'now', () => (now += 11)); // Each look at the time finds that a turn is due.
  let turns = 0;
  let isOver = false;
  const others = (async () => {
    for (; !isOver; turns++) await nextTurn();
  })();
  const handed: number[] = [];
  const { json } = await readJsonAnswer(inChunks(text), text.length, (it) => {
    handed.push(it.length);
    return JSON.parse(it);
  });
  isOver = true;
  await others;
  assert.deepEqual(json, { type: 'sync', metadata: list });
  assert(Math.max(...handed) < 1100, `${Math.max(...handed)} bytes in one parse`);
  assert(turns >= text.length / (16 * KIB), `${turns} turns for ${text.length} bytes`);
});

test('what is more than is read is refused, and not taken for something shorter', async () => {
  const long = 'a'.repeat(128 * KIB);
  await assert.rejects(read('[1,2]', 4), /longer than 4 bytes/);
  await assert.rejects(read(JSON.stringify([[[[{ long }]]]])), /a value longer than 131072 bytes/);
  await assert.rejects(read(`[${'0,'.repeat(10_000)}0]`), /more than 10000 members/);
  const object = Object.fromEntries(Array.from({ length: 10_001 }, (_, i) => [i, 0]));
  await assert.rejects(read(JSON.stringify({ object })), /more than 10000 members/);
  for (const parts of ['0,'.repeat(8_001), '[],'.repeat(4_001), '['.repeat(8_002)])
    await assert.rejects(read(`[[[[[${parts}`), /a value with more than 8000 parts/);
  const items = Array.from({ length: 260 }, () => `[[[[${'0,'.repeat(7_900)}0]]]]`);
  await assert.rejects(read(`[${items}]`), /more than 2000000 values/);
  const broken = async function* () {
    yield Buffer.from('[]');
    throw new Error('broken off');
  };
  await assert.rejects(readJsonAnswer(broken(), 100), /broken off/);
});

test('what is not JSON has a beginning, and is read to its end', async () => {
  const { json, beginning, length: bytes } = await read(`<html>${'a'.repeat(200 * KIB)}`);
  assert.equal(json, undefined);
  assert.match(beginning, /^<html>a{4090}$/);
  assert.equal(bytes, 200 * KIB + 6);
  for (const text of ['', ' ', '[1', '{"a":', '"a']) assert.equal((await read(text)).json, undefined);
  assert.equal((await read(' 17 ')).json, 17);
});
