import assert from 'node:assert/strict';
import http from 'node:http';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { completionStream, counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, gate, reset } from '../helper/upstream.ts';
import { BODY, CHARGE, call, vacant } from './retry-shared.ts';

const UNDELIVERED_SECONDS = 600;

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
