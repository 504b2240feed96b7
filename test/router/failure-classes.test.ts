import assert from 'node:assert/strict';
import test from 'node:test';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { randomFrom, SEED } from '../helper/random.ts';
import { type Answer, openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, completionStream, counted, DONE, event, resetIt, said, streaming } from '../helper/sse.ts';
import { completion, type FakeUpstream, failure, gate, halfBody, reset } from '../helper/upstream.ts';

/**
 * What went wrong at other gateways, class by class, as a test. Wrong and unknown prices are in prices.test.ts, what a
 * client's going away does in spend/stream.test.ts, and what a kill does to a stream in executable/streams.test.ts.
 */

const NOTHING = { prompt_tokens: 0, completion_tokens: 0 };
/** Answers streamed or not, as it is asked. */
const both =
  (usage?: object): FakeUpstream['handle'] =>
  (call, response) =>
    (call.body.stream ? completionStream(usage) : completion(usage))(call, response);
const countBy = (answers: Answer[]) => {
  const counts: Record<string, number> = {};
  for (const it of answers) {
    const name = it.status < 300 ? String(it.status) : `${it.status} ${it.body.error.code}`;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
};
const isStream = (i: number) => i % 2 === 0;

test('overspend by concurrency: 50 streams and 50 plain requests at once, with a fresh key, on credit for 7', async (t) => {
  const purser = await openTestServer(t);
  const held = gate(both());
  purser.upstream.handle = held.handler;
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  const refused = Promise.withResolvers<void>();
  let waiting = 93;
  const asked = Array.from({ length: 100 }, async (_, i) => {
    const answer = await gateway.chat({ model: 'dear', max_tokens: 14, stream: isStream(i) }); // 0.14 each
    waiting--;
    if (waiting === 0) refused.resolve();
    return answer;
  });
  await purser.upstream.arrived(7);
  await refused.promise; // They do not wait for those that are granted.
  held.open();
  const answers = await Promise.all(asked);
  assert.deepEqual(countBy(answers), { '200': 7, '429 funds_held': 93 });
  assert.equal(purser.upstream.calls.length, 7);
  const wallet = purser.wallet(gateway.walletId);
  assert.deepEqual([wallet.spent, wallet.held], [7n * 5n * 10_000_000n, 0n]); // five tokens each
  assert.deepEqual(purser.problems(), []);
});

test('overspend by concurrency: many keys and the wallet’s own token are one budget', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  const keys = await Promise.all(
    Array.from({ length: 9 }, async (_, i) => {
      const body = { max_price_usd: `1.${i + 1}` };
      return (await purser.ask('POST', '/v1/router/key', { token: gateway.token, body })).body.api_key as string;
    }),
  );
  purser.upstream.handle = both();
  const asked = Array.from({ length: 300 }, (_, i) => {
    const body = { model: 'flat', messages: [{ role: 'user', content: 'hi' }], stream: isStream(i) }; // 0.01 each
    if (i % 10 === 0) return purser.chat(gateway.token, { model: 'flat' });
    return purser.ask('POST', '/v1/router/chat/completions', { token: keys[i % 9] as string, body });
  });
  const counts = countBy(await Promise.all(asked));
  assert.equal(counts['200'], 100, JSON.stringify(counts));
  const wallet = purser.wallet(gateway.walletId);
  assert.deepEqual([wallet.spent, wallet.held], [1_000_000_000n, 0n]);
  assert.equal(purser.upstream.calls.length, 100);
  assert.deepEqual(purser.problems(), []);
});

/** Every way in which a call may end. */
const ENDS = [
  completion(),
  completion(null),
  failure(400),
  failure(401),
  failure(402),
  failure(404),
  failure(429),
  failure(500),
  failure(502),
  failure(503),
  failure(200, '<html>'),
  failure(200, { error: { message: 'no' } }),
  reset,
  halfBody,
  completionStream(),
  completionStream({ prompt_tokens: -1 }),
  streaming(),
  streaming(DONE),
  streaming(said('a'), DONE),
  streaming(said('a'), breakOff),
  streaming(said('a'), counted(), resetIt),
  streaming(event({ error: { message: 'no' } })),
  streaming(said('a'), event({ error: { message: 'no' } })),
];

test(`leaked holds: after every kind of end nothing is held, in whole nano-dollars (seed ${SEED})`, async (t) => {
  t.diagnostic(`seed ${SEED}`);
  const random = randomFrom(SEED);
  const purser = await openTestServer(t, { unknownCountMax: Infinity });
  await purser.app.reaper.stop();
  const gateway = await openGateway(purser);
  const plan = ENDS.flatMap((handler) => [false, true].map((stream) => ({ handler, stream, at: random() })));
  purser.upstream.handle = (call, response) => ENDS[Number(call.body.seed)]?.(call, response);
  await Promise.all(
    plan
      .sort((a, b) => a.at - b.at)
      .map(({ handler, stream, at }) =>
        gateway.chat({ seed: ENDS.indexOf(handler), stream }, at < 0.5 ? `${at}` : undefined),
      ),
  );
  const { holds, held_usd: held } = await purser.budget(gateway.token);
  assert(holds.length > 0 && holds.every((it: { state: string }) => it.state === 'uncertain'));
  assert.notEqual(held, '0.00');
  purser.clock.advance(901);
  await purser.app.reaper.runOnce();
  const wallet = purser.wallet(gateway.walletId);
  assert.equal(wallet.held, 0n);
  const { operations } = await purser.run('operation.list', {});
  assert(operations.every((it) => it.state === 'settled'));
  assert.deepEqual(purser.problems(), []);
  const closed = await purser.ask('POST', '/v1/run/close', { token: gateway.token });
  assert.equal(closed.body.status, 'closed', 'and it can be closed at once');
});

test('lost rows: whatever became of a call, it has a row, and no row had two calls', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: Infinity });
  const gateway = await openGateway(purser);
  purser.upstream.handle = (call, response) => ENDS[Number(call.body.seed)]?.(call, response);
  await Promise.all(
    ENDS.flatMap((_, seed) => [
      gateway.chat({ seed }),
      gateway.streamed({ seed }),
      leave(gateway, { seed, user: 'leaves' }),
    ]),
  );
  await gateway.quiet();
  const rows = (await purser.run('operation.list', {})).operations.map((it) => it.id);
  const calls = purser.upstream.calls.map((it) => String(it.headers['idempotency-key']));
  assert.equal(calls.length, ENDS.length * 3);
  assert.deepEqual(calls.sort(), rows.sort());
});

/** Asks for a stream, and goes away as soon as its head has come. */
async function leave(gateway: Gateway, body: object): Promise<void> {
  (await gateway.stream(body)).leave();
}

test('retries charged twice: one key is one call and one charge, however many ask at once, and afterwards', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const held = gate(both());
  purser.upstream.handle = held.handler;
  for (const stream of [true, false]) {
    const before = purser.upstream.calls.length;
    const asked = Array.from({ length: 32 }, () => gateway.chat({ stream }, `k${stream}`));
    await purser.upstream.arrived(before + 1);
    held.open();
    const answers = await Promise.all(asked);
    const later = await gateway.chat({ stream }, `k${stream}`);
    assert.equal(new Set([...answers, later].map((it) => it.text)).size, 1, 'byte for byte');
    assert([...answers, later].every((it) => it.status === 200));
    assert.equal(answers.filter((it) => it.headers['idempotent-replayed'] === undefined).length, 1);
    assert.equal(purser.upstream.calls.length, before + 1);
  }
  assert.equal(purser.wallet(gateway.walletId).spent, 2n * 120_000n);
});

test('retries charged twice: an attempt that was refused is not charged, and each has its row', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const handlers = [failure(429), failure(503), completionStream()];
  purser.upstream.handle = (call, response) => handlers.shift()?.(call, response);
  const statuses = [];
  for (let i = 0; i < 3; i++) statuses.push((await gateway.streamed({}, 'k')).status);
  assert.deepEqual(statuses, [429, 503, 200]);
  const { operations } = await purser.run('operation.list', {});
  assert.deepEqual(
    operations.map((it) => [it.idempotency_key, it.outcome]),
    [
      ['k', 'charged'],
      ['k', 'released'],
      ['k', 'released'],
    ],
  );
  assert.equal(purser.wallet(gateway.walletId).spent, 120_000n);
});

/** A model with a long output, at the price of a dear one: its default alone is more than a small wallet has. */
const longOutput = (purser: Record<string, any>) => ({
  ...purser,
  router: {
    ...purser.router,
    models: [
      {
        id: 'chat',
        upstream: 'local',
        context_length: 200_000,
        max_output_tokens: 128_000,
        pricing_per_million: { prompt: '3', completion: '15' },
      },
    ],
  },
});

test('over-reserve: a small wallet can run an ordinary request, and is told which max_tokens does', async (t) => {
  const purser = await openTestServer(t, { change: longOutput });
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  purser.upstream.handle = both(NOTHING);
  const long = 'x'.repeat(20_000);
  for (const stream of [false, true])
    for (const [messages, n] of [
      [[{ role: 'user', content: 'hi' }], 1],
      [[{ role: 'user', content: long }], 1],
      [[{ role: 'user', content: 'hi' }], 3],
    ] as const) {
      const refused = await purser.chat(gateway.token, { messages, n, max_tokens: 128_000 });
      assert.deepEqual([refused.status, refused.body.error.code], [402, 'insufficient_funds']);
      const fits = Number(/with max_tokens (\d+) it would fit/.exec(refused.body.error.message)?.[1]);
      assert(fits >= 10_000, refused.text);
      const ask = async (max: number) => {
        const { status, headers } = await gateway.chat({ messages, n, stream, max_tokens: max });
        assert.equal(status, 200);
        return headers['x-purser-max-tokens'];
      };
      assert.equal(await ask(fits), undefined, `${fits} fits`);
      const most = Number(await ask(fits + 2));
      assert(most >= fits && most < fits + 2, 'and is the most, but for the member that the strict body lacks');
      assert.equal(await ask(128_000), String(most));
      assert.equal((await gateway.chat({ messages, n, stream, max_tokens: 1000 })).status, 200, 'an ordinary request');
    }
  assert.equal(purser.wallet(gateway.walletId).spent, 0n);
});

test('over-reserve: what is held for a stream comes back the moment that it ends', async (t) => {
  const purser = await openTestServer(t, { change: longOutput });
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  purser.upstream.handle = completionStream({ prompt_tokens: 10, completion_tokens: 5 });
  for (
    let i = 0;
    i < 30;
    i++ // Each holds two thirds of the wallet.
  )
    assert((await gateway.streamed({ max_tokens: 45_000 })).text.endsWith(DONE));
  assert.equal(purser.wallet(gateway.walletId).spent, 30n * (10n * 3000n + 5n * 15_000n));
});

test('the provider’s own prepaid runs out: nothing is charged, and the operator can read why', async (t) => {
  const purser: TestServer = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = failure(402, { error: { message: 'Insufficient credits' } });
  for (const stream of [false, true]) {
    const answer = await gateway.chat({ stream });
    assert.deepEqual([answer.status, answer.body.error.code], [503, 'gateway_unavailable']);
    assert(!answer.text.includes('credits'), 'it is no concern of the agent’s');
  }
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [0n, 0n]);
  const told = purser.log.filter((line) => line.includes('operation.released') && line.includes('answered 402'));
  assert.equal(told.length, 2);
});
