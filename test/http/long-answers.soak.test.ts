import assert from 'node:assert/strict';
import test from 'node:test';
import { createBlockReader } from '../../src/http/dialects/blocks.ts';
import { plainChunks } from '../../src/http/dialects/chunk.ts';
import { assertLinear } from '../helper/cpu.ts';
import { openGateway } from '../helper/gateway.ts';
import { length } from '../helper/random.ts';
import { openTestServer } from '../helper/server.ts';
import { longestTurn, openClient } from '../helper/turns.ts';

// What a model server answers is read in one turn of the event loop only where it is small (docs/decisions/0072). The limit is that of
// test/http/long-turns.soak.test.ts; without the thread, each of these takes a second or more.
const TURN_MILLISECONDS_MAX = 150;
const MIB = 1024 * 1024;
const EVENT_BYTES = length(1, 7) * MIB;
const ANSWER_BYTES = length(2, 8) * MIB;
/** Of one way in: just below the most that an answer may have. */
const LARGEST_BYTES = length(2, 31) * MIB;

const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
const fill = (piece: string, bytes: number) => piece.repeat(Math.floor(bytes / piece.length));
/** Members that take long to parse, and say nothing. */
const many = (bytes: number) => `"x":[${fill('[],', bytes)}0]`;
const text = (bytes: number) => fill('\\n\\"', bytes);

const chatAnswer = (more: string, content = 'hello') =>
  `{"id":"c",${more},"choices":[{"index":0,"message":{"role":"assistant","content":"${content}"},"finish_reason":"stop"}],"usage":${JSON.stringify(usage)}}`;
const chatEvents = (more: string, content = 'hello') =>
  [
    `{"id":"c",${more},"choices":[{"index":0,"delta":{"content":"${content}"},"finish_reason":null}]}`,
    '{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    `{"id":"c","choices":[],"usage":${JSON.stringify(usage)}}`,
    '[DONE]',
  ]
    .map((it) => `data: ${it}\n\n`)
    .join('');

const ROUTER = '/v1/router';
const asked = { model: 'chat', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] };
/** The requests by which an answer comes in, and through which it leaves. */
const WAYS: [name: string, path: string, body: object, stream: boolean][] = [
  ['a completion', `${ROUTER}/chat/completions`, asked, false],
  ['a completion as a message', `${ROUTER}/messages`, asked, false],
  ['a completion as a response', `${ROUTER}/responses`, { model: 'chat', input: 'hi' }, false],
  ['embeddings', `${ROUTER}/embeddings`, { model: 'embed', input: ['hi'] }, false],
  ['a completion as a stream', `${ROUTER}/chat/completions`, { ...asked, stream: true }, false],
  ['a stream', `${ROUTER}/chat/completions`, { ...asked, stream: true }, true],
  ['a stream as messages', `${ROUTER}/messages`, { ...asked, stream: true }, true],
  ['a stream as responses', `${ROUTER}/responses`, { model: 'chat', input: 'hi', stream: true }, true],
];
const price = { prompt: '0.000001', completion: '0.000002' };

test('no answer of a model server keeps the others waiting, and each costs what its usage says', async (t) => {
  const purser = await openTestServer(t, {
    change: ({ router, ...settings }) => ({
      ...settings,
      router: {
        ...router,
        models: [
          { id: 'chat', upstream: 'local', context_length: 1000, max_output_tokens: 100, pricing: price },
          { id: 'embed', kind: 'embeddings', upstream: 'local', context_length: 1000, pricing: { prompt: '0.000001' } },
        ],
      },
    }),
  });
  const { key, quiet, walletId } = await openGateway(purser, { wallet: { budget_cents: 100 } });
  const client = openClient();
  t.after(() => client.close());
  let answer = Buffer.alloc(0);
  let type = '';
  purser.upstream.handle = (_, response) => response.writeHead(200, { 'content-type': type }).end(answer);
  const spent = async () => {
    await quiet();
    return purser.app.ledger.client
      .prepare(
        "select count(*) as count, sum(charge_nanos) as charge from operation where wallet_id = ? and state = 'settled'",
      )
      .get(walletId) as { count: bigint; charge: bigint };
  };
  const cost = async ([, path, body, stream]: (typeof WAYS)[number], more: string, content?: string) => {
    const embeddings = `{"object":"list",${more},"data":[{"embedding":[0]}],"usage":{"prompt_tokens":10,"total_tokens":10}}`;
    const written = stream ? chatEvents(more, content) : chatAnswer(more, content);
    answer = Buffer.from(path.endsWith('embeddings') ? embeddings : written);
    type = stream ? 'text/event-stream' : 'application/json';
    const before = await spent();
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    let status = 0;
    const turn = await longestTurn(async () => {
      status = await client.post(purser.url + path, headers, Buffer.from(JSON.stringify(body)));
    });
    const after = await spent();
    return { turn, status, charge: (after.charge ?? 0n) - (before.charge ?? 0n) };
  };
  for (const way of WAYS) {
    const [name, , , stream] = way;
    const bytes = stream ? EVENT_BYTES : way === WAYS[0] ? LARGEST_BYTES : ANSWER_BYTES;
    const usual = await cost(way, '"x":0'); // Compiled and connected, too.
    for (const [kind, more, content] of [
      ['many values', many(bytes), undefined],
      ['a long text', '"x":0', text(EVENT_BYTES)],
    ] as const) {
      if (content && name === 'embeddings') continue;
      let turn = Number.POSITIVE_INFINITY;
      // The least of some: a machine whose memory is another's takes its time for pages, now and then.
      for (let i = 0; i < 4 && turn > TURN_MILLISECONDS_MAX / 3; i++) {
        const it = await cost(way, more, content);
        turn = Math.min(turn, it.turn);
        assert.equal(it.status, 200, name);
        // A text longer than what was asked for is charged by the usage all the same.
        assert.equal(it.charge, usual.charge, `${name}, ${kind}`);
      }
      t.diagnostic(`${name}, ${kind}: ${turn.toFixed(0)} ms`);
      assert(turn < TURN_MILLISECONDS_MAX, `${name}, ${kind}: ${turn.toFixed(0)} ms in one turn`);
    }
  }
});

test('the pieces of a call are each looked at once, and so are calls', () => {
  const call = (index: number, args: string, more: object = {}) => ({
    tool_calls: [{ index, function: { arguments: args, ...more } }],
  });
  assertLinear('pieces of arguments while another call waits', 40_000, (count) => () => {
    const reader = createBlockReader();
    reader.read(call(0, '{"a":"', { name: 'f' }));
    reader.read(call(1, '{}', { name: 'g' }));
    for (let i = 0; i < count; i++) reader.read(call(0, 'aaaaaaaaaa'));
    reader.end();
  });
  assertLinear('calls', 12_000, (count) => () => {
    const reader = createBlockReader();
    for (let i = 0; i < count; i++) reader.read(call(i, '{', { name: 'f' }));
    reader.end();
  });
});

test('the small chunks of a large one are translated to the same blocks', () => {
  const long = (it: string) => it.repeat(50_000);
  const delta = {
    reasoning_content: long('é'),
    content: [{ thinking: [{ text: 'a' }] }, { text: long('😀a') }, { text: 'b' }],
    refusal: 'no',
    tool_calls: [
      { id: 'x', function: { name: 'f', arguments: `{"a":"${long('b')}"}` } },
      { index: 7, function: { name: 'g', arguments: { a: long('c') } } },
    ],
  };
  const chunk = { id: 'c', created: 1, usage, choices: [{ delta, finish_reason: 'stop', stop_reason: 'x' }] };
  const blocksOf = (deltas: unknown[]) => {
    const reader = createBlockReader();
    for (const it of deltas) reader.read(it);
    reader.end();
    return reader.blocks.map(({ kind, index, id, name, text }) => ({ kind, index, id, name, text }));
  };
  const chunks = plainChunks(chunk);
  const deltas = chunks.map(({ choices }) => (choices as { delta: unknown }[])[0]?.delta);
  assert.deepEqual(blocksOf(deltas), blocksOf([delta]));
  assert(chunks.every((it) => JSON.stringify(it).length < 200_000));
  const { choices, ...head } = chunks.at(-1) as { choices: unknown };
  assert.deepEqual(head, { id: 'c', created: 1, usage });
  assert.deepEqual(choices, [{ delta: {}, finish_reason: 'stop', stop_reason: 'x' }]);
});
