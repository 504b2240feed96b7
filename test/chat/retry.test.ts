import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import http from 'node:http';
import test from 'node:test';
import { findAnswer } from '../../src/ledger/operation.ts';
import { formatUsd, Nanos } from '../../src/money.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { createRandom, SEED } from '../helper/random.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, completionStream, counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, gate, type Handler, hang, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

/** Prompt 10 and completion 5 tokens of the model `chat`, and its price for a request. */
const CHARGE = 10n * 1000n + 5n * 2000n + 100_000n;
const UNDELIVERED_SECONDS = 600;
const BODY = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };

/** A client without a key that may leave at any time. `answer` resolves with undefined once it has left. */
type Heard = { status: number; headers: http.IncomingHttpHeaders; text: string };
type Client = { answer: Promise<Heard | undefined>; leave(): void };

function call(purser: TestServer, gateway: Pick<Gateway, 'key'>, body: object = {}, headers: object = {}): Client {
  const request = http.request(`${purser.url}/v1/router/chat/completions`, {
    method: 'POST',
    agent: false,
    headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json', ...headers },
  });
  const answer = new Promise<Heard | undefined>((resolve) => {
    request.on('error', () => resolve(undefined));
    request.on('response', async (response) => {
      try {
        const chunks: Buffer[] = [];
        for await (const chunk of response) chunks.push(chunk);
        const { statusCode, headers } = response;
        resolve({ status: statusCode as number, headers, text: Buffer.concat(chunks).toString() });
      } catch {
        resolve(undefined);
      }
    });
  });
  request.end(JSON.stringify({ ...BODY, ...body }));
  return { answer, leave: () => void request.destroy() };
}

const vacant = (purser: TestServer, count = 1) =>
  until('so many retries wait for nobody', () => purser.app.retries.vacantCount() === count);

async function operationsOf(purser: TestServer) {
  return (await purser.run('operation.list', {})).operations;
}

for (const stream of [false, true])
  test(`a retry joins the attempt that its client has left, ${stream ? 'streamed' : 'whole'}: one call, one charge`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    const slow = gate(stream ? completionStream() : completion());
    purser.upstream.handle = slow.handler;
    const first = call(purser, gateway, { stream });
    await purser.upstream.arrived(1);
    first.leave();
    await vacant(purser);
    const second = call(purser, gateway, { stream });
    await vacant(purser, 0);
    slow.open();
    const answer = await second.answer;
    assert.equal(answer?.status, 200);
    assert.match(answer?.text as string, stream ? /hel[\s\S]*lo[\s\S]*\[DONE\]/ : /hello/);
    await gateway.quiet();
    assert.equal(purser.upstream.calls.length, 1);
    assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [CHARGE, 0n]);
    purser.upstream.handle = stream ? completionStream() : completion();
    assert.equal((await call(purser, gateway, { stream }).answer)?.status, 200);
    assert.equal(purser.upstream.calls.length, 2, 'what was delivered is not given again');
    assert.deepEqual(purser.problems(), []);
  });

for (const stream of [false, true])
  test(`an answer that was paid and not delivered is given to one retry, ${stream ? 'streamed' : 'whole'}`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    const slow = gate(stream ? completionStream() : completion());
    purser.upstream.handle = slow.handler;
    const first = call(purser, gateway, { stream });
    await purser.upstream.arrived(1);
    first.leave();
    await vacant(purser);
    slow.open();
    await gateway.quiet();
    assert.equal(purser.wallet(gateway.walletId).spent, CHARGE);
    const second = await call(purser, gateway, { stream }).answer;
    assert.match(second?.text as string, stream ? /hel[\s\S]*lo[\s\S]*\[DONE\]/ : /hello/);
    assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [1, CHARGE]);
    const third = await call(purser, gateway, { stream }).answer;
    assert.equal(third?.status, 200);
    assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [2, 2n * CHARGE]);
  });

test('a stream that lost its client half-way is given whole, byte for byte', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const half = Promise.withResolvers<void>();
  const events = [said('one '), said('two '), said('x'.repeat(100_000)), FINISHED];
  const [head = '', ...rest] = events;
  purser.upstream.handle = streaming(head, () => half.promise, ...rest, counted(), DONE);
  const stream = await gateway.stream();
  assert.match((await stream.next()) as string, /one/);
  stream.leave();
  await vacant(purser);
  half.resolve();
  await gateway.quiet();
  const retry = await gateway.stream();
  assert.equal(await retry.rest(), events.join('') + DONE);
  assert.equal(retry.headers['idempotent-replayed'], 'true');
  assert.equal(purser.upstream.calls.length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a retry that goes, too, leaves its place to the next', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const slow = gate();
  purser.upstream.handle = slow.handler;
  for (let i = 0; i < 4; i++) {
    const client = call(purser, gateway);
    await (i ? vacant(purser, 0) : purser.upstream.arrived(1));
    client.leave();
    await vacant(purser);
  }
  const last = call(purser, gateway);
  await vacant(purser, 0);
  slow.open();
  assert.equal((await last.answer)?.status, 200);
  assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [1, CHARGE]);
});

for (const stream of [false, true])
  test(`a retry that joined and goes while it is answered leaves the answer to the next, ${stream ? 'streamed' : 'whole'}`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    // More than connections buffer: it cannot have been delivered.
    const piece = 'x'.repeat(100_000);
    const slow = gate(
      stream
        ? streaming(said('one'), ...Array<string>(300).fill(said(piece)), FINISHED, counted(), DONE)
        : (_, response) => {
            const message = { role: 'assistant', content: piece.repeat(200) };
            const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
            response.writeHead(200, { 'content-type': 'application/json' });
            response.end(JSON.stringify({ choices: [{ index: 0, message, finish_reason: 'stop' }], usage }));
          },
    );
    purser.upstream.handle = slow.handler;
    const first = call(purser, gateway, { stream });
    await purser.upstream.arrived(1);
    first.leave();
    await vacant(purser);
    const second = http.request(`${purser.url}/v1/router/chat/completions`, {
      method: 'POST',
      agent: false,
      headers: { authorization: `Bearer ${gateway.key}`, 'content-type': 'application/json' },
    });
    second.on('error', () => {});
    const head = new Promise((resolve) => second.on('response', resolve)); // And nothing after it.
    second.end(JSON.stringify({ ...BODY, stream }));
    await vacant(purser, 0);
    slow.open();
    await head;
    second.destroy();
    await gateway.quiet();
    await vacant(purser);
    const third = await call(purser, gateway, { stream }).answer;
    assert.deepEqual([third?.status, third?.headers['idempotent-replayed']], [200, 'true']);
    assert((third?.text.length as number) > 20_000_000);
    assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [1, CHARGE]);
    assert.deepEqual(purser.problems(), []);
  });

test('what the operator charged is what every sentence about it says, and a part of an answer is the last of it', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway, { stream: true }).answer;
  const [operation] = await operationsOf(purser);
  await purser.run('operation.resolve', { id: operation?.id as string, decision: 'charge', reason: 'test' });
  const { spent } = purser.wallet(gateway.walletId);
  const charged = `${formatUsd(spent)} USD were charged`;
  const unknown = await call(purser, gateway, { stream: true }).answer;
  assert(unknown?.text.includes(`${charged} for it.`), unknown?.text);
  purser.upstream.handle = failure(429);
  const refused = await call(purser, gateway, { stream: true }).answer;
  assert(refused?.text.includes(`${charged} for the earlier attempt.`), refused?.text);
  purser.upstream.handle = streaming(said('hel'), said('lo'), breakOff);
  const broken = await call(purser, gateway, { stream: true }).answer;
  assert.match(broken?.text as string, /hel[\s\S]*lo[\s\S]*answer_lost/);
  assert(broken?.text.includes(`${charged} for it`), broken?.text);
  assert.equal(purser.wallet(gateway.walletId).spent, spent);
  purser.upstream.handle = completionStream();
  assert.equal((await call(purser, gateway, { stream: true }).answer)?.status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent, spent + CHARGE, 'a new request');
  assert.equal((await operationsOf(purser)).length, 2);
  assert.deepEqual(purser.problems(), []);
});

test('ten minutes later an answer that was not delivered is gone: the retry is a new request', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { expires_in_seconds: 0 } });
  for (const [seconds, calls] of [
    [UNDELIVERED_SECONDS - 1, 1],
    [UNDELIVERED_SECONDS, 2],
  ] as const) {
    const slow = gate();
    purser.upstream.handle = slow.handler;
    purser.upstream.calls.length = 0;
    const first = call(purser, gateway);
    await purser.upstream.arrived(1);
    first.leave();
    await vacant(purser);
    slow.open();
    await gateway.quiet();
    purser.clock.advance(seconds);
    assert.equal((await call(purser, gateway).answer)?.status, 200);
    assert.equal(purser.upstream.calls.length, calls, `${seconds} s`);
  }
});

test('two live clients that ask the same at the same time are two requests', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const clients = [call(purser, gateway), call(purser, gateway)];
  await purser.upstream.arrived(2);
  slow.open();
  for (const { answer } of clients) assert.equal((await answer)?.status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent, 2n * CHARGE);
});

test('of two retries at once one takes the vacant place, the other is a new request', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const first = call(purser, gateway);
  await purser.upstream.arrived(1);
  first.leave();
  await vacant(purser);
  const retries = [call(purser, gateway), call(purser, gateway)];
  await purser.upstream.arrived(2);
  slow.open();
  for (const { answer } of retries) assert.equal((await answer)?.status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent, 2n * CHARGE);
});

test('a retry that is refused for its tag leaves the place to the next', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  assert.equal((await call(purser, gateway).answer)?.status, 503);
  purser.upstream.handle = completion();
  const tag = { 'x-purser-tag-a': 'x'.repeat(500) };
  assert.equal((await call(purser, gateway, {}, tag).answer)?.status, 400);
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [CHARGE, 0n]);
});

test('another gateway key, another body and an Idempotency-Key have nothing to do with it', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { body } = await purser.ask('POST', '/v1/router/key', { token: gateway.token, body: { models: ['chat'] } });
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const first = call(purser, gateway);
  await purser.upstream.arrived(1);
  first.leave();
  await vacant(purser);
  slow.open();
  await gateway.quiet();
  const others = [
    call(purser, { key: body.api_key }),
    call(purser, gateway, { temperature: 0 }),
    call(purser, gateway, {}, { 'idempotency-key': 'k' }),
  ];
  for (const { answer } of others) assert.equal((await answer)?.status, 200);
  assert.equal(purser.upstream.calls.length, 4);
});

test('an uncertain outcome that was delivered: the retry asks again on the same hold, and that is charged', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  const first = await call(purser, gateway).answer;
  assert.match(first?.text as string, /takes the place of this one.*operation_uncertain/s);
  const { held } = purser.wallet(gateway.walletId);
  assert(held > CHARGE);

  purser.upstream.handle = failure(429);
  assert.equal((await call(purser, gateway).answer)?.status, 429);
  assert.equal(purser.wallet(gateway.walletId).held, held, 'a refusal says nothing of the first attempt');
  purser.upstream.handle = reset;
  assert.match((await call(purser, gateway).answer)?.text as string, /operation_uncertain/);
  assert.equal(purser.wallet(gateway.walletId).held, held);

  purser.upstream.handle = completion();
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [CHARGE, 0n]);
  const operations = await operationsOf(purser);
  assert.equal(operations.length, 1);
  const keys = purser.upstream.calls.map(({ headers }) => headers['idempotency-key']);
  assert.deepEqual(
    new Set(keys),
    new Set([operations[0]?.id]),
    'a server that knows idempotency keys may answer again',
  );
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent, 2n * CHARGE, 'after that it is a new request');
  assert.deepEqual(purser.problems(), []);
});

test('a hold that is being asked for again is left alone by its policy and by the operator', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway).answer;
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const retry = call(purser, gateway);
  await purser.upstream.arrived(2);
  purser.clock.advance(1000);
  await purser.app.reaper.runOnce();
  const [operation] = await operationsOf(purser);
  assert.equal(operation?.state, 'uncertain');
  await assert.rejects(
    purser.run('operation.resolve', { id: operation?.id as string, decision: 'charge', reason: 'test' }),
    /still running/,
  );
  slow.open();
  assert.equal((await retry.answer)?.status, 200);
  assert.equal(purser.wallet(gateway.walletId).spent, CHARGE);
});

test('what the wallet may not spend now, a retry may not either: its hold stays as it is', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway).answer;
  const { held } = purser.wallet(gateway.walletId);
  await purser.run('account.suspend', { id: purser.accountId });
  assert.match((await call(purser, gateway).answer)?.text as string, /account_suspended/);
  assert.equal(purser.upstream.calls.length, 1);
  await purser.run('account.resume', { id: purser.accountId });
  purser.upstream.handle = completion();
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert(purser.wallet(gateway.walletId).spent < held);
  assert.equal((await operationsOf(purser)).length, 1);
});

/** Nine failures, seven seconds apart, as the clients of an agent's loop repeat them; the policy charges after ten. */
for (const [what, handler, stream] of [
  ['a proxy answers 502', failure(502, '<html>Bad Gateway</html>'), false],
  ['the model server resets', reset, false],
  ['the model server resets', reset, true],
] as const)
  test(`${what} nine times, ${stream ? 'streamed' : 'whole'}: at most one hold, and the answer is part of it`, async (t) => {
    const purser = await openTestServer(t, {
      change: (all) => ({ ...all, router: { ...all.router, uncertain: { after_seconds: 10, policy: 'charge' } } }),
    });
    const gateway = await openGateway(purser);
    purser.upstream.handle = handler;
    let max = 0n;
    let hold = 0n;
    for (let i = 0; i < 9; i++) {
      assert.equal((await call(purser, gateway, { stream }).answer)?.status, 503);
      const { held, spent } = purser.wallet(gateway.walletId);
      hold ||= held;
      if (held + spent > max) max = held + spent;
      purser.clock.advance(7);
      await purser.app.reaper.runOnce();
    }
    assert.equal(max, hold);
    const { spent } = purser.wallet(gateway.walletId);
    assert.equal(spent, hold);
    assert.equal(hold > 0n, handler === reset);
    purser.clock.advance(60);
    purser.upstream.handle = stream ? completionStream() : completion();
    assert.equal((await call(purser, gateway, { stream }).answer)?.status, 200);
    assert.equal(
      purser.wallet(gateway.walletId).spent,
      handler === reset ? hold : CHARGE,
      'what was charged in full is paid',
    );
    assert.equal((await call(purser, gateway, { stream }).answer)?.status, 200);
    assert.equal(purser.wallet(gateway.walletId).spent, handler === reset ? hold + CHARGE : 2n * CHARGE);
    assert.deepEqual(purser.problems(), []);
  });

test('after a crash a retry takes over the hold of the attempt that was in flight', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = hang;
  const first = call(purser, gateway);
  await purser.upstream.arrived(1);
  first.leave();
  const { held } = purser.wallet(gateway.walletId);
  await purser.crash(() => {});
  assert.equal(purser.app.retries.vacantCount(), 1);
  purser.upstream.handle = completion();
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [CHARGE, 0n]);
  assert(held > CHARGE);
  assert.equal((await operationsOf(purser)).length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('an answer that was not delivered survives a restart, for one retry', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const first = call(purser, gateway);
  await purser.upstream.arrived(1);
  first.leave();
  await vacant(purser);
  slow.open();
  await gateway.quiet();
  await purser.reopen();
  assert.match((await call(purser, gateway).answer)?.text as string, /hello/);
  assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [1, CHARGE]);
  await purser.reopen();
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [2, 2n * CHARGE]);
  assert.deepEqual(purser.problems(), []);
});

test('a price that changed: the hold of before is not taken over', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway).answer;
  const [model] = purser.app.catalogue.list;
  assert(model);
  Object.assign(model, { priceText: `${model.priceText},"changed":true` });
  purser.upstream.handle = completion();
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  const operations = await operationsOf(purser);
  assert.deepEqual(operations.map(({ state }) => state).sort(), ['settled', 'uncertain']);
  assert.deepEqual(purser.problems(), []);
});

test('a new request in place of a hold that does not cover it keeps its place: it is paid once, and says so', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway).answer;
  const [model] = purser.app.catalogue.list;
  assert(model);
  Object.assign(model, { priceText: `${model.priceText},"changed":true` });
  const slow = gate();
  purser.upstream.handle = slow.handler;
  for (let i = 0; i < 3; i++) {
    const client = call(purser, gateway);
    await (i ? vacant(purser, 0) : purser.upstream.arrived(2));
    client.leave();
    await vacant(purser);
  }
  slow.open();
  await gateway.quiet();
  assert.equal(purser.wallet(gateway.walletId).spent, CHARGE);
  const answer = await call(purser, gateway).answer;
  assert.match(answer?.text as string, /hello/);
  assert.equal(answer?.headers['x-purser-cost-usd'], formatUsd(Nanos(CHARGE)));
  assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [2, CHARGE]);
  assert.deepEqual(purser.problems(), []);
});

for (const stream of [false, true])
  test(`what a policy charged is answered once, however often its client leaves half-way, ${stream ? 'streamed' : 'whole'}`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    purser.upstream.handle = reset;
    await call(purser, gateway, { stream }).answer;
    const { held } = purser.wallet(gateway.walletId);
    const [operation] = await operationsOf(purser);
    await purser.run('operation.resolve', { id: operation?.id as string, decision: 'charge', reason: 'test' });
    const slow = gate(stream ? completionStream() : completion());
    purser.upstream.handle = slow.handler;
    const client = call(purser, gateway, { stream });
    await purser.upstream.arrived(2);
    client.leave();
    await vacant(purser);
    slow.open();
    await until(
      'its answer is kept',
      () => findAnswer(purser.app.ledger.read, operation?.id as string, purser.app.clock.now()) !== undefined,
    );
    const answer = await call(purser, gateway, { stream }).answer;
    assert.match(answer?.text as string, stream ? /hel[\s\S]*lo[\s\S]*\[DONE\]/ : /hello/);
    assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [2, held]);
    assert.deepEqual(purser.problems(), []);
  });

test('what a policy charged buys the first answer that begins, though it is too long to be kept for the next client', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway, { stream: true }).answer;
  const { held } = purser.wallet(gateway.walletId);
  const [operation] = await operationsOf(purser);
  await purser.run('operation.resolve', { id: operation?.id as string, decision: 'charge', reason: 'test' });
  purser.upstream.handle = failure(429); // No answer has begun.
  assert.equal((await call(purser, gateway, { stream: true }).answer)?.status, 429);
  const left = Promise.withResolvers<void>();
  const noise = Array.from({ length: 10 }, () => said(randomBytes(1_000_000).toString('base64')));
  purser.upstream.handle = streaming(said('one'), () => left.promise, ...noise, FINISHED, counted(), DONE);
  const stream = await gateway.stream();
  await stream.next();
  stream.leave();
  await vacant(purser);
  left.resolve();
  await gateway.quiet();
  assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [3, held]);
  purser.upstream.handle = completionStream();
  assert.equal((await call(purser, gateway, { max_tokens: 100, stream: true }).answer)?.status, 200);
  assert.deepEqual([purser.upstream.calls.length, purser.wallet(gateway.walletId).spent], [4, held + CHARGE]);
  assert.equal((await operationsOf(purser)).length, 2);
  assert.deepEqual(purser.problems(), []);
});

const WALKS = 3;
for (let walk = 0; walk < WALKS; walk++)
  test(`clients that come, repeat and leave at random: nothing is paid twice (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    const random = createRandom(SEED + walk);
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser, { wallet: { budget_cents: 50_000 } });
    const bodies = Array.from({ length: 3 }, () => randomUUID());
    let answers = 0;
    purser.upstream.handle = async (it, response) => {
      // Resets are rare enough for the circuit to stay closed.
      const handler = random.pick<Handler>([reset, failure(503), ...Array.from({ length: 8 }, () => answering)]);
      for (let turns = random.whole(0, 20); turns; turns--) await new Promise((resolve) => setImmediate(resolve));
      await handler(it, response);
    };
    const answering: Handler = (_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
      response.end(JSON.stringify({ id: `answer ${++answers}`, choices: [{ message: { content: 'hi' } }], usage }));
    };
    const read: string[] = [];
    const running: Promise<void>[] = [];
    for (let i = 0; i < 150; i++) {
      const client = call(purser, gateway, { user: random.pick(bodies) });
      const stay = random.whole(0, 2) > 0;
      const turns = random.whole(0, 30);
      running.push(
        (async () => {
          if (!stay) {
            for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
            client.leave();
          }
          const answer = await client.answer;
          const id = answer && /answer \d+/.exec(answer.text)?.[0];
          if (id) read.push(id);
        })(),
      );
      if (random.whole(0, 3) === 0) await running[random.whole(0, running.length - 1)];
    }
    await Promise.all(running);
    await gateway.quiet();
    assert.equal(new Set(read).size, read.length, 'each answer is given to one client');
    const { spent, held } = purser.wallet(gateway.walletId);
    assert.equal(spent, BigInt(answers) * CHARGE, 'each answer is charged once');
    assert(read.length <= answers);
    const uncertain = (await purser.run('operation.list', { uncertain: true })).operations;
    assert.equal(held === 0n, uncertain.length === 0);
    assert.deepEqual(purser.problems(), []);
    t.diagnostic(`${answers} answers, ${read.length} read, ${uncertain.length} uncertain`);
  });
