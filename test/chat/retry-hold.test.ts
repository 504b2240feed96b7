import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test from 'node:test';
import { formatUsd, Nanos } from '../../src/base/money.ts';
import { findAnswer } from '../../src/ledger/operation.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, completionStream, counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, gate, hang, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { CHARGE, call, vacant } from './retry-shared.ts';

async function operationsOf(purser: TestServer) {
  return (await purser.run('operation.list', {})).operations;
}

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
  assert.equal(purser.app.retries.abandonedCount(), 1);
  purser.upstream.handle = completion();
  assert.equal((await call(purser, gateway).answer)?.status, 200);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [CHARGE, 0n]);
  assert(held > CHARGE);
  assert.equal((await operationsOf(purser)).length, 1);
  assert.deepEqual(purser.problems(), []);
});

/** Changes the price of the first model, as a reload does. */
function changePrice(purser: TestServer): void {
  const [model] = purser.app.catalogue.list;
  assert(model);
  Object.assign(model, { prices: { ...model.prices, changed: true } });
}

test('a price that changed: the hold of before is not taken over', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = reset;
  await call(purser, gateway).answer;
  changePrice(purser);
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
  changePrice(purser);
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
