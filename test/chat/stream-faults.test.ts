import assert from 'node:assert/strict';
import test from 'node:test';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import {
  breakOff,
  completionStream,
  counted,
  DONE,
  event,
  FINISHED,
  forever,
  resetIt,
  type Step,
  said,
  streaming,
} from '../helper/sse.ts';
import { completion, failure, halfBody, reset } from '../helper/upstream.ts';

/** A limit of time that is long enough for what has to come within it on a busy machine. */
const LIMIT_SECONDS = 3;

const one = async (purser: TestServer) => (await purser.run('operation.list', {})).operations[0];
const error = (message = 'overloaded') => event({ error: { message, type: 'server_error', code: 503 } });
/** A chunk with a count and with choices, as some servers write the last one. */
const finishedAndCounted = (usage: unknown) =>
  event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], usage });
const USAGE = { prompt_tokens: 10, completion_tokens: 5 };

/** Returns the estimated price of the default chat: the prompt, at its bound unless it was told, and so many tokens. */
async function estimateOf(purser: TestServer, tokens: number, told?: number): Promise<string> {
  const prompt = told ?? Number((await one(purser))?.price.bound_prompt_tokens);
  return formatUsd(Nanos(BigInt(100_000 + prompt * 1000 + tokens * 2000)));
}
const estimates = (purser: TestServer) => purser.log.filter((line) => line.includes('"operation.estimated"')).length;

/** The end is missing, and no last count came before: what was delivered is charged, in tokens of at least a byte each. */
const CUT: [how: string, steps: Step[], tokens: number, prompt?: number][] = [
  ['tells of an error', [said('a'), error()], 1],
  ['tells of an error in a bare sentence', [said('a'), event({ error: 'Request failed during generation' })], 1],
  ['tells of an error beside its choices', [said('a'), event({ choices: [], error: { message: 'no' } }), DONE], 1],
  ['tells of an error, and stays open', [said('ab'), error(), forever], 2],
  ['is reset', [said('a'), resetIt], 1],
  ['is closed', [said('äb'), said('c'), breakOff], 4],
  ['is closed before any text', [said(''), breakOff], 0],
  ['ends inside an event', [said('a'), 'data: {"choices":[{"delta":{"conte'], 1],
  ['ends like a whole body, without an end', [said('a'), said('b')], 2],
  [
    'ends like a whole body, with a count in every chunk',
    [said('ab', { usage: { ...USAGE, completion_tokens: 1 } })],
    2,
    10,
  ],
  ['breaks off after a count of what was so far', [said('a', { usage: USAGE }), breakOff], 5, 10],
  [
    'breaks off after a count in the middle',
    [counted({ prompt_tokens: 10, completion_tokens: 0 }), said('a'), breakOff],
    1,
    10,
  ],
  ['says how one of two choices finished', [said('a'), FINISHED], 1],
  ['sends an event of 10 MB', [said('a'), said('x'.repeat(10_000_000)), FINISHED, counted(), DONE], 1],
];

test('a stream without its end is charged what it delivered: its client hears of it, and so does its key', async (t) => {
  const purser = await openTestServer(t);
  for (const [how, steps, tokens, prompt] of CUT)
    await t.test(`it ${how}`, async () => {
      const gateway = await openGateway(purser);
      const before = estimates(purser);
      purser.upstream.handle = streaming(...steps);
      const body = how.includes('two choices') ? { n: 2 } : {};
      const { status, text } = await gateway.streamed(body, 'k');
      assert.equal(status, 200);
      const events = text.split('\n\n').filter(Boolean);
      assert(!text.includes('[DONE]'), text.slice(-500));
      const last = JSON.parse((events.at(-1) as string).slice('data: '.length));
      assert.deepEqual(Object.keys(last.error).sort(), ['code', 'message', 'param', 'type']);
      assert.equal(last.error.code, 'answer_lost');
      assert.match(last.request_id, /^req_/);
      const charged = await estimateOf(purser, tokens, prompt);
      assert(last.error.message.includes(`${charged} USD were charged`), text.slice(-500));
      const { holds, used_usd: used } = await purser.budget(gateway.token);
      assert.deepEqual([used, holds], [charged, []]);
      const operation = await one(purser);
      assert.deepEqual([operation?.outcome, operation?.settled_by], ['charged', 'answer']);
      const counts = { prompt_tokens: prompt ?? operation?.price.bound_prompt_tokens, completion_tokens: tokens };
      assert.deepEqual(operation?.usage, { estimated: true, ...counts });
      assert.equal(estimates(purser), before + 1, 'a warning says so');

      const calls = purser.upstream.calls.length;
      purser.upstream.handle = completionStream();
      const again = await gateway.streamed(body, 'k');
      assert.deepEqual([again.status, again.body.error.code], [409, 'answer_lost']);
      assert(again.body.error.message.includes(`${charged} USD were charged`), again.text);
      assert.equal(again.headers['x-should-retry'], 'false');
      assert.equal(purser.upstream.calls.length, calls, 'the same key is never sent twice');
      assert.deepEqual(purser.problems(), []);
    });
});

test('a count that follows an error is the charge of what was cut', async (t) => {
  const purser = await openTestServer(t);
  for (const steps of [
    [said('a'), error(), counted(), DONE],
    [said('a'), error(), counted()],
    [said('a'), event({ error: { message: 'no' }, usage: USAGE })],
  ]) {
    const gateway = await openGateway(purser);
    purser.upstream.handle = streaming(...steps);
    const { text } = await gateway.streamed();
    assert.match(text, /"code":"answer_lost"/);
    assert(!text.includes('[DONE]'));
    assert.equal((await purser.budget(gateway.token)).used_usd, '0.00012');
  }
  assert.equal(estimates(purser), 0);
});

test('an agent that reads slowly until the time is over pays for what it got, whatever the policy', async (t) => {
  for (const policy of ['charge', 'release']) {
    const purser = await openTestServer(t, {
      change: (settings) => ({
        ...settings,
        router: {
          ...settings.router,
          uncertain: { policy },
          upstreams: [{ ...settings.router.upstreams[0], timeout_seconds: LIMIT_SECONDS }],
        },
      }),
    });
    const gateway = await openGateway(purser);
    purser.upstream.handle = streaming(said('a'.repeat(50)), forever);
    await gateway.streamed({}, 'k');
    const charged = await estimateOf(purser, 50);
    purser.clock.advance(901);
    assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
    const budget = await purser.budget(gateway.token);
    assert.deepEqual([budget.used_usd, budget.held_usd], [charged, '0.00']);
  }
});

/** What was counted is the charge, though the end is not as it should be. */
const CHARGED: [how: string, steps: Step[]][] = [
  ['is reset after its last count', [said('a'), counted(), resetIt]],
  ['is closed after its last count', [said('a'), counted(), breakOff]],
  ['tells of an error after its last count', [said('a'), counted(), error()]],
  ['ends without an end after its last count', [said('a'), counted()]],
  ['counts beside the last choice, and ends without an end', [said('a'), finishedAndCounted(USAGE)]],
  ['counts beside the last choice', [said('a'), finishedAndCounted(USAGE), DONE]],
  ['counts in every chunk', [said('a', { usage: { prompt_tokens: 10, completion_tokens: 1 } }), counted(), DONE]],
  ['counts twice', [said('a'), counted({ prompt_tokens: 10, completion_tokens: 3 }), counted(), DONE]],
  ['counts less the second time', [said('a'), counted(), counted({ prompt_tokens: 9, completion_tokens: 3 }), DONE]],
  ['ends without its last blank line', [said('a'), counted(), 'data: [DONE]']],
  ['comes with CRLF', [said('a').replaceAll('\n', '\r\n'), counted().replaceAll('\n', '\r\n'), 'data: [DONE]\r\n\r\n']],
  [
    'counts in data of several lines',
    ['data: {"choices":[],\ndata: "usage":{"prompt_tokens":10,\ndata: "completion_tokens":5}}\n\n', DONE],
  ],
  ['begins with a byte order mark', [`\ufeff${counted()}`, DONE]],
];
test('what was counted at the end is the charge: the most of each count', async (t) => {
  const purser = await openTestServer(t);
  for (const [how, steps] of CHARGED)
    await t.test(`it ${how}`, async () => {
      const gateway = await openGateway(purser);
      purser.upstream.handle = streaming(...steps);
      const { text } = await gateway.streamed();
      assert(text.endsWith(DONE), text);
      const { holds, used_usd: used } = await purser.budget(gateway.token);
      assert.deepEqual([used, holds], ['0.00012', []]);
      assert.deepEqual(purser.problems(), []);
    });
});

/** It came to its end, and what it says of its usage is none, or not all of one: 3 bytes of text came. */
const NO_USAGE: [what: string, usage: unknown, told?: { prompt?: number; tokens?: number }][] = [
  ['no usage', undefined],
  ['a usage of null', null],
  ['an empty usage', {}],
  ['a usage as a list', [10, 5]],
  ['a usage as strings', { prompt_tokens: '10', completion_tokens: '5' }],
  ['a negative usage', { prompt_tokens: 10, completion_tokens: -5 }, { prompt: 10 }],
  ['a fractional usage', { prompt_tokens: 10.5, completion_tokens: 5 }, { tokens: 5 }],
  ['half a usage', { completion_tokens: 5 }, { tokens: 5 }],
  ['a usage beyond all numbers', { prompt_tokens: 10, completion_tokens: 1e300 }, { prompt: 10 }],
];
test('a whole stream without a usage is charged what it delivered', async (t) => {
  const purser = await openTestServer(t);
  for (const [what, usage, { prompt, tokens = 3 } = {}] of NO_USAGE)
    for (const end of [[FINISHED, DONE], [DONE], [FINISHED]])
      await t.test(`${what}, ${end.length} events at its end`, async () => {
        const before = estimates(purser);
        const gateway = await openGateway(purser);
        const counts = usage === undefined ? [] : [counted(usage)];
        purser.upstream.handle = streaming(said('abc'), ...end.slice(0, -1), ...counts, ...end.slice(-1));
        const { text } = await gateway.streamed({}, 'k');
        assert(text.endsWith(DONE));
        assert.equal((await purser.budget(gateway.token)).used_usd, await estimateOf(purser, tokens, prompt));
        assert.equal((await one(purser))?.usage?.estimated, true);
        assert.equal(estimates(purser), before + 1);
        assert.equal((await gateway.streamed({}, 'k')).text, text, 'it is replayed like any other');
        assert.deepEqual(purser.problems(), []);
      });
});

/** Text that followed a count is in no count: the charge would be less than what was delivered. */
const STALE: [how: string, steps: Step[], tokens: number][] = [
  ['beside the first chunk', [said('', { usage: { ...USAGE, completion_tokens: 0 } }), said('a'.repeat(40))], 40],
  ['before the first chunk', [counted({ ...USAGE, completion_tokens: 0 }), said('a'.repeat(40))], 40],
  ['before a last word', [said('abcdef'), counted(), said('g')], 7],
  ['of more than the bytes that came', [counted(), said('a', { usage: null })], 5],
];
test('a count that text followed is not the charge of a whole stream', async (t) => {
  const purser = await openTestServer(t);
  for (const [how, steps, tokens] of STALE)
    for (const end of [[FINISHED, DONE], [DONE], [FINISHED]])
      await t.test(`a count ${how}, ${end.length} events at its end`, async () => {
        const gateway = await openGateway(purser);
        purser.upstream.handle = streaming(...steps, ...end);
        assert((await gateway.streamed()).text.endsWith(DONE));
        assert.equal((await purser.budget(gateway.token)).used_usd, await estimateOf(purser, tokens, 10));
        assert.deepEqual(purser.problems(), []);
      });
});

/** All that a model may generate counts, the same reasoning under two names once. */
const DELIVERED: [what: string, delta: object, bytes: number][] = [
  ['content', { content: 'abcd' }, 4],
  ['content with what JSON escapes', { content: 'a"\n\\ü' }, 6],
  ['content that speaks of errors', { content: 'an "error"' }, 10],
  ['content in parts', { content: [{ type: 'text', text: 'abc' }] }, 3],
  ['reasoning', { reasoning_content: 'abcde' }, 5],
  ['reasoning under two names', { reasoning: 'abcde', reasoning_content: 'abcde', content: 'x' }, 6],
  ['a refusal', { refusal: 'no' }, 2],
  ['arguments of a tool', { tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{"a":1}' } }] }, 7],
  ['input of a custom tool', { tool_calls: [{ index: 0, type: 'custom', custom: { name: 'f', input: 'abc' } }] }, 3],
  ['arguments of a function', { function_call: { name: 'f', arguments: '{}' } }, 2],
];
test('content, reasoning and arguments of tools are what was delivered, streamed or not', async (t) => {
  const purser = await openTestServer(t);
  for (const [what, delta, bytes] of DELIVERED)
    for (const stream of [true, false]) {
      const gateway = await openGateway(purser);
      purser.upstream.handle = stream
        ? streaming(event({ choices: [{ index: 0, delta }] }), DONE)
        : failure(200, { choices: [{ index: 0, message: delta }] });
      assert.equal((await gateway.chat({ stream })).status, 200);
      assert.equal((await purser.budget(gateway.token)).used_usd, await estimateOf(purser, bytes), what);
    }
});

test('a usage above its bound raises an alarm and never the bill beyond the hold', async (t) => {
  const purser = await openTestServer(t);
  for (const [usage, charged] of [
    [{ prompt_tokens: 10, completion_tokens: 101 }, '0.000312'],
    [{ prompt_tokens: 2 ** 40, completion_tokens: 2 ** 52 }, undefined],
  ] as const) {
    const before = purser.log.filter((line) => line.includes('operation.bound_exceeded')).length;
    const gateway = await openGateway(purser);
    purser.upstream.handle = streaming(said('a'), FINISHED, counted(usage), DONE);
    assert((await gateway.streamed()).text.endsWith(DONE));
    const operation = await one(purser);
    assert.equal(operation?.charge_usd, charged ?? operation?.hold_usd);
    assert.equal(purser.log.filter((line) => line.includes('operation.bound_exceeded')).length, before + 1);
  }
  assert.deepEqual(purser.problems(), []);
});

test('a usage that can be read is not replaced by one that cannot', async (t) => {
  const purser = await openTestServer(t);
  for (const last of [{}, { prompt_tokens: '10' }, null]) {
    const gateway = await openGateway(purser);
    purser.upstream.handle = streaming(counted(), counted(last), DONE);
    const { text } = await gateway.streamed({ stream_options: { include_usage: true } });
    assert.equal((await purser.budget(gateway.token)).used_usd, '0.00012');
    assert.equal(text, last === null ? counted(null) + counted() + DONE : counted() + DONE);
  }
});

/** A clear no before the first event: an ordinary refusal, nothing is charged, and the key is free. */
const REFUSED: [what: string, handler: ReturnType<typeof failure>, status: number, code: string][] = [
  ['answers 400', failure(400), 400, 'invalid_request'],
  ['answers 401', failure(401), 503, 'gateway_unavailable'],
  ['answers 429', failure(429), 429, 'rate_limited'],
  ['answers 503 with a readable error', failure(503), 503, 'gateway_unavailable'],
  ['answers 500 without a readable error', failure(500, 'oops'), 503, 'gateway_unavailable'],
  ['answers 502', failure(502, '<html>'), 503, 'gateway_unavailable'],
  ['answers 301', failure(301, ''), 503, 'gateway_unavailable'],
  ['answers with an error in one piece', failure(200, { error: { message: 'no' } }), 503, 'gateway_unavailable'],
  ['answers with the error 429 in one piece', failure(200, { error: { code: 429 } }), 429, 'rate_limited'],
  [
    'begins with the error 502',
    streaming(event({ error: { message: 'no', code: 502 } }), DONE),
    503,
    'gateway_unavailable',
  ],
  ['begins with an error', streaming(error(), DONE), 503, 'gateway_unavailable'],
  ['begins with comments and an error', streaming(': a\n\n', ': b\n\n', error()), 503, 'gateway_unavailable'],
  ['begins with an error without a code', streaming(event({ error: { message: 'no' } })), 503, 'gateway_unavailable'],
  ['begins with an error in a word', streaming(event({ error: 'no' })), 503, 'gateway_unavailable'],
  ['begins with the error 400', streaming(event({ error: { message: 'no', code: 400 } })), 400, 'invalid_request'],
  ['begins with the error 429', streaming(event({ error: { message: 'no', code: '429' } })), 429, 'rate_limited'],
  [
    'begins with an object of the kind error',
    streaming(event({ object: 'error', message: 'no', code: 404 })),
    404,
    'model_not_found',
  ],
];
test('a clear no before the first event is an ordinary refusal', async (t) => {
  const purser = await openTestServer(t);
  for (const [what, handler, status, code] of REFUSED)
    await t.test(`it ${what}`, async () => {
      const gateway = await openGateway(purser);
      purser.upstream.handle = handler;
      const answer = await gateway.streamed({}, 'k');
      assert.deepEqual([answer.status, answer.body?.error.code], [status, code], answer.text);
      assert.match(String(answer.headers['content-type']), /^application\/json/);
      const { holds, used_usd: used } = await purser.budget(gateway.token);
      assert.deepEqual([holds, used], [[], '0.00']);
      purser.upstream.handle = completionStream();
      assert((await gateway.streamed({}, 'k')).text.endsWith(DONE));
    });
});

/** Nobody knows, and nothing was told yet: an ordinary 503. */
const LOST: [what: string, handler: ReturnType<typeof failure>][] = [
  ['is reset before it answers', reset],
  ['breaks off before its first event', streaming(breakOff)],
  ['ends before its first event', streaming()],
  ['has nothing but comments', streaming(': a\n\n', ': b\n\n')],
  ['is half a body of JSON', halfBody],
  ['answers 408', failure(408)],
  ['answers 504', failure(504)],
  ['is no JSON and no stream', failure(200, '<html>')],
  ['is a list of choices that is none', failure(200, { choices: {} })],
  ['is an object without choices', failure(200, { detail: 'Model is loading' })],
  ['has nothing but events without choices', streaming(event({}), event({ detail: 'Model is loading' }))],
  ['has nothing but an empty list of choices and its end', streaming(event({ choices: [] }), DONE, forever)],
];
test('an unclear answer before the first event is an ordinary 503', async (t) => {
  const purser = await openTestServer(t);
  for (const [what, handler] of LOST)
    await t.test(`it ${what}`, async () => {
      purser.clock.advance(60); // So that the circuit stays closed.
      const gateway = await openGateway(purser);
      purser.upstream.handle = handler;
      const answer = await gateway.streamed();
      assert.deepEqual([answer.status, answer.body?.error.code], [503, 'operation_uncertain'], answer.text);
      assert.equal(answer.headers['x-should-retry'], 'false');
      assert.equal((await purser.budget(gateway.token)).holds[0]?.state, 'uncertain');
    });
});

test('an upstream that answers a stream without choices in one piece is charged by the usage that it says', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = failure(200, { id: 'a', usage: USAGE }); // It cannot be told of in chunks.
  const { text } = await gateway.streamed();
  assert.match(text, /"code":"answer_lost"/);
  assert(!text.includes('[DONE]'));
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00012');
});

test('what an upstream says before its first choice is passed on with it; an error right after it is a refusal', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const filters = event({ choices: [], prompt_filter_results: [] }); // Azure begins this way.
  purser.upstream.handle = streaming(filters, said('a'), FINISHED, DONE);
  assert.equal((await gateway.streamed()).text, filters + said('a') + FINISHED + DONE);
  purser.upstream.handle = streaming(filters, event({ error: { message: 'no', code: 400 } }), DONE);
  const refused = await gateway.streamed();
  assert.deepEqual([refused.status, refused.body?.error.code], [400, 'invalid_request'], refused.text);
});

/** A purser whose upstream has these time limits. */
const withLimits = (limits: object) => ({
  change: (settings: Record<string, any>) => ({
    ...settings,
    router: { ...settings.router, upstreams: [{ ...settings.router.upstreams[0], ...limits }] },
  }),
});
const slowly: Step = () => new Promise((resolve) => setTimeout(resolve, 100));

/** What runs out of its time, and whether anything was told by then. */
const LATE: [what: string, limits: object, steps: Step[], told: boolean][] = [
  [
    'a stream that never ends',
    { timeout_seconds: LIMIT_SECONDS },
    [
      said('a'),
      ...Array(20 * LIMIT_SECONDS)
        .fill([slowly, said('b')])
        .flat(),
    ],
    true,
  ],
  ['a stream that falls silent', { timeout_seconds: LIMIT_SECONDS }, [said('a'), forever], true],
  ['a head without a first byte', { timeout_seconds: 30, first_byte_timeout_seconds: LIMIT_SECONDS }, [forever], false],
  ['no first event within the whole time', { timeout_seconds: LIMIT_SECONDS }, [': a\n\n', forever], false],
];
test('a stream that takes longer than it may is uncertain until it has begun, and then charged what it delivered', async (t) => {
  await Promise.all(
    LATE.map(async ([what, limits, steps, told]) => {
      const purser = await openTestServer(t, withLimits(limits));
      const gateway = await openGateway(purser);
      purser.upstream.handle = streaming(...steps, FINISHED, counted(), DONE);
      const answer = await gateway.streamed();
      assert.equal(answer.status, told ? 200 : 503, what);
      assert.match(answer.text, told ? /"code":"answer_lost"/ : /"code":"operation_uncertain"/, what);
      assert(!answer.text.includes('[DONE]'), what);
      const operation = await one(purser);
      assert.equal(operation?.state, told ? 'settled' : 'uncertain', what);
      assert.match(String(operation?.reason), /no (answer|first byte) within 3 s/, what);
    }),
  );
});

test('a first byte in time is enough: the rest may take the whole time', async (t) => {
  const purser = await openTestServer(t, withLimits({ first_byte_timeout_seconds: LIMIT_SECONDS }));
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('a'), ...Array(12 * LIMIT_SECONDS).fill(slowly), FINISHED, counted(), DONE);
  assert((await gateway.streamed()).text.endsWith(DONE));
  purser.upstream.handle = completion();
  assert.equal((await gateway.chat()).status, 200);
});

const leave = async (gateway: Gateway) => {
  const stream = await gateway.stream();
  await stream.next();
  stream.leave();
};
test('a stream that breaks when its client has long gone is charged for all that came', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const gone = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('a'), () => gone.promise, said('b'), breakOff);
  await leave(gateway);
  gone.resolve();
  await gateway.quiet();
  assert.equal((await purser.budget(gateway.token)).used_usd, await estimateOf(purser, 2));
  assert.deepEqual(purser.problems(), []);
});
