import assert from 'node:assert/strict';
import test from 'node:test';
import { SECRET_WORDS } from '../compute/engines/memory.ts';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { hold, type LeaseServer, LONG, openMemoryServer, PRICE } from './leases.ts';

/** What an agent is told of its machine, and how soon. */

const exec = (purser: LeaseServer, token: string, id: string, command = 'true') =>
  purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
const upload = (purser: LeaseServer, token: string, id: string, path = 'a') =>
  purser.ask('POST', '/v1/compute/upload', { token, body: { id, path, content_base64: 'eA==' } });
const GONE = 'The lease is over (provider_ended), and with it whatever ran in it.';

test('the first command that fails because its machine is gone says so, and fifty at once look once', async (t) => {
  const purser = await openMemoryServer(t);
  const { memory } = purser;
  const { token } = await purser.openWallet({ ...LONG, budget_cents: 1000 });
  const { id } = (await purser.lease(token)).body;
  const kept = (await purser.lease(token)).body.id;
  const failing = () => Promise.reject(new Error(SECRET_WORDS));
  Object.assign(memory.before, { exec: failing, upload: failing });

  // It is only the call that fails: the machine lives, and so does its lease.
  const gate = hold();
  memory.before.exec = () => gate.wait().then(failing);
  memory.calls.length = 0;
  const failed = Array.from({ length: 10 }, () => exec(purser, token, kept));
  await until('all run', async () => memory.calls.length === 10);
  gate.go();
  const heard = await Promise.all(failed);
  assert.equal(memory.calls.filter((it) => it === 'inspect').length, 1, 'one look for all of them');
  for (const answer of [...heard, await upload(purser, token, kept)])
    assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable']);
  assert.equal((await purser.status(token, kept)).status, 'running');

  memory.machines.delete('m1');
  memory.calls.length = 0;
  const answers = await Promise.all(Array.from({ length: 50 }, () => exec(purser, token, id)));
  const told = answers.filter(({ status }) => status !== 429);
  assert.ok(told.length >= 16);
  for (const { status, body } of told)
    assert.deepEqual([status, body.error.code, body.error.message], [409, 'resource_not_active', GONE]);
  assert.equal(memory.calls.filter((it) => it === 'inspect').length, 2, 'one step to find out, and one to end it');
  const { status, end_reason: reason, charged_usd: charged } = await purser.status(token, id);
  assert.deepEqual([status, reason, charged], ['stopped', 'provider_ended', PRICE]);
  const later = await upload(purser, token, id);
  assert.deepEqual([later.status, later.body.error.message], [409, GONE]);
  assert.deepEqual(purser.problems(), []);
});

test('a failed upload looks at its lease as well, and a path that cannot be reaches no machine', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  purser.memory.calls.length = 0;
  const refused = await upload(purser, token, id, '../a');
  assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request']);
  assert.deepEqual(purser.memory.calls, []);
  purser.memory.before.upload = () => Promise.reject(new Error(SECRET_WORDS));
  purser.memory.machines.clear();
  assert.deepEqual((await upload(purser, token, id)).body.error.message, GONE);
});

test('a container that was killed: the next command says so, and the lease has ended', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id, provider_id: ref } = (await purser.lease(token)).body;
  await purser.engine.docker.getContainer(ref).kill();
  const { status, body } = await exec(purser, token, id);
  assert.deepEqual([status, body.error.code, body.error.message], [409, 'resource_not_active', GONE]);
  const ended = await purser.status(token, id);
  assert.deepEqual([ended.status, ended.end_reason, ended.charged_usd], ['stopped', 'provider_ended', PRICE]);
  assert.deepEqual(await purser.machines(), []);
});

test('a command that runs while its container is killed is told that the lease has ended', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id, provider_id: ref } = (await purser.lease(token)).body;
  const running = exec(purser, token, id, 'touch /begun; sleep 100');
  await until('it runs', async () => (await exec(purser, token, id, 'ls /begun')).body.exit_code === 0);
  await purser.engine.docker.getContainer(ref).kill();
  const { body } = await running;
  assert.deepEqual([body.exit_code, body.ended_by], [137, 'lease']);
  assert.equal((await purser.status(token, id)).end_reason, 'provider_ended');
});

test('a command that ends before its machine is seen to have ended is told so all the same', async (t) => {
  const purser = await openMemoryServer(t);
  const { memory } = purser;
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const nothing = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0), stdoutTruncated: false, stderrTruncated: false };
  const killed = { ...nothing, exitCode: 137, timedOut: false };
  let looks = 0;
  memory.before.inspect = () => ++looks === 3 && memory.machines.clear();

  // A command that only ended itself, and a machine that takes others, is not waited for.
  purser.backend.guest.exec = async (_, { command }) => (command === 'true' ? { ...killed, exitCode: 0 } : killed);
  const { body: own } = await exec(purser, token, id, 'kill -9 $$');
  assert.deepEqual([own.exit_code, 'ended_by' in own, looks], [137, false, 0]);

  purser.backend.guest.exec = async (_, { command }) => {
    if (command === 'true') throw new Error(SECRET_WORDS);
    return killed;
  };
  const { body } = await exec(purser, token, id, 'sleep 100');
  assert.deepEqual([body.exit_code, body.ended_by], [137, 'lease']);
  assert.equal((await purser.status(token, id)).end_reason, 'provider_ended');
});

test('a lease that is not ready says what it waits for, as long as it waits', async (t) => {
  const purser = await openMemoryServer(t);
  const { memory } = purser;
  const { token } = await purser.openWallet(LONG);
  purser.app.answerSeconds = 0.05;
  Object.assign(memory, { ready: false, waitsFor: 'the image is being pulled' });
  const { body } = await purser.lease(token);
  assert.equal(body.status, 'provisioning');
  const reason = async () => (await purser.status(token, body.id)).status_reason;
  await until('the backend has said why', async () => (await reason()) === 'the image is being pulled');
  const [listed] = (await purser.ask('GET', '/v1/compute/list', { token })).body.resources;
  assert.equal(listed.status_reason, 'the image is being pulled');

  memory.before.inspect = () => Promise.reject(new Error(SECRET_WORDS));
  purser.clock.advance(2);
  await purser.app.reaper.runOnce();
  const { status_reason: unreachable } = await purser.status(token, body.id);
  assert.equal(unreachable, 'the provider does not answer at the moment; it is asked again');

  delete memory.before.inspect;
  for (const machine of memory.machines.values()) machine.state = 'running';
  purser.clock.advance(2);
  await purser.app.reaper.runOnce();
  const ready = await purser.status(token, body.id);
  assert.deepEqual([ready.status, 'status_reason' in ready], ['running', false]);
  assert.equal(purser.app.waitingFor.size, 0);
});
