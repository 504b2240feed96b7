import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { ANSWER_READINGS } from '../../src/http/answer-readings.ts';
import { type ModelRequestKind, readModelRequest } from '../../src/http/model-request.ts';
import type { MeasuredFor } from '../../src/router/measure.ts';
import { createPlainText } from '../../src/router/plain-text.ts';
import { createEventSplitter, eventOf } from '../../src/router/sse.ts';
import { createStreamReader } from '../../src/router/stream-reader.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { streaming } from '../helper/sse.ts';

// V8 makes a string of more than 128 KB in new memory, for which the system takes milliseconds. None above 64 KB is made of the
// bytes of a body or of an answer.

const LONGEST = 64 * 1024;

/** Watches how bytes become strings in Purser's own code, and returns the lengths of the long ones. */
function watch(t: TestContext): number[] {
  const long: number[] = [];
  const note = (text: string): string => {
    // The model server and the client of a test are in this process, too: only calls from src count.
    if (text.length > LONGEST) {
      const callers = new Error().stack?.split('\n').slice(1) ?? [];
      if (callers.find((it) => !/node:|no-long-strings|<anonymous>/.test(it))?.includes('/src/'))
        long.push(text.length);
    }
    return text;
  };
  const { toString: written } = Buffer.prototype;
  t.mock.method(Buffer.prototype, 'toString', function (this: Buffer, ...order: Parameters<typeof written>) {
    return note(written.apply(this, order));
  });
  const { decode } = TextDecoder.prototype;
  t.mock.method(
    TextDecoder.prototype,
    'decode',
    function (this: InstanceType<typeof TextDecoder>, ...order: Parameters<typeof decode>) {
      return note(decode.apply(this, order));
    },
  );
  return long;
}

/** Texts of about this many bytes: ASCII, with escapes, and beyond ASCII, in letters and in escapes. */
const TEXTS: [what: string, json: (bytes: number) => string][] = [
  ['ASCII', (bytes) => JSON.stringify('plain text. '.repeat(bytes / 12))],
  ['code', (bytes) => JSON.stringify('if (a < b)\n\treturn "c";\n'.repeat(bytes / 28))],
  ['letters beyond ASCII', (bytes) => JSON.stringify('ключ 鍵 🔑 '.repeat(bytes / 18))],
  ['escaped letters', (bytes) => `"${'\\u043a\\u043b\\ud83d\\udd11'.repeat(bytes / 24)}"`],
];

const model: MeasuredFor = {
  ...{ sellsImages: true, imageUrls: true, enough: 1_000_000, cachesPrompts: false },
  forward: [],
  wires: [],
  isPooled: false,
};
const bodies = (text: (bytes: number) => string): [kind: ModelRequestKind, body: string][] => [
  ['chat', `{"model":"m","messages":[{"role":"user","content":${text(300_000)}}]}`],
  ['routerChat', `{"model":"m","messages":[${Array(20).fill(`{"role":"tool","content":${text(15_000)}}`)}]}`],
  ['routerChat', `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":${text(300_000)}}]}]}`],
  ['routerChat', `{"stop":${text(100_000)},"model":"m","messages":[{"role":"user","content":"hi"}]}`],
  ['messages', `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":${text(300_000)}}]}`],
  ['responses', `{"model":"m","input":[{"role":"user","content":${text(300_000)}}]}`],
  ['embeddings', `{"model":"m","input":[${Array(20).fill(text(15_000))}]}`],
];

for (const [what, text] of TEXTS)
  test(`a body of ${what} is read without long strings`, (t) => {
    const long = watch(t);
    for (const [kind, body] of bodies(text))
      for (const isKeyed of [true, false]) {
        const request = readModelRequest(
          Buffer.from(body),
          { kind, isKeyed },
          () => model,
          () => {},
        );
        assert(!request.invalid && request.measured && !('refused' in request.measured), JSON.stringify(request));
        assert.deepEqual(long, [], kind);
      }
  });

const completion = (text: string) =>
  `{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":${text}},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`;
const chunk = (text: string) => `{"id":"1","choices":[{"index":0,"delta":{"content":${text}},"finish_reason":null}]}`;

for (const [what, text] of TEXTS)
  test(`an answer of ${what} is read without long strings`, (t) => {
    const whole = Buffer.from(completion(text(300_000)));
    const event = Buffer.from(`data: ${chunk(text(300_000))}\n\n`);
    const generated = Buffer.byteLength(JSON.parse(text(300_000)));
    const long = watch(t);
    const read = ANSWER_READINGS.answer(whole, 'chat');
    assert(read?.isAnswer && read.generatedBytes >= generated);
    assert(ANSWER_READINGS.stream(whole, 'chat', 1).heard.isWhole);
    for (const wire of ['messages', 'responses'] as const)
      assert(ANSWER_READINGS.translated(whole, wire, { model: 'm', request: {}, tools: [] }, 'seed'));
    for (const said of [ANSWER_READINGS.event(event, 'chat'), ANSWER_READINGS.last(event, 'chat')])
      assert(typeof said === 'object' && said.generatedBytes >= generated);
    assert.equal(ANSWER_READINGS.chunk(event).native, false);
    const reader = createStreamReader(1);
    for (const it of createEventSplitter(createPlainText()).push(event)) reader.read(it);
    assert(reader.heard().tokensDelivered >= generated);
    assert.deepEqual(long, []);
  });

test('a request of 100 KB and its stream of 100 KB in one event pass the server without long strings', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const content = `ключ ${'plain text. '.repeat(8500)}`;
  const event = eventOf({ choices: [{ index: 0, delta: { content }, finish_reason: 'stop' }] });
  purser.upstream.handle = streaming(event);
  const long = watch(t);
  const { status, text } = await gateway.streamed({ messages: [{ role: 'user', content }] }, 'key');
  assert.equal(status, 200, text);
  assert(text.includes(content));
  assert.deepEqual(long, []);
});
