import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { completionStream, counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { assertCancelled, cutOff, estimateOf, latest, leaveAfter, nextOver, open } from './cancel-shared.ts';

test('a stream that ends within the grace is an answer: charged as one, and kept', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  await leaveAfter(1, { gateway, grace }, 'k');
  end.resolve();
  await gateway.quiet();
  grace.expire();
  const operation = await latest(purser);
  assert.deepEqual([operation?.settled_by, operation?.charge_usd], ['answer', '0.00012']);
  assert.equal((await gateway.streamed({}, 'k')).text, said('ab') + FINISHED + DONE);
});

test('a grace that ends while the charge is being written changes nothing', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  await leaveAfter(1, { gateway, grace });
  const write = purser.app.ledger.write;
  const [asked, commit] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  purser.app.ledger.write = async (it, data) => {
    asked.resolve();
    await commit.promise;
    return write(it, data);
  };
  end.resolve();
  await asked.promise;
  grace.expire();
  const retry = gateway.streamed();
  await until('the retry has the place', () => purser.app.retries.abandonedCount() === 0);
  commit.resolve();
  assert.equal((await retry).text, said('ab') + FINISHED + DONE);
  purser.app.ledger.write = write;
  assert.equal(purser.upstream.calls.length, 1);
  assert.deepEqual([(await latest(purser))?.settled_by, purser.wallet(gateway.walletId).spent], ['answer', 120_000n]);
  assert.deepEqual(purser.problems(), []);
});

test('a crash within the grace leaves the hold, as any crash does: a retry asks again on it', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  await purser.crash(() => {});
  assert.equal((await latest(purser))?.state, 'uncertain');
  purser.upstream.handle = completionStream();
  assert.equal((await gateway.streamed()).status, 200);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, purser.wallet(gateway.walletId).held], [120_000n, 0n]);
  assert.deepEqual(purser.problems(), []);
});

test('a server that stops waits for no more than the grace of a stream without clients', async (t) => {
  const { purser, grace, gateway } = await open(t, {}, { drain_seconds: 600 });
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace }, 'k');
  const stopping = purser.reopen();
  grace.expire();
  await waitFor('the server stops', stopping);
  await assertCancelled(purser, gateway, 2);
  assert.equal((await gateway.streamed({}, 'k')).body.error.code, 'answer_lost');
});

test('a stop that cuts off the grace charges what came', async (t) => {
  const { purser, grace, gateway } = await open(t, {}, { drain_seconds: 0 });
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace }, 'k');
  await waitFor('the server stops', purser.reopen());
  grace.expire();
  const operation = await latest(purser);
  assert.deepEqual([operation?.outcome, operation?.charge_usd], ['charged', await estimateOf(purser, 2)]);
  assert.deepEqual((await purser.budget(gateway.token)).holds, []);
  assert.deepEqual(purser.problems(), []);
});

test('a wallet that is frozen and closed within the grace pays what came, and gets back the rest', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  await leaveAfter(1, { gateway, grace });
  await purser.run('wallet.freeze', { id: gateway.walletId, reason: 'test' });
  const closing = purser.ask('POST', `/v1/wallets/${gateway.walletId}/close`, { token: purser.accountKey });
  await until('it closes', () => purser.wallet(gateway.walletId).status === 'closing');
  grace.expire();
  await cut.closed;
  const closed = await closing;
  assert.deepEqual([closed.status, closed.body.status], [200, 'closed'], closed.text);
  assert.equal((await latest(purser))?.settled_by, 'cancelled');
  assert.equal(closed.body.used_usd, await estimateOf(purser, 2));
  assert.deepEqual(purser.problems(), []);
});

test('a reload decides for clients that leave after it, whoever opened the stream', async (t) => {
  const { purser, grace, gateway } = await open(t);
  const rewrite = async (change: object) => {
    const file = join(purser.directory, 'purser.yaml');
    const settings = parse(readFileSync(file, 'utf8'));
    writeFileSync(file, stringify({ ...settings, router: { ...settings.router, ...change } }));
    return (await purser.run('reload', {})).settings;
  };
  const end = Promise.withResolvers<void>();
  purser.upstream.handle = streaming(said('ab'), () => end.promise, FINISHED, counted(), DONE);
  const stream = await gateway.stream({}, 'k');
  await stream.next();
  assert.deepEqual(await rewrite({ on_cancel: 'finish' }), ['router.on_cancel']);
  const isOver = nextOver(t, purser);
  stream.leave();
  await isOver();
  assert.equal(grace.count(), 0);
  end.resolve();
  await gateway.quiet();
  assert.equal((await latest(purser))?.settled_by, 'answer');

  const cut = cutOff();
  purser.upstream.handle = streaming(said('ab'), cut.step);
  const other = await gateway.stream({}, 'k2');
  await other.next();
  assert.deepEqual(await rewrite({ on_cancel: 'stop' }), ['router.on_cancel']);
  other.leave();
  await grace.set(1);
  grace.expire();
  await cut.closed;
  await assertCancelled(purser, gateway, 2);
});
