import assert from 'node:assert/strict';
import test from 'node:test';
import { openEngineProxy } from '../compute/engines/proxy.ts';
import { until } from '../helper/waiting.ts';
import { openLeaseServer, sharedDocker } from './docker-leases.ts';
import { hold, LONG, openMemoryServer, PRICE } from './leases.ts';

/**
 * What does not answer here hangs until the test releases it: an answer that comes before that has not waited for it. How long
 * it took is up to how busy the machine is.
 */

test('a create that takes long is answered in time as provisioning, goes on, and is captured when it is ready', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.3;
  const { token } = await purser.openWallet(LONG);
  const slow = hold();
  purser.memory.before.create = slow.wait;
  const made = await purser.lease(token, 'k');
  assert.deepEqual([made.status, made.body.status, made.body.billing_state], [200, 'provisioning', 'reserved']);
  assert.deepEqual([made.body.reserved_usd, made.body.charged_usd, made.body.provider_id], [PRICE, '0.00', null]);

  const again = await purser.lease(token, 'k');
  assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true']);
  assert.equal(again.body.id, made.body.id);
  const [status, list, budget] = await Promise.all([
    purser.status(token, made.body.id),
    purser.ask('GET', '/v1/compute/list', { token }),
    purser.budget(token),
  ]);
  assert.deepEqual([status.status, list.body.resources.length], ['provisioning', 1]);
  assert.deepEqual([budget.held_usd, budget.holds[0].state], [PRICE, 'reserved']);

  slow.go();
  const running = await until('it runs', async () => {
    const it = await purser.lease(token, 'k');
    return it.body.status === 'running' && it;
  });
  assert.deepEqual([running.body.id, running.body.charged_usd], [made.body.id, PRICE]);
  assert.deepEqual(purser.memory.calls.filter((it) => it === 'create').length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a create that is refused after it was answered has failed, is released, and keeps its key', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.2;
  const { token } = await purser.openWallet(LONG);
  const slow = hold();
  purser.memory.before.create = slow.wait;
  purser.memory.room = 0;
  const { id } = (await purser.lease(token, 'k')).body;
  slow.go();
  await until('it has failed', async () => (await purser.status(token, id)).status === 'failed');
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  const told = (await purser.run('events.list', { type: 'lease.ended' })).events.map(({ data }) => data);
  assert.deepEqual(
    told.map((it) => [it.resource_id, it.reason, it.charged_usd]),
    [[id, 'create_failed', '0.00']],
    'who was given it hears of its end',
  );
  purser.memory.room = 1;
  purser.app.answerSeconds = 600;
  const again = await purser.lease(token, 'k');
  assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true']);
  assert.deepEqual([again.body.id, again.body.status, again.body.charged_usd], [id, 'failed', '0.00']);
  assert.equal(purser.memory.calls.filter((it) => it === 'create').length, 1);
  assert.equal((await purser.lease(token, 'k', { max_seconds: 60 })).body.error.code, 'idempotency_conflict');
  assert.equal((await purser.lease(token, 'other')).body.status, 'running', 'another key rents another machine');
  assert.deepEqual(purser.problems(), []);
});

test('a create that ends in doubt after it was answered is uncertain, and adopted', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.2;
  const { token } = await purser.openWallet(LONG);
  const slow = hold();
  purser.memory.after.create = async () => {
    await slow.wait();
    throw new Error('the connection was reset');
  };
  const { id } = (await purser.lease(token, 'k')).body;
  slow.go();
  await until('it is in doubt', async () => (await purser.status(token, id)).billing_state === 'uncertain');
  purser.app.answerSeconds = 600;
  const found = await purser.lease(token, 'k');
  assert.deepEqual([found.status, found.body.id, found.body.status], [200, id, 'running']);
  assert.equal(purser.memory.machines.size, 1);
});

test('stop during a create answers in time; what the create then makes is destroyed, and nothing is charged', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  purser.app.answerSeconds = 0.2;
  const { token } = await purser.openWallet(LONG);
  const slow = hold();
  purser.memory.before.create = slow.wait;
  const { id } = (await purser.lease(token, 'k')).body;
  const stopped = await purser.stop(token, id);
  assert.deepEqual([stopped.status, stopped.body.status], [200, 'stopping']);
  slow.go();
  const ended = await until('it has ended', async () => {
    const it = await purser.status(token, id);
    return it.ended_at !== null && it;
  });
  assert.deepEqual(
    [ended.status, ended.end_reason, ended.charged_usd, ended.billing_state],
    ['stopped', 'requested', '0.00', 'settled'],
  );
  assert.equal(purser.memory.machines.size, 0);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('a stop that comes while the machine becomes ready wins: what was not captured yet is never charged', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const tightening = hold();
  purser.memory.before.extend = tightening.wait;
  const made = purser.lease(token, 'k');
  await tightening.arrived;
  const { id } = (await purser.ask('GET', '/v1/compute/list', { token })).body.resources[0];
  const stopped = purser.stop(token, id);
  await until('the stop is written', async () => (await purser.status(token, id)).status === 'stopping');
  tightening.go();
  const answer = await made;
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable']);
  assert.deepEqual([(await stopped).body.status, (await stopped).body.charged_usd], ['stopped', '0.00']);
  assert.equal((await purser.budget(token)).used_usd, '0.00');
  assert.equal(purser.memory.machines.size, 0);
});

test('close during a create answers 409 with what it waits for, and ends by itself with everything returned', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  purser.app.answerSeconds = 0.2;
  const { id: walletId, token } = await purser.openWallet(LONG);
  const slow = hold();
  purser.memory.before.create = slow.wait;
  const { id } = (await purser.lease(token, 'k')).body;
  const answer = await purser.closeWallet(walletId);
  assert.deepEqual([answer.status, answer.body.error.code], [409, 'cleanup_pending']);
  const waiting = (await purser.ask('GET', `/v1/wallets/${walletId}`, { token: purser.accountKey })).body;
  assert.deepEqual([waiting.status, waiting.cleanup.pending], ['closing', true]);
  assert.match(waiting.cleanup.last_error, new RegExp(`${id} on container: the backend has not answered yet`));
  assert.equal((await purser.status(token, id)).status, 'stopping');
  slow.go();
  const closed = await until('it is closed', async () => {
    await purser.app.reaper.runOnce();
    const it = (await purser.ask('GET', `/v1/wallets/${walletId}`, { token: purser.accountKey })).body;
    return it.status === 'closed' && it;
  });
  assert.deepEqual([closed.used_cents, closed.returned_cents], [0, 500]);
  assert.equal(purser.memory.machines.size, 0);
  assert.deepEqual(purser.problems(), []);
});

test('a backend that hangs holds up neither stop nor close nor reads, and gathers no queue', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 1 } });
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const stuck = hold();
  purser.memory.before.destroy = async () => {
    await stuck.wait();
    throw new Error('the engine has waited, and is still down');
  };
  const stopped = await purser.stop(token, id);
  assert.deepEqual([stopped.status, stopped.body.status], [200, 'stopping']);
  assert.equal((await purser.status(token, id)).status, 'stopping', 'while it still hangs');
  for (let i = 0; i < 3; i++) {
    const answer = await purser.closeWallet(walletId);
    assert.deepEqual([answer.status, answer.body.error.code], [409, 'cleanup_pending']);
  }
  const destroyed = () => purser.memory.calls.filter((it) => it === 'destroy').length;
  assert.equal(destroyed(), 1);
  stuck.go();
  await until('those who waited have had their turn', async () => !purser.app.leaseMutex.isBusy(id));
  assert.equal(destroyed(), 2, 'one turn for all of them');
  delete purser.memory.before.destroy;
  const closed = await until('it is closed', async () => {
    const answer = await purser.closeWallet(walletId);
    return answer.status === 200 && answer.body;
  });
  assert.deepEqual([closed.status, closed.used_usd], ['closed', PRICE]);
  assert.deepEqual(purser.problems(), []);
});

test('a slot whose backend hangs does not keep the leases of another from ending', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const one = (await purser.lease(token)).body.id;
  const three = (await purser.rent(token)).body.id;
  const stuck = hold();
  const [first] = purser.app.slots.list;
  const destroy = first?.backend.destroy.bind(first.backend);
  Object.assign(first?.backend as object, { destroy: () => stuck.wait().then(() => destroy?.('m1')) });
  purser.clock.advance(600);
  const pass = purser.app.reaper.runOnce();
  await until('the other has ended', async () => (await purser.status(token, three)).status === 'stopped');
  assert.equal((await purser.status(token, one)).status, 'stopping');
  stuck.go();
  await pass;
  assert.equal((await purser.status(token, one)).status, 'stopped');
});

test('a command that runs when the server stops is answered 503, not cut off, and a create that hangs holds up no end', async (t) => {
  const purser = await openMemoryServer(t, { settings: { drain_seconds: 1 } });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const endless = hold();
  purser.memory.before.exec = endless.wait;
  purser.memory.before.create = endless.wait;
  t.after(endless.go);
  const exec = purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'sleep 1000' } });
  const create = purser.lease(token, 'k');
  await until('both run', async () => purser.memory.calls.includes('exec') && purser.memory.calls.at(-1) === 'create');
  await purser.close();
  const answers = await Promise.all([exec, create]);
  assert.deepEqual(
    answers.map((it) => [it.status, it.body.error.code]),
    [
      [503, 'operation_uncertain'],
      [503, 'operation_uncertain'],
    ],
  );
  assert.match(answers[0]?.body.error.message, /server is stopping/);
});

test('a command that ends while the server drains is answered as ever', async (t) => {
  const purser = await openMemoryServer(t, { settings: { drain_seconds: 20 } });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const late = hold();
  purser.memory.before.exec = late.wait;
  const exec = purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo hello' } });
  await late.arrived;
  const closing = purser.close();
  await until('nothing new is let in', async () => purser.app.health.stopping === true);
  late.go();
  assert.deepEqual([(await exec).status, (await exec).body.stdout], [200, 'hello\n']);
  await closing;
});

test('a command that never ends, because its own guard was stopped, is answered all the same', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const never = hold();
  purser.memory.before.exec = never.wait;
  t.after(never.go);
  const began = performance.now();
  const answer = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true', timeout: 1 } });
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable']);
  assert.ok(performance.now() - began >= 1000, 'not before its time is over');
});

test('a real engine that does not answer: close names it in time, and all ends by itself when it is back', async (t) => {
  const engine = await sharedDocker(t);
  if (!engine) return;
  const proxy = await openEngineProxy(t, engine);
  const purser = await openLeaseServer(t, { socket: proxy.socket, settings: { close_wait_seconds: 1 } });
  assert.ok(purser);
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  proxy.hang(true);
  const closed = await purser.closeWallet(walletId);
  assert.deepEqual([closed.status, closed.body.error.code], [409, 'cleanup_pending']);
  const stopped = await purser.stop(token, id);
  assert.equal(stopped.body.status, 'stopping');
  const read = async () => (await purser.ask('GET', `/v1/wallets/${walletId}`, { token: purser.accountKey })).body;
  const waiting = await read();
  assert.deepEqual([waiting.status, waiting.cleanup.pending, waiting.cleanup.attempts > 0], ['closing', true, true]);
  assert.match(waiting.cleanup.last_error, new RegExp(`${id} on container: .*not answered`));
  assert.equal((await purser.machines()).length, 1);

  purser.app.reaper.start();
  proxy.hang(false);
  await until('it is closed, without anybody asking', async () => (await read()).status === 'closed');
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual([(await read()).used_usd, (await read()).returned_cents], [PRICE, 499]);
  assert.deepEqual(purser.problems(), []);
});
