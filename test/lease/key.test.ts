import assert from 'node:assert/strict';
import test from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { until } from '../helper/waiting.ts';
import { hold, LONG, openMemoryServer, PRICE } from './leases.ts';

/** A key rents one machine: once a create was answered 200, its key stays with its resource. */

test('a create that was answered and stopped before it was ready keeps its key, over a restart too', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.2;
  purser.memory.ready = false;
  const { token } = await purser.openWallet(LONG);
  const made = await purser.lease(token, 'k');
  assert.deepEqual([made.status, made.body.status, made.body.billing_state], [200, 'provisioning', 'reserved']);
  const stopped = await purser.stop(token, made.body.id);
  assert.deepEqual([stopped.body.status, stopped.body.charged_usd], ['stopped', '0.00']);

  const seen = async () => {
    const again = await purser.lease(token, 'k');
    assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true']);
    assert.deepEqual([again.body.id, again.body.status, again.body.end_reason], [made.body.id, 'stopped', 'requested']);
    assert.deepEqual([again.body.billing_state, again.body.charged_usd], ['settled', '0.00']);
  };
  await seen();
  await purser.reopen();
  await seen();
  assert.equal(purser.memory.calls.filter((it) => it === 'create').length, 1);
  const budget = await purser.budget(token);
  assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);
  assert.deepEqual(purser.problems(), []);
});

test('a create that was answered, and whose machine never became ready, keeps its key', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.2;
  purser.memory.ready = false;
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token, 'k')).body;
  await until('it has a machine', () => purser.memory.machines.size === 1);
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.status(token, id)).status, 'failed');
  const again = await purser.lease(token, 'k');
  assert.deepEqual([again.status, again.body.id, again.body.status], [200, id, 'failed']);
  assert.deepEqual(purser.problems(), []);
});

test('a create that was never answered 200 frees its key when it is released', async (t) => {
  const purser = await openMemoryServer(t);
  purser.memory.ready = false;
  const { token } = await purser.openWallet(LONG);
  const made = purser.lease(token, 'k');
  const { id } = await until('it is there', async () => {
    return (await purser.ask('GET', '/v1/compute/list', { token })).body.resources[0];
  });
  await until('it has a machine', async () => (await purser.status(token, id)).provider_id !== null);
  await purser.stop(token, id);
  assert.deepEqual([(await made).status, (await made).body.error.code], [503, 'provider_unavailable']);
  purser.memory.ready = true;
  const other = await purser.lease(token, 'k');
  assert.deepEqual(
    [other.status, other.body.status, other.headers['idempotent-replayed']],
    [200, 'running', undefined],
  );
  assert.notEqual(other.body.id, id);
  assert.deepEqual(purser.problems(), []);
});

test('a server that dies after the answer keeps the key: the next one answers from the row, and then lets nothing go', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.2;
  const { token } = await purser.openWallet(LONG);
  const slow = hold();
  purser.memory.before.create = slow.wait;
  const { id } = (await purser.lease(token, 'k')).body;
  await purser.crash(slow.go);
  purser.app.answerSeconds = 0.2;
  purser.memory.before = {};
  const doubted = await purser.lease(token, 'k');
  assert.deepEqual([doubted.status, doubted.body.id, doubted.headers['idempotent-replayed']], [200, id, 'true']);
  assert.deepEqual([doubted.body.billing_state, doubted.body.reserved_usd], ['uncertain', PRICE]);
  const operation = (await purser.run('operation.list', { uncertain: true })).operations[0];
  await purser.run('operation.resolve', {
    id: operation?.id as string,
    decision: 'release',
    reason: 'nothing is there',
  });
  const released = await purser.lease(token, 'k');
  assert.deepEqual([released.status, released.body.id, released.body.billing_state], [200, id, 'settled']);
  assert.equal(released.body.charged_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('a create that was in flight at a crash is answered 200 by its replay, and from then on keeps its key', async (t) => {
  const purser = await openMemoryServer(t);
  purser.memory.ready = false;
  const { token } = await purser.openWallet(LONG);
  const inspecting = hold();
  purser.memory.before.inspect = inspecting.wait;
  void purser.lease(token, 'k').catch(() => {}); // dies with its server
  await inspecting.arrived;
  purser.memory.before = {};
  await purser.crash(inspecting.go);
  purser.app.answerSeconds = 0.5;
  const replayed = await purser.lease(token, 'k');
  assert.deepEqual([replayed.status, replayed.body.status, replayed.body.charged_usd], [200, 'provisioning', '0.00']);
  await purser.stop(token, replayed.body.id);
  const again = await purser.lease(token, 'k');
  assert.deepEqual([again.status, again.body.id, again.body.status], [200, replayed.body.id, 'stopped']);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('an answer of 200 that cannot be written is not given', async (t) => {
  const purser = await openMemoryServer(t);
  purser.app.answerSeconds = 0.3;
  purser.memory.ready = false;
  const { token } = await purser.openWallet(LONG);
  const { write } = purser.app.ledger;
  const inspecting = hold();
  purser.memory.before.inspect = inspecting.wait;
  const made = purser.lease(token, 'k');
  await inspecting.arrived;
  t.mock.method(purser.app.ledger, 'write', () => Promise.reject(new Refusal('read_only')));
  const answer = await made;
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'operation_uncertain']);
  t.mock.method(purser.app.ledger, 'write', write);
  inspecting.go();
});

test('a close does not decide a creation in doubt: what was made is charged or given back by what is found', async (t) => {
  const purser = await openMemoryServer(t, { settings: { close_wait_seconds: 0 } });
  const { id: walletId, token } = await purser.openWallet(LONG);
  purser.memory.before.create = () => {
    throw new Error('the line died');
  };
  purser.memory.before.find = () => {
    throw new Error('the line is down');
  };
  assert.equal((await purser.rent(token, 'k')).body.error.code, 'operation_uncertain');
  await purser.closeWallet(walletId);
  await purser.app.reaper.runOnce();
  const states = async () => (await purser.run('operation.list', {})).operations.map((it) => [it.state, it.charge_usd]);
  assert.deepEqual(await states(), [['uncertain', null]], 'the policy of chats is none of leases');
  assert.deepEqual([purser.wallet(walletId).status, purser.wallet(walletId).spent], ['closing', 0n]);

  purser.memory.before = {} as never;
  for (let i = 0; i < 20 && purser.wallet(walletId).status !== 'closed'; i++) {
    purser.clock.advance(120);
    await purser.app.reaper.runOnce();
  }
  assert.deepEqual([await states(), purser.wallet(walletId).status], [[['settled', '0.00']], 'closed']);
  assert.deepEqual(purser.problems(), []);
});

test('a creation that the operator charges is shown as charged before its machine is found', async (t) => {
  const purser = await openMemoryServer(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  purser.memory.after.create = () => {
    throw new Error('the line died');
  };
  purser.memory.before.find = () => {
    throw new Error('the line is down');
  };
  assert.equal((await purser.rent(token, 'k')).body.error.code, 'operation_uncertain');
  purser.app.answerSeconds = 0.1;
  const [operation] = (await purser.run('operation.list', { uncertain: true })).operations;
  await purser.run('operation.resolve', {
    id: operation?.id as string,
    decision: 'charge',
    reason: 'the console says so',
  });
  await purser.app.reaper.runOnce();
  const shown = async () => (await purser.rent(token, 'k')).body;
  assert.deepEqual([(await shown()).charged_usd, (await shown()).reserved_usd], ['0.06', '0.00']);
  assert.deepEqual(purser.problems(), []);

  purser.memory.before = {} as never;
  await purser.closeWallet(walletId);
  await purser.app.reaper.runOnce();
  assert.deepEqual([(await shown()).charged_usd, purser.memory.machines.size], ['0.06', 0]);
  assert.deepEqual(purser.problems(), []);
});
