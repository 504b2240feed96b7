import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../compute/conformance.ts';
import { openEngineProxy } from '../compute/engines/proxy.ts';
import { openLeaseHouse, sharedDocker } from './docker-leases.ts';
import { hold, LONG, openMemoryHouse, PRICE } from './leases.ts';

/**
 * What has to answer at once does so within this. What it must not wait for hangs for ever here, so the bound need not be
 * tight: a busy machine keeps it too.
 */
const AT_ONCE_MILLISECONDS = 5000;

async function timed<T>(run: () => Promise<T>): Promise<{ answer: T; milliseconds: number }> {
  const started = performance.now();
  const answer = await run();
  return { answer, milliseconds: performance.now() - started };
}

test('a create that takes long is answered in time as provisioning, goes on, and is captured when it is ready', async (t) => {
  const house = await openMemoryHouse(t);
  house.app.answerSeconds = 0.3;
  const { token } = await house.openWallet(LONG);
  const slow = hold();
  house.memory.before.create = slow.wait;
  const { answer: made, milliseconds } = await timed(() => house.lease(token, 'k'));
  assert.deepEqual([made.status, made.body.status, made.body.billing_state], [200, 'provisioning', 'reserved']);
  assert.deepEqual([made.body.reserved_usd, made.body.charged_usd, made.body.provider_id], [PRICE, '0.00', null]);
  assert.ok(milliseconds < 300 + AT_ONCE_MILLISECONDS, `answered after ${milliseconds} ms`);

  const again = await timed(() => house.lease(token, 'k'));
  assert.deepEqual([again.answer.status, again.answer.headers['idempotent-replayed']], [200, 'true']);
  assert.equal(again.answer.body.id, made.body.id);
  const [status, list, budget] = await Promise.all([
    timed(() => house.status(token, made.body.id)),
    timed(() => house.ask('GET', '/v1/compute/list', { token })),
    timed(() => house.budget(token)),
  ]);
  for (const it of [again, status, list, budget]) assert.ok(it.milliseconds < AT_ONCE_MILLISECONDS);
  assert.deepEqual([status.answer.status, list.answer.body.resources.length], ['provisioning', 1]);
  assert.deepEqual([budget.answer.held_usd, budget.answer.holds[0].state], [PRICE, 'reserved']);

  slow.go();
  const running = await until('it runs', async () => {
    const it = await house.lease(token, 'k');
    return it.body.status === 'running' && it;
  });
  assert.deepEqual([running.body.id, running.body.charged_usd], [made.body.id, PRICE]);
  assert.deepEqual(house.memory.calls.filter((it) => it === 'create').length, 1);
  assert.deepEqual(house.problems(), []);
});

test('a create that is refused after it was answered has failed, is released, and keeps its key', async (t) => {
  const house = await openMemoryHouse(t);
  house.app.answerSeconds = 0.2;
  const { token } = await house.openWallet(LONG);
  const slow = hold();
  house.memory.before.create = slow.wait;
  house.memory.room = 0;
  const { id } = (await house.lease(token, 'k')).body;
  slow.go();
  await until('it has failed', async () => (await house.status(token, id)).status === 'failed');
  assert.equal((await house.budget(token)).held_usd, '0.00');
  house.memory.room = 1;
  const again = await house.lease(token, 'k');
  assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true']);
  assert.deepEqual([again.body.id, again.body.status, again.body.charged_usd], [id, 'failed', '0.00']);
  assert.equal(house.memory.calls.filter((it) => it === 'create').length, 1);
  assert.equal((await house.lease(token, 'k', { max_seconds: 60 })).body.error.code, 'idempotency_conflict');
  assert.equal((await house.lease(token, 'other')).body.status, 'running', 'another key rents another machine');
  assert.deepEqual(house.problems(), []);
});

test('a create that ends in doubt after it was answered is uncertain, and adopted', async (t) => {
  const house = await openMemoryHouse(t);
  house.app.answerSeconds = 0.2;
  const { token } = await house.openWallet(LONG);
  const slow = hold();
  house.memory.after.create = async () => {
    await slow.wait();
    throw new Error('the connection was reset');
  };
  const { id } = (await house.lease(token, 'k')).body;
  slow.go();
  await until('it is in doubt', async () => (await house.status(token, id)).billing_state === 'uncertain');
  const found = await house.lease(token, 'k');
  assert.deepEqual([found.status, found.body.id, found.body.status], [200, id, 'running']);
  assert.equal(house.memory.machines.size, 1);
});

test('stop during a create answers in time; what the create then makes is destroyed, and nothing is charged', async (t) => {
  const house = await openMemoryHouse(t);
  house.app.answerSeconds = 0.2;
  const { token } = await house.openWallet(LONG);
  const slow = hold();
  house.memory.before.create = slow.wait;
  const { id } = (await house.lease(token, 'k')).body;
  const { answer: stopped, milliseconds } = await timed(() => house.stop(token, id));
  assert.ok(milliseconds < 1000 + AT_ONCE_MILLISECONDS, `close_wait_seconds is 1, and it took ${milliseconds} ms`);
  assert.deepEqual([stopped.status, stopped.body.status], [200, 'stopping']);
  slow.go();
  const ended = await until('it has ended', async () => {
    const it = await house.status(token, id);
    return it.ended_at !== null && it;
  });
  assert.deepEqual(
    [ended.status, ended.end_reason, ended.charged_usd, ended.billing_state],
    ['stopped', 'requested', '0.00', 'settled'],
  );
  assert.equal(house.memory.machines.size, 0);
  assert.equal((await house.budget(token)).held_usd, '0.00');
  assert.deepEqual(house.problems(), []);
});

test('a stop that comes while the machine becomes ready wins: what was not captured yet is never charged', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const tightening = hold();
  house.memory.before.extend = tightening.wait;
  const made = house.lease(token, 'k');
  await tightening.arrived;
  const { id } = (await house.ask('GET', '/v1/compute/list', { token })).body.resources[0];
  const stopped = house.stop(token, id);
  await until('the stop is written', async () => (await house.status(token, id)).status === 'stopping');
  tightening.go();
  const answer = await made;
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable']);
  assert.deepEqual([(await stopped).body.status, (await stopped).body.charged_usd], ['stopped', '0.00']);
  assert.equal((await house.budget(token)).used_usd, '0.00');
  assert.equal(house.memory.machines.size, 0);
});

test('close during a create answers 409 with what it waits for, and ends by itself with everything returned', async (t) => {
  const house = await openMemoryHouse(t);
  house.app.answerSeconds = 0.2;
  const { id: walletId, token } = await house.openWallet(LONG);
  const slow = hold();
  house.memory.before.create = slow.wait;
  const { id } = (await house.lease(token, 'k')).body;
  const { answer, milliseconds } = await timed(() => house.closeWallet(walletId));
  assert.ok(milliseconds < 1000 + AT_ONCE_MILLISECONDS, `close_wait_seconds is 1, and it took ${milliseconds} ms`);
  assert.deepEqual([answer.status, answer.body.error.code], [409, 'cleanup_pending']);
  const waiting = (await house.ask('GET', `/v1/wallets/${walletId}`, { token: house.accountKey })).body;
  assert.deepEqual([waiting.status, waiting.cleanup.pending], ['closing', true]);
  assert.match(waiting.cleanup.last_error, new RegExp(`${id} on container: the backend has not answered yet`));
  assert.equal((await house.status(token, id)).status, 'stopping');
  slow.go();
  const closed = await until('it is closed', async () => {
    await house.app.reaper.runOnce();
    const it = (await house.ask('GET', `/v1/wallets/${walletId}`, { token: house.accountKey })).body;
    return it.status === 'closed' && it;
  });
  assert.deepEqual([closed.used_cents, closed.returned_cents], [0, 500]);
  assert.equal(house.memory.machines.size, 0);
  assert.deepEqual(house.problems(), []);
});

test('a backend that hangs holds up neither stop nor close nor reads, and gathers no queue', async (t) => {
  const house = await openMemoryHouse(t);
  const { id: walletId, token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const stuck = hold();
  house.memory.before.destroy = async () => {
    await stuck.wait();
    throw new Error('the engine has waited, and is still down');
  };
  const { answer: stopped, milliseconds } = await timed(() => house.stop(token, id));
  assert.deepEqual([stopped.status, stopped.body.status], [200, 'stopping']);
  assert.ok(milliseconds < 1000 + AT_ONCE_MILLISECONDS);
  assert.ok((await timed(() => house.status(token, id))).milliseconds < AT_ONCE_MILLISECONDS);
  for (let i = 0; i < 3; i++) {
    const { answer, milliseconds } = await timed(() => house.closeWallet(walletId));
    assert.deepEqual([answer.status, answer.body.error.code], [409, 'cleanup_pending']);
    assert.ok(milliseconds < 1000 + AT_ONCE_MILLISECONDS);
  }
  const destroyed = () => house.memory.calls.filter((it) => it === 'destroy').length;
  assert.equal(destroyed(), 1);
  stuck.go();
  await until('those who waited have had their turn', async () => !house.app.leaseMutex.isBusy(id));
  assert.equal(destroyed(), 2, 'one turn for all of them');
  delete house.memory.before.destroy;
  const closed = await until('it is closed', async () => {
    const answer = await house.closeWallet(walletId);
    return answer.status === 200 && answer.body;
  });
  assert.deepEqual([closed.status, closed.used_usd], ['closed', PRICE]);
  assert.deepEqual(house.problems(), []);
});

test('a slot whose backend hangs does not keep the leases of another from ending', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const one = (await house.lease(token)).body.id;
  const three = (await house.rent(token)).body.id;
  const stuck = hold();
  const [first] = house.app.slots.list;
  const destroy = first?.backend.destroy.bind(first.backend);
  Object.assign(first?.backend as object, { destroy: () => stuck.wait().then(() => destroy?.('m1')) });
  house.clock.advance(600);
  const pass = house.app.reaper.runOnce();
  await until('the other has ended', async () => (await house.status(token, three)).status === 'stopped');
  assert.equal((await house.status(token, one)).status, 'stopping');
  stuck.go();
  await pass;
  assert.equal((await house.status(token, one)).status, 'stopped');
});

test('a command that runs when the server stops is answered 503, not cut off, and a create that hangs holds up no end', async (t) => {
  const house = await openMemoryHouse(t, { settings: { drain_seconds: 1 } });
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const endless = hold();
  house.memory.before.exec = endless.wait;
  house.memory.before.create = endless.wait;
  t.after(endless.go);
  const exec = house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'sleep 1000' } });
  const create = house.lease(token, 'k');
  await until('both run', async () => house.memory.calls.includes('exec') && house.memory.calls.at(-1) === 'create');
  const { milliseconds } = await timed(() => house.close());
  const answers = await Promise.all([exec, create]);
  assert.deepEqual(
    answers.map((it) => [it.status, it.body.error.code]),
    [
      [503, 'operation_uncertain'],
      [503, 'operation_uncertain'],
    ],
  );
  assert.match(answers[0]?.body.error.message, /server is stopping/);
  assert.ok(milliseconds < 9000, `closing took ${milliseconds} ms`);
});

test('a command that ends while the server drains is answered as ever', async (t) => {
  const house = await openMemoryHouse(t, { settings: { drain_seconds: 20 } });
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const late = hold();
  house.memory.before.exec = late.wait;
  const exec = house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo hello' } });
  await late.arrived;
  const closing = house.close();
  await until('nothing new is let in', async () => house.app.health.stopping === true);
  late.go();
  assert.deepEqual([(await exec).status, (await exec).body.stdout], [200, 'hello\n']);
  await closing;
});

test('a command that never ends, because its own guard was stopped, is answered all the same', async (t) => {
  const house = await openMemoryHouse(t);
  const { token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  const never = hold();
  house.memory.before.exec = never.wait;
  t.after(never.go);
  const { answer, milliseconds } = await timed(() =>
    house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true', timeout: 1 } }),
  );
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable']);
  assert.ok(milliseconds >= 1000 && milliseconds < 20_000, `${milliseconds} ms`);
});

test('a real engine that does not answer: close names it in time, and all ends by itself when it is back', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const proxy = await openEngineProxy(t, engine);
  const house = await openLeaseHouse(t, { socket: proxy.socket });
  assert.ok(house);
  const { id: walletId, token } = await house.openWallet(LONG);
  const { id } = (await house.lease(token)).body;
  proxy.hang(true);
  const { answer: closed, milliseconds } = await timed(() => house.closeWallet(walletId));
  assert.deepEqual([closed.status, closed.body.error.code], [409, 'cleanup_pending']);
  assert.ok(milliseconds < 1000 + AT_ONCE_MILLISECONDS, `close_wait_seconds is 1, and it took ${milliseconds} ms`);
  const { answer: stopped, milliseconds: stopMilliseconds } = await timed(() => house.stop(token, id));
  assert.equal(stopped.body.status, 'stopping');
  assert.ok(stopMilliseconds < 1000 + AT_ONCE_MILLISECONDS);
  const read = async () => (await house.ask('GET', `/v1/wallets/${walletId}`, { token: house.accountKey })).body;
  const waiting = await read();
  assert.deepEqual([waiting.status, waiting.cleanup.pending, waiting.cleanup.attempts > 0], ['closing', true, true]);
  assert.match(waiting.cleanup.last_error, new RegExp(`${id} on container: .*not answered`));
  assert.equal((await house.machines()).length, 1);

  house.app.reaper.start();
  proxy.hang(false);
  await until('it is closed, without anybody asking', async () => (await read()).status === 'closed');
  assert.deepEqual(await house.machines(), []);
  assert.deepEqual([(await read()).used_usd, (await read()).returned_cents], [PRICE, 499]);
  assert.deepEqual(house.problems(), []);
});
