import assert from 'node:assert/strict';
import test from 'node:test';
import { asOperator } from '../ui/sample.ts';
import { hold, LONG, openMemoryServer } from './leases.ts';

/** What the machine of a lease uses: `usage` of its status, its line on its page, and the metrics. */

const USAGE = { cpuSeconds: 12.34567, memoryBytes: 3 * 1024 ** 2, diskBytes: 0, networkBytes: undefined };

test('status says what the engine tells of a machine, without what it cannot tell, by one reading for all who ask', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  let readings = 0;
  purser.memory.usage = async () => {
    readings++;
    return USAGE;
  };
  const { id } = (await purser.lease(token)).body;
  const asked = await Promise.all(Array.from({ length: 5 }, () => purser.status(token, id)));
  for (const it of asked) assert.deepEqual(it.usage, { cpu_seconds: 12.346, memory_bytes: 3_145_728, disk_bytes: 0 });
  assert.equal(readings, 1);
  assert.equal(
    'usage' in (await purser.ask('GET', '/v1/compute/list', { token })).body.resources[0],
    false,
    'only in status',
  );

  const { html } = await (await asOperator(purser)).get(`/leases/${id}`);
  assert.match(html, /CPU 12\.3 s, memory 3\.0 MiB, disk 0\.0 MiB/);
  const metrics = () => purser.app.events.registry.metrics();
  assert.match(await metrics(), /purser_leases_memory_bytes\{slot="provider_one",backend="container"\} 3145728\n/);
  assert.doesNotMatch(await metrics(), /purser_leases_network_bytes\{/);

  assert.equal((await purser.stop(token, id)).body.status, 'stopped');
  assert.equal('usage' in (await purser.status(token, id)), false);
  assert.equal(purser.app.usages.size, 0);
  assert.doesNotMatch(await metrics(), /purser_leases_memory_bytes\{/);
  assert.deepEqual(purser.problems(), []);
});

test('metrics are of every lease that is looked after, asked for or not', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.usage = async () => USAGE;
  for (const key of ['a', 'b']) await purser.lease(token, key);
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /purser_leases_memory_bytes\{slot="provider_one",backend="container"\} 6291456\n/);
});

test('a status waits for no engine: without an answer it has no usage, and no second question is asked', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const gate = hold();
  let readings = 0;
  purser.memory.usage = async () => {
    readings++;
    await gate.wait();
    return USAGE;
  };
  const { id } = (await purser.lease(token)).body;
  for (let times = 2; times > 0; times--) {
    const { status, usage } = await purser.status(token, id);
    assert.deepEqual([status, usage], ['running', undefined]);
  }
  assert.equal(readings, 1);
  gate.go();
  assert.equal((await purser.status(token, id)).usage.cpu_seconds, 12.346);
  purser.memory.usage = async () => assert.fail('it does not answer');
  const { id: other } = (await purser.lease(token)).body;
  assert.equal('usage' in (await purser.status(token, other)), false);
  assert.deepEqual(purser.problems(), []);
});

test('where an engine tells nothing, a command inside tells the processor time, and metrics leave it out', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  delete purser.backend.guest.usage;
  purser.memory.cpuSeconds = 7.5;
  const { id } = (await purser.lease(token)).body;
  assert.deepEqual((await purser.status(token, id)).usage, { cpu_seconds: 7.5 });
  assert.equal(purser.memory.calls.filter((it) => it === 'exec').length, 1);
  assert.doesNotMatch(await purser.app.events.registry.metrics(), /purser_leases_cpu_seconds\{/);
  assert.deepEqual(purser.problems(), []);
});
