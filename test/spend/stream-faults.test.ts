import assert from 'node:assert/strict';
import test from 'node:test';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { type House, openHouse } from '../helper/house.ts';
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

const one = async (house: House) => (await house.run('operation.list', {})).operations[0];
const error = (message = 'overloaded') => event({ error: { message, type: 'server_error', code: 503 } });
/** A chunk with a count and with choices, as some servers write the last one. */
const finishedAndCounted = (usage: unknown) =>
  event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], usage });
const USAGE = { prompt_tokens: 10, completion_tokens: 5 };

/** The end is missing, and no last count came before: nobody knows what the upstream counted in the end. */
const UNKNOWN: [how: string, steps: Step[]][] = [
  ['tells of an error', [said('a'), error()]],
  ['tells of an error, and says that this is the end', [said('a'), error(), counted(), DONE]],
  ['tells of an error in a bare sentence', [said('a'), event({ error: 'Request failed during generation' })]],
  ['tells of an error beside its choices', [said('a'), event({ choices: [], error: { message: 'no' } }), DONE]],
  ['is reset', [said('a'), resetIt]],
  ['is closed', [said('a'), breakOff]],
  ['ends without an end', [said('a'), FINISHED]],
  ['ends inside an event', [said('a'), 'data: {"choices":[{"delta":{"conte']],
  ['ends inside the chunk that was to count', [said('a'), FINISHED, counted().slice(0, -20)]],
  ['breaks off after a count of what was so far', [said('a', { usage: USAGE }), breakOff]],
  [
    'breaks off after a count in the middle',
    [counted({ prompt_tokens: 10, completion_tokens: 0 }), said('a'), breakOff],
  ],
  ['sends an event of 10 MB', [said('a'), said('x'.repeat(10_000_000)), FINISHED, counted(), DONE]],
];

test('a stream without its end is uncertain: its client hears of it, and the policy decides', async (t) => {
  const house = await openHouse(t);
  for (const [how, steps] of UNKNOWN)
    await t.test(`it ${how}`, async () => {
      const gateway = await openGateway(house);
      house.upstream.handle = streaming(...steps);
      const { status, text } = await gateway.streamed({}, 'k');
      assert.equal(status, 200);
      const events = text.split('\n\n').filter(Boolean);
      assert(!text.includes('[DONE]'), text.slice(-500));
      const last = JSON.parse((events.at(-1) as string).slice('data: '.length));
      assert.deepEqual(Object.keys(last.error).sort(), ['code', 'message', 'param', 'type']);
      assert.equal(last.error.code, 'operation_uncertain');
      assert.match(last.request_id, /^req_/);
      const { holds, held_usd: held, used_usd: used } = await house.budget(gateway.token);
      assert.deepEqual([holds.length, holds[0].state, used], [1, 'uncertain', '0.00']);

      const calls = house.upstream.calls.length;
      house.upstream.handle = completionStream();
      const again = await gateway.streamed({}, 'k');
      assert.deepEqual([again.status, again.body.error.code], [503, 'operation_uncertain']);
      assert.equal(again.headers['x-should-retry'], 'false');
      assert.equal(house.upstream.calls.length, calls, 'the same key is never sent twice');
      house.clock.advance(901);
      await house.app.reaper.runOnce();
      const lost = await gateway.streamed({}, 'k');
      assert.deepEqual([lost.status, lost.body.error.code], [409, 'answer_lost']);
      const after = await house.budget(gateway.token);
      assert.deepEqual([after.used_usd, after.held_usd], [held, '0.00']);
      assert.deepEqual(house.problems(), []);
    });
});

test('with the policy release a broken stream costs nothing, and its key is free', async (t) => {
  const house = await openHouse(t, {
    change: (settings) => ({ ...settings, router: { ...settings.router, uncertain: { policy: 'release' } } }),
  });
  const gateway = await openGateway(house);
  house.upstream.handle = streaming(said('a'), breakOff);
  await gateway.streamed({}, 'k');
  house.clock.advance(901);
  assert.equal((await house.app.reaper.runOnce()).resolved, 1);
  const budget = await house.budget(gateway.token);
  assert.deepEqual([budget.used_usd, budget.held_usd], ['0.00', '0.00']);
  house.upstream.handle = completionStream();
  assert((await gateway.streamed({}, 'k')).text.endsWith(DONE));
  assert.equal(house.upstream.calls.length, 2);
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
  ['counts twice', [said('a'), counted({ prompt_tokens: 9, completion_tokens: 9 }), counted(), DONE]],
  ['counts, and then says nothing of a count', [counted(), said('a', { usage: null }), DONE]],
  ['ends without its last blank line', [said('a'), counted(), 'data: [DONE]']],
  ['comes with CRLF', [said('a').replaceAll('\n', '\r\n'), counted().replaceAll('\n', '\r\n'), 'data: [DONE]\r\n\r\n']],
  [
    'counts in data of several lines',
    ['data: {"choices":[],\ndata: "usage":{"prompt_tokens":10,\ndata: "completion_tokens":5}}\n\n', DONE],
  ],
  ['begins with a byte order mark', [`\ufeff${counted()}`, DONE]],
];
test('what was counted last is the charge', async (t) => {
  const house = await openHouse(t);
  for (const [how, steps] of CHARGED)
    await t.test(`it ${how}`, async () => {
      const gateway = await openGateway(house);
      house.upstream.handle = streaming(...steps);
      const { text } = await gateway.streamed();
      assert(text.endsWith(DONE), text);
      const { holds, used_usd: used } = await house.budget(gateway.token);
      assert.deepEqual([used, holds], ['0.00012', []]);
      assert.deepEqual(house.problems(), []);
    });
});

/** It came to its end, and what it says of its usage cannot be: the whole hold is charged. */
const HELD: [what: string, usage: unknown][] = [
  ['no usage', undefined],
  ['a usage of null', null],
  ['a usage as a list', [10, 5]],
  ['a usage as strings', { prompt_tokens: '10', completion_tokens: '5' }],
  ['a negative usage', { prompt_tokens: 10, completion_tokens: -5 }],
  ['a fractional usage', { prompt_tokens: 10.5, completion_tokens: 5 }],
  ['half a usage', { completion_tokens: 5 }],
  ['a usage beyond all numbers', { prompt_tokens: 10, completion_tokens: 1e300 }],
  ['more cached tokens than tokens', { ...USAGE, prompt_tokens_details: { cached_tokens: 11 } }],
  ['more reasoning than completion', { ...USAGE, completion_tokens_details: { reasoning_tokens: 6 } }],
  ['a usage above the bound', { prompt_tokens: 10, completion_tokens: 101 }],
  ['a huge usage', { prompt_tokens: 2 ** 40, completion_tokens: 2 ** 52 }],
];
test('a stream whose usage cannot be is charged at the hold', async (t) => {
  const house = await openHouse(t);
  for (const [what, usage] of HELD)
    await t.test(what, async () => {
      const before = house.log.filter((line) => line.includes('operation.bound_exceeded')).length;
      const gateway = await openGateway(house);
      house.upstream.handle = streaming(said('a'), FINISHED, ...(usage === undefined ? [] : [counted(usage)]), DONE);
      const { text } = await gateway.streamed();
      assert(text.endsWith(DONE));
      const operation = await one(house);
      assert.equal(operation?.charge_usd, operation?.hold_usd);
      assert.equal(house.wallet(gateway.walletId).held, 0n);
      const exceeded = house.log.filter((line) => line.includes('operation.bound_exceeded')).length - before;
      assert.equal(exceeded, /above|huge/.test(what) ? 1 : 0);
      assert.deepEqual(house.problems(), []);
    });
});

test('of two counts the last one stands, even where it is none', async (t) => {
  const house = await openHouse(t);
  const gateway = await openGateway(house);
  house.upstream.handle = streaming(counted(), counted({ prompt_tokens: '10' }), DONE);
  await gateway.streamed();
  const operation = await one(house);
  assert.equal(operation?.charge_usd, operation?.hold_usd);
});

/** A clear no before the first event: an ordinary refusal, nothing is charged, and the key is free. */
const REFUSED: [what: string, handler: ReturnType<typeof failure>, status: number, code: string][] = [
  ['answers 400', failure(400), 400, 'invalid_request'],
  ['answers 401', failure(401), 503, 'gateway_unavailable'],
  ['answers 429', failure(429), 429, 'rate_limited'],
  ['answers 503 with a readable error', failure(503), 503, 'gateway_unavailable'],
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
  const house = await openHouse(t);
  for (const [what, handler, status, code] of REFUSED)
    await t.test(`it ${what}`, async () => {
      const gateway = await openGateway(house);
      house.upstream.handle = handler;
      const answer = await gateway.streamed({}, 'k');
      assert.deepEqual([answer.status, answer.body?.error.code], [status, code], answer.text);
      assert.match(String(answer.headers['content-type']), /^application\/json/);
      const { holds, used_usd: used } = await house.budget(gateway.token);
      assert.deepEqual([holds, used], [[], '0.00']);
      house.upstream.handle = completionStream();
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
  ['answers 502', failure(502)],
  ['answers 500 without a readable error', failure(500, 'oops')],
  ['begins with the error 502', streaming(event({ error: { message: 'no', code: 502 } }), DONE)],
  ['is no JSON and no stream', failure(200, '<html>')],
];
test('an unclear answer before the first event is an ordinary 503', async (t) => {
  const house = await openHouse(t);
  for (const [what, handler] of LOST)
    await t.test(`it ${what}`, async () => {
      const gateway = await openGateway(house);
      house.upstream.handle = handler;
      const answer = await gateway.streamed();
      assert.deepEqual([answer.status, answer.body?.error.code], [503, 'operation_uncertain'], answer.text);
      assert.equal(answer.headers['x-should-retry'], 'false');
      assert.equal((await house.budget(gateway.token)).holds[0]?.state, 'uncertain');
    });
});

/** An answer in one piece that cannot be told of in chunks. */
for (const [what, body] of [
  ['an error', { error: { message: 'no' } }],
  ['no choices', { id: 'a', usage: USAGE }],
  ['choices that are none', { choices: {}, usage: USAGE }],
] as const)
  test(`an upstream that answers a stream with ${what} in one piece has not answered`, async (t) => {
    const house = await openHouse(t);
    const gateway = await openGateway(house);
    house.upstream.handle = failure(200, body);
    const { text } = await gateway.streamed();
    assert.match(text, /"code":"operation_uncertain"/);
    assert(!text.includes('[DONE]'));
    assert.equal((await house.budget(gateway.token)).holds[0]?.state, 'uncertain');
  });

/** A house whose upstream has these time limits. */
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
    { timeout_seconds: 1 },
    [
      said('a'),
      ...Array(30)
        .fill([slowly, said('b')])
        .flat(),
    ],
    true,
  ],
  ['a stream that falls silent', { timeout_seconds: 1 }, [said('a'), forever], true],
  ['a head without a first byte', { timeout_seconds: 30, first_byte_timeout_seconds: 1 }, [forever], false],
  ['no first event within the whole time', { timeout_seconds: 1 }, [': a\n\n', forever], false],
];
test('a stream that takes longer than it may is uncertain, whatever it has said by then', async (t) => {
  await Promise.all(
    LATE.map(async ([what, limits, steps, told]) => {
      const house = await openHouse(t, withLimits(limits));
      const gateway = await openGateway(house);
      house.upstream.handle = streaming(...steps, FINISHED, counted(), DONE);
      const answer = await gateway.streamed();
      assert.equal(answer.status, told ? 200 : 503, what);
      assert.match(answer.text, /"code":"operation_uncertain"/, what);
      assert(!answer.text.includes('[DONE]'), what);
      const operation = await one(house);
      assert.equal(operation?.state, 'uncertain', what);
      assert.match(String(operation?.reason), /no (answer|first byte) within 1 s/, what);
    }),
  );
});

test('a first byte in time is enough: the rest may take the whole time', async (t) => {
  const house = await openHouse(t, withLimits({ first_byte_timeout_seconds: 1 }));
  const gateway = await openGateway(house);
  house.upstream.handle = streaming(said('a'), ...Array(12).fill(slowly), FINISHED, counted(), DONE);
  assert((await gateway.streamed()).text.endsWith(DONE));
  house.upstream.handle = completion();
  assert.equal((await gateway.chat()).status, 200);
});

const leave = async (gateway: Gateway) => {
  const stream = await gateway.stream();
  await stream.next();
  stream.leave();
};
test('a stream that breaks when its client has long gone is uncertain all the same', async (t) => {
  const house = await openHouse(t);
  const gateway = await openGateway(house);
  const gone = Promise.withResolvers<void>();
  house.upstream.handle = streaming(said('a'), () => gone.promise, said('b'), breakOff);
  await leave(gateway);
  gone.resolve();
  await gateway.quiet();
  assert.equal((await one(house))?.state, 'uncertain');
  assert.deepEqual(house.problems(), []);
});
