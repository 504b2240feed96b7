import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, completionStream, counted, DONE, event, FINISHED, resetIt, said, streaming } from '../helper/sse.ts';
import {
  completion,
  type FakeUpstream,
  failure,
  gate,
  halfBody,
  hang,
  openUpstream,
  reset,
} from '../helper/upstream.ts';

type Handler = FakeUpstream['handle'];
const USAGE = { prompt_tokens: 10, completion_tokens: 5 };

/** Three upstreams of one model, each with a price of its own; `gone` is one that nobody listens to. */
async function openThree(t: TestContext, limits: object = {}) {
  const [two, three] = [await openUpstream(t), await openUpstream(t)];
  const gone = await openUpstream({ after() {} });
  await gone.close();
  const purser = await openTestServer(t, {
    unknownCountMax: Infinity,
    change: (all) => ({
      ...all,
      router: {
        upstreams: [
          { ...all.router.upstreams[0], ...limits },
          { name: 'two', base_url: two.url, api_key: 'sk-of-the-second-one', ...limits },
          { name: 'three', base_url: three.url },
          { name: 'gone', base_url: gone.url },
        ],
        models: [
          {
            id: 'chat',
            upstream: 'local',
            upstream_model: 'one/chat',
            context_length: 32768,
            max_output_tokens: 1000,
            pricing: { prompt: '0.000001', completion: '0.000002' },
            fallbacks: [
              {
                upstream: 'two',
                upstream_model: 'two/chat',
                output_limit: 'max_completion_tokens',
                pricing: { prompt: '0.000003', completion: '0.000005' },
              },
              { upstream: 'three' },
            ],
          },
          {
            id: 'orphan',
            upstream: 'gone',
            context_length: 32768,
            max_output_tokens: 1000,
            pricing: { prompt: '0.000001', completion: '0.000002' },
            fallbacks: [{ upstream: 'two' }],
          },
        ],
      },
    }),
  });
  return { purser, one: purser.upstream, two, three, gateway: await openGateway(purser) };
}
const latest = async (purser: TestServer): Promise<any> => (await purser.run('operation.list', {})).operations[0];
const passedOver = (purser: TestServer) =>
  purser.log.map((line) => JSON.parse(line)).filter((it) => it.event === 'upstream.passed_over');

/** Clear noes that are not about the request: the next one is asked. */
const DEFINITE: [what: string, plain: Handler, streamed: Handler][] = [
  ...[301, 401, 402, 403, 404, 405, 429, 500, 501, 502, 503, 529].map((status): [string, Handler, Handler] => [
    String(status),
    failure(status),
    failure(status),
  ]),
  ['429 and a time to wait', failure(429, {}, { 'retry-after': '60' }), failure(429, {}, { 'retry-after': '60' })],
  ['a page of a proxy', failure(502, '<html>'), failure(503, 'no available server')],
  [
    'an error as its first event',
    failure(200, { error: { message: 'overloaded', code: 502 } }),
    streaming(event({ error: { message: 'overloaded' } })),
  ],
];

test('a clear no that is not about the request is passed over, and the one that answers is charged at its price', async (t) => {
  const { purser, one, two, three, gateway } = await openThree(t);
  for (const [what, plain, streamed] of DEFINITE)
    await t.test(what, async () => {
      for (const stream of [false, true]) {
        const [before, calls] = [purser.wallet(gateway.walletId).spent, [one, two, three].map((it) => it.calls.length)];
        const lines = passedOver(purser).length;
        one.handle = stream ? streamed : plain;
        two.handle = stream ? completionStream(USAGE) : completion(USAGE);
        const answer = await gateway.chat({ stream });
        assert.equal(answer.status, 200, answer.text);
        assert.equal(purser.wallet(gateway.walletId).spent - before, 10n * 3000n + 5n * 5000n);
        const now = [one, two, three].map((it, i) => it.calls.length - (calls[i] as number));
        assert.deepEqual(now, [1, 1, 0]);
        const [first, second] = [one.calls.at(-1), two.calls.at(-1)];
        assert.deepEqual([first?.body.model, first?.body.max_tokens], ['one/chat', 100]);
        assert.deepEqual(
          [second?.body.model, second?.body.max_tokens, second?.body.max_completion_tokens],
          ['two/chat', undefined, 100],
        );
        assert.equal(second?.headers.authorization, 'Bearer sk-of-the-second-one', 'each has its own key');
        assert.equal(second?.headers['idempotency-key'], first?.headers['idempotency-key']);
        const operation = await latest(purser);
        assert.equal(operation.usage.upstream, 'two');
        assert.deepEqual(
          operation.price.routes.map((it: { upstream: string }) => it.upstream),
          ['local', 'two', 'three'],
        );
        assert.deepEqual(
          passedOver(purser)
            .slice(lines)
            .map((it) => [it.upstream, it.operation, it.subject]),
          [['local', operation.id, 'chat']],
        );
      }
    });
  assert.deepEqual(purser.problems(), []);
});

test('the hold is at the dearest of all, and what is left of it comes back', async (t) => {
  const { purser, one, gateway } = await openThree(t);
  const held = gate(completion(USAGE));
  one.handle = held.handler;
  const asked = gateway.chat();
  await one.arrived(1);
  const { held_usd: hold } = await purser.budget(gateway.token);
  const { price } = await latest(purser);
  const nanos = BigInt(price.bound_prompt_tokens) * 3000n + 100n * 5000n;
  assert.equal(hold, `0.${String(nanos).padStart(9, '0')}`.replace(/0+$/, ''));
  held.open();
  await asked;
  assert.equal(purser.wallet(gateway.walletId).spent, 10n * 1000n + 5n * 2000n, 'the first answered, at its own price');
});

test('all refuse: the last no is told, the hold comes back, and the key is free', async (t) => {
  const { purser, one, two, three, gateway } = await openThree(t);
  for (const stream of [false, true]) {
    [one.handle, two.handle, three.handle] = [failure(503), failure(401), failure(429, {}, { 'retry-after': '9' })];
    const answer = await gateway.chat({ stream }, 'k');
    assert.deepEqual([answer.status, answer.body.error.code], [429, 'rate_limited']);
    assert.equal(answer.headers['retry-after'], '9');
    assert.equal(purser.wallet(gateway.walletId).held, 0n);
    assert.equal(purser.wallet(gateway.walletId).spent, 0n);
  }
  assert.deepEqual(
    [one, two, three].map((it) => it.calls.length),
    [2, 2, 2],
    'each once for each attempt',
  );
  assert.deepEqual(
    passedOver(purser).map((it) => it.upstream),
    ['local', 'two', 'local', 'two'],
  );
});

test('a no that is about the request is not carried to the next one', async (t) => {
  const { two, one, gateway } = await openThree(t);
  for (const [status, code] of [
    [400, 'invalid_request'],
    [413, 'payload_too_large'],
    [422, 'invalid_request'],
  ] as const)
    for (const stream of [false, true]) {
      one.handle = failure(status, { error: { message: 'too long' } });
      const answer = await gateway.chat({ stream });
      assert.equal(answer.body.error.code, code);
      assert.match(answer.body.error.message, /too long/);
    }
  assert.equal(two.calls.length, 0);
});

/** Nobody knows what these have done: a second call might be a second generation. */
const AMBIGUOUS: [what: string, plain: Handler, streamed: Handler][] = [
  ['a reset', reset, reset],
  ['half an answer', halfBody, streaming(breakOff)],
  ...[408, 425, 499, 504, 522, 524].map((it): [string, Handler, Handler] => [`${it}`, failure(it), failure(it)]),
  ['a page', failure(200, '<html>'), failure(200, '<html>')],
  ['no answer in its time', hang, hang],
  ['an end before the first event', failure(504), streaming()],
  ['a reset before the first event', reset, streaming(resetIt)],
];
test('after an outcome that nobody knows no other upstream is asked', async (t) => {
  const { purser, one, two, three } = await openThree(t, { timeout_seconds: 3 });
  one.handle = (call, response) => {
    const [, plain, streamed] = AMBIGUOUS[Number(call.body.seed)] as (typeof AMBIGUOUS)[number];
    return call.body.stream ? streamed(call, response) : plain(call, response);
  };
  const cases = AMBIGUOUS.flatMap(([what], seed) => [false, true].map((stream) => ({ what, seed, stream })));
  await Promise.all(
    cases.map(async ({ what, seed, stream }) => {
      const gateway = await openGateway(purser);
      const answer = await gateway.chat({ seed, stream });
      assert.match(answer.text, /"code":"operation_uncertain"/, what);
      assert.equal((await purser.budget(gateway.token)).holds[0]?.state, 'uncertain', what);
    }),
  );
  assert.equal(one.calls.length, AMBIGUOUS.length * 2);
  assert.deepEqual([two.calls.length, three.calls.length], [0, 0]);
  assert.deepEqual(passedOver(purser), []);
});

test('once a stream has begun no other upstream is asked, whatever becomes of it', async (t) => {
  const { purser, one, two, three, gateway } = await openThree(t);
  for (const end of [breakOff, resetIt, event({ error: { message: 'no' } })]) {
    one.handle = streaming(said('a'), end);
    assert.match((await gateway.chat({ stream: true })).text, /"code":"answer_lost"/);
    assert.deepEqual((await latest(purser)).usage.upstream, 'local');
  }
  assert.deepEqual([two.calls.length, three.calls.length], [0, 0]);
});

test('an error in a body that says a time-out is refused, and not asked of another upstream', async (t) => {
  const { purser, one, two, gateway } = await openThree(t);
  one.handle = failure(200, { error: { message: 'timed out', code: 504 } });
  assert.equal((await gateway.chat()).body.error.code, 'gateway_unavailable');
  assert.equal(two.calls.length, 0);
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('an upstream may have a policy of its own for what nobody knows, and it is that of the one that was asked', async (t) => {
  const { purser, one, two, three, gateway } = await openThree(t, {
    uncertain: { policy: 'release', after_seconds: 60 },
  });
  await purser.app.reaper.stop();
  one.handle = reset;
  const first = await gateway.chat({}, 'one');
  assert.match(first.body.error.message, /USD held for it are given back after 60 s/);
  one.handle = failure(503);
  two.handle = failure(503);
  three.handle = reset;
  const second = await gateway.chat({}, 'two');
  assert.match(second.body.error.message, /USD held for it are charged after 900 s/);
  purser.clock.advance(59);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  purser.clock.advance(1);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  assert.deepEqual([(await latest(purser)).state, purser.wallet(gateway.walletId).spent], ['uncertain', 0n]);
  // Closing decides the rest at once, by the policy of each.
  one.handle = reset;
  await gateway.chat({}, 'three');
  await purser.ask('POST', '/v1/run/close', { token: gateway.token });
  const { operations } = await purser.run('operation.list', {});
  assert.deepEqual(operations.map((it) => it.outcome).reverse(), ['released', 'charged', 'released']);
  assert.deepEqual(purser.problems(), []);
});

test('an upstream that nobody listens to is passed over', async (t) => {
  const { purser, two, gateway } = await openThree(t);
  for (const stream of [false, true]) {
    two.handle = stream ? completionStream() : completion();
    assert.equal((await gateway.chat({ model: 'orphan', stream })).status, 200);
    assert.equal(two.calls.at(-1)?.body.model, 'orphan', 'what a fallback leaves out is as in the model');
  }
  const [first] = passedOver(purser);
  assert.equal(first.upstream, 'gone');
  assert.match(first.reason, /ECONNREFUSED/);
});

test('beyond max_concurrent the next upstream is asked, and where there is none it is a 429', async (t) => {
  const { purser, one, two, three, gateway } = await openThree(t, { max_concurrent: 2 });
  const held = gate(completionStream(USAGE));
  for (const it of [one, two, three]) it.handle = held.handler;
  const first = Array.from({ length: 2 }, () => gateway.streamed());
  await one.arrived(2);
  const second = Array.from({ length: 2 }, () => gateway.streamed());
  await two.arrived(2);
  const more = gateway.streamed();
  await three.arrived(1);
  assert.equal(one.calls.length + two.calls.length, 4, 'an upstream that is busy is not asked');
  const orphan = await gateway.chat({ model: 'orphan' });
  assert.deepEqual([orphan.status, orphan.body.error.code], [429, 'rate_limited']);
  assert.deepEqual([orphan.headers['retry-after'], orphan.headers['x-should-retry']], ['1', 'true']);
  held.open();
  for (const answer of await Promise.all([...first, ...second, more])) assert(answer.text.endsWith(DONE));
  const spent = 2n * 20_000n + 2n * (10n * 3000n + 5n * 5000n) + 20_000n;
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [spent, 0n]);
});

test('however a call ends, its place is free again', async (t) => {
  const { purser, one, two, gateway } = await openThree(t, { max_concurrent: 1, timeout_seconds: 3 });
  const ends: [Handler, boolean][] = [
    ...DEFINITE.map(([, , streamed]): [Handler, boolean] => [streamed, true]),
    ...AMBIGUOUS.map(([, , streamed]): [Handler, boolean] => [streamed, true]),
    ...[reset, halfBody, failure(400), failure(502), completion()].map((it): [Handler, boolean] => [it, false]),
    [streaming(said('a'), counted(), resetIt), true],
    [streaming(said('a'), DONE, event({ late: true })), true],
    [completion(), true],
  ];
  two.handle = failure(400);
  for (const [i, [handler, stream]] of ends.entries()) {
    one.handle = handler;
    await gateway.chat({ stream, seed: i });
    assert.equal(one.calls.length, i + 1, 'it was asked, so its place was free');
  }
  // A client that goes away in the middle gives the place back when the call is over.
  const end = Promise.withResolvers<void>();
  one.handle = streaming(said('a'), () => end.promise, FINISHED, counted(), DONE);
  const stream = await gateway.stream();
  await stream.next();
  stream.leave();
  end.resolve();
  await gateway.quiet();
  one.handle = completion();
  assert.equal((await gateway.chat()).status, 200);
  assert.equal(one.calls.length, ends.length + 2);
  assert.deepEqual(purser.problems(), []);
});

test('with several upstreams the max_tokens that is said to fit does fit', async (t) => {
  const two = await openUpstream(t);
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: {
        upstreams: [all.router.upstreams[0], { name: 'two', base_url: two.url }],
        models: [
          {
            id: 'chat',
            upstream: 'local',
            context_length: 32768,
            max_output_tokens: 100_000,
            pricing: { prompt: '0', completion: '0.01' },
            // Dearer for few tokens, cheaper for many.
            fallbacks: [{ upstream: 'two', pricing: { prompt: '0', completion: '0.001', request: '4.00' } }],
          },
        ],
      },
    }),
  });
  for (const [cents, expected] of [
    [1000, 1000], // The first is the dearest.
    [500, 500],
    [420, 200], // 4.00 for the request of the second one, 0.20 for 200 tokens.
    [410, 100],
  ] as const) {
    const gateway = await openGateway(purser, { wallet: { budget_cents: cents } });
    const refused = await purser.chat(gateway.token, { max_tokens: 50_000 });
    assert.deepEqual([refused.status, refused.body.error.code], [402, 'insufficient_funds']);
    const fits = Number(/with max_tokens (\d+) it would fit/.exec(refused.body.error.message)?.[1]);
    assert.equal(fits, expected, refused.text);
    const more = await purser.chat(gateway.token, { max_tokens: fits + 1 });
    assert.equal(more.status, 402);
    purser.upstream.handle = completion({ prompt_tokens: 0, completion_tokens: 0 });
    assert.equal((await gateway.chat({ max_tokens: fits })).status, 200, refused.text);
  }
  const poor = await openGateway(purser, { wallet: { budget_cents: 400 } });
  assert.match((await poor.chat({ max_tokens: 50_000 })).body.error.message, /no max_tokens would make it fit/);
});
