import assert from 'node:assert/strict';
import test from 'node:test';
import { resetConnection } from '../../src/net/reset.ts';
import { completionStream, counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { hang } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { assertCancelled, cutOff, latest, leaveAfter, leaver, open } from './cancel-shared.ts';

test('the same request within the grace joins, and a stop comes only when it leaves as well', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const [end, cut] = [Promise.withResolvers<void>(), cutOff()];
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  await leaveAfter(1, { gateway, grace });
  const retry = gateway.streamed();
  await until('the retry has the place', () => purser.app.retries.abandonedCount() === 0);
  grace.expire();
  end.resolve();
  const { status, text, headers } = await retry;
  assert.deepEqual([status, headers['idempotent-replayed']], [200, 'true'], text);
  assert.equal(text, said('ab') + FINISHED + DONE);
  assert.equal((await latest(purser))?.settled_by, 'answer');

  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  const second = leaver(gateway);
  await until('the retry has the place', () => purser.app.retries.abandonedCount() === 0);
  const before = grace.count();
  grace.expire();
  assert.notEqual((await purser.budget(gateway.token)).held_usd, '0.00', 'somebody waits');
  await second.leave();
  await grace.set(before + 1);
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
  assert.equal(purser.upstream.calls.length, 2);
  assert.equal(purser.app.retries.abandonedCount(), 0);
});

test('of several clients on one key only the last to leave ends the stream', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  const first = await gateway.stream({}, 'k');
  await first.next();
  const find = t.mock.method(purser.app.inFlight, 'find');
  const [second, third] = [leaver(gateway, 'k'), leaver(gateway, 'k')];
  await until('the others have joined', () => find.mock.calls.filter(({ result }) => result).length === 2);
  first.leave();
  await second.leave();
  for (let i = 0; i < 3; i++) await purser.budget(gateway.token);
  assert.equal(grace.count(), 0, 'one is there');
  await third.leave();
  await grace.set(1);
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
  assert.equal(purser.upstream.calls.length, 1);
});

test('a retry on the hold of an unknown outcome that leaves before its answer leaves the hold; after that it pays what came', async (t) => {
  const { purser, grace, gateway } = await open(t);
  purser.upstream.handle = (_, response) => resetConnection(response.socket);
  assert.equal((await gateway.streamed()).body.error.code, 'operation_uncertain');
  const { held } = purser.wallet(gateway.walletId);
  purser.upstream.handle = hang;
  const client = leaver(gateway);
  await purser.upstream.arrived(2);
  await client.leave();
  await grace.set(1);
  grace.expire();
  await gateway.quiet();
  assert.equal((await latest(purser))?.state, 'uncertain');
  assert.equal(purser.wallet(gateway.walletId).held, held);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
  assert.equal((await purser.run('operation.list', {})).operations.length, 1);
});

test('a retry that comes when its stream has been given up is a new request', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  const write = purser.app.ledger.write;
  const [asked, commit] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  purser.app.ledger.write = async (it, data) => {
    if (it.name !== 'chat.settle') return write(it, data);
    asked.resolve();
    await commit.promise;
    return write(it, data);
  };
  grace.expire();
  await asked.promise;
  purser.upstream.handle = completionStream();
  const retry = gateway.streamed();
  await purser.upstream.arrived(2);
  commit.resolve();
  assert.equal((await retry).status, 200);
  purser.app.ledger.write = write;
  await gateway.quiet();
  const all = (await purser.run('operation.list', {})).operations;
  assert.deepEqual(
    all.map((it) => it.settled_by),
    ['answer', 'cancelled'],
  );
  assert.deepEqual(purser.problems(), []);
});
