import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
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

const TWO_GPUS = '87, 1024\n0, 3\n';
const GPU_SPEC = { gpu: 'h100', gpus: 2 };

/** Returns a function that moves `performance.now()` ahead by so many seconds: readings age by it. */
function aheadOfTime(t: TestContext) {
  const now = performance.now.bind(performance);
  let ahead = 0;
  t.mock.method(performance, 'now', () => now() + ahead);
  return (seconds: number) => {
    ahead += seconds * 1000;
  };
}

/** A purser that sells GPUs, the readings of its memory, and the time since they were made. */
async function openGpuServer(t: TestContext) {
  const prices = { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005', gpu_hourly_usd: { h100: '0.10' } };
  const limits = { cpus: 2, memory_gib: 1, gpus: 2, disk_gb: 1, max_seconds: 3600 };
  const provider_one = {
    backend: 'container',
    socket: 'unix:///nowhere/docker.sock',
    image: 'nowhere:1',
    prices,
    limits,
  };
  const purser = await openMemoryServer(t, { settings: { compute: { provider_one } } });
  const { token } = await purser.openWallet(LONG);
  purser.memory.usage = async () => USAGE;
  purser.memory.gpus = TWO_GPUS;
  const later = aheadOfTime(t);
  return Object.assign(purser, {
    token,
    execs: () => purser.memory.calls.filter((it) => it === 'exec').length,
    metrics: () => purser.app.events.registry.metrics(),
    later,
    /** Looks after every lease. */
    async pass() {
      purser.clock.advance(61);
      await purser.app.reaper.runOnce();
    },
  });
}

test('the use of GPUs is read inside, beside what the engine tells: in status, on the page and in metrics', async (t) => {
  const purser = await openGpuServer(t);
  const { token } = purser;
  const { id } = (await purser.lease(token, 'k', GPU_SPEC)).body;
  const asked = await Promise.all(Array.from({ length: 5 }, () => purser.status(token, id)));
  for (const { usage } of asked)
    assert.deepEqual(usage, {
      ...{ cpu_seconds: 12.346, memory_bytes: 3_145_728, disk_bytes: 0 },
      gpus: [
        { utilization_percent: 87, memory_bytes: 1024 * 1024 ** 2 },
        { utilization_percent: 0, memory_bytes: 3 * 1024 ** 2 },
      ],
    });
  assert.equal(purser.execs(), 1);
  const { html } = await (await asOperator(purser)).get(`/leases/${id}`);
  assert.match(html, /disk 0\.0 MiB, GPU 87 % with 1024\.0 MiB, GPU 0 % with 3\.0 MiB/);
  const labels = '{slot="provider_one",backend="container"}';
  const gauges = [`gpus${labels} 2`, `gpu_utilization_percent${labels} 87`, `gpu_memory_bytes${labels} 1076887552`];
  for (const it of gauges) assert.ok((await purser.metrics()).includes(`purser_leases_${it}\n`), it);
  await purser.stop(token, id);
  assert.doesNotMatch(await purser.metrics(), /purser_leases_gpus\{/);
  assert.deepEqual(purser.problems(), []);
});

test('a lease without GPUs costs no call more, and metrics one call of each GPU lease in five minutes', async (t) => {
  const purser = await openGpuServer(t);
  const { token } = purser;
  const { id } = (await purser.lease(token, 'without')).body;
  const called = purser.memory.calls.length;
  assert.equal('gpus' in (await purser.status(token, id)).usage, false);
  assert.equal(purser.memory.calls.length, called);
  await purser.pass();
  assert.equal(purser.execs(), 0);
  await purser.lease(token, 'with', GPU_SPEC);
  await purser.pass();
  assert.match(await purser.metrics(), /purser_leases_gpus\{slot="provider_one",backend="container"\} 2\n/);
  for (const [seconds, count] of [
    [200, 1],
    [110, 2],
  ] as const) {
    purser.later(seconds);
    await purser.pass();
    assert.equal(purser.execs(), count);
  }
  delete purser.backend.guest.usage;
  await purser.lease(token, 'without, where the engine tells nothing');
  await purser.pass();
  assert.equal(purser.execs(), 2);
});

test('a tenant who holds up or falsifies the reading of his GPUs hides nothing that the engine tells', async (t) => {
  const purser = await openGpuServer(t);
  const { token } = purser;
  const { id } = (await purser.lease(token, 'k', GPU_SPEC)).body;
  const gate = hold();
  purser.memory.before.exec = gate.wait;
  for (let times = 2; times > 0; times--) {
    purser.later(16);
    const { usage } = await purser.status(token, id);
    assert.deepEqual([usage.cpu_seconds, usage.gpus], [12.346, undefined]);
  }
  assert.equal(purser.execs(), 1);
  gate.go();
  assert.equal((await purser.status(token, id)).usage.gpus.length, 2, 'its late answer counts');

  // What took so long is left alone for a while: a process of a driver that hangs may never end.
  for (const [seconds, count] of [
    [16, 1],
    [300, 1],
    [300, 2],
  ] as const) {
    purser.later(seconds);
    assert.equal((await purser.status(token, id)).usage.cpu_seconds, 12.346);
    assert.equal(purser.execs(), count);
  }
  for (const said of ['99, 5\n'.repeat(10_000), '99, 5\n'.repeat(3), '']) {
    purser.memory.gpus = said;
    purser.later(16);
    assert.equal('gpus' in (await purser.status(token, id)).usage, false, said.slice(0, 40));
  }
  assert.deepEqual(purser.problems(), []);
});

test('where an engine tells nothing, one command inside tells processor time and GPUs', async (t) => {
  const purser = await openGpuServer(t);
  const { token } = purser;
  delete purser.backend.guest.usage;
  purser.memory.cpuSeconds = 7.5;
  const { id } = (await purser.lease(token, 'k', GPU_SPEC)).body;
  const { cpu_seconds, gpus } = (await purser.status(token, id)).usage;
  assert.deepEqual([cpu_seconds, gpus.length, purser.execs()], [7.5, 2, 1]);
  assert.deepEqual(purser.problems(), []);
});

test('no reading of GPUs makes an idle machine busy: none falls into the processor time that a step is decided by', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  purser.memory.usage = async () => USAGE;
  purser.memory.gpus = TWO_GPUS;
  let used = 0;
  purser.memory.cpuSeconds = used;
  const guest = purser.app.slots.list.find((it) => it.slot === 'provider_three')?.backend.guest;
  assert.ok(guest);
  const { exec } = guest;
  guest.gpus = () => 2;
  guest.exec = async (ref, order) => {
    if (order.command.includes('purser-gpus')) used += 5;
    purser.memory.cpuSeconds = used;
    return exec(ref, order);
  };
  const later = aheadOfTime(t);
  const { id } = (await purser.rent(token)).body;
  const keep = (key: string, body: Record<string, number>) =>
    purser.ask('POST', '/v1/compute/keep', { token, key, body: { id, ...body } });
  assert.equal((await keep('on', { extend_seconds: 60, max_seconds: 600 })).status, 200);

  /** Lets time pass, and looks at the lease by a pass and by a status, for each of which every earlier reading is too old. */
  const pass = async (seconds: number) => {
    purser.clock.advance(seconds);
    later(301);
    await purser.app.reaper.runOnce();
    later(301);
    return purser.status(token, id);
  };
  assert.equal((await pass(460)).usage.gpus.length, 2);
  const before = used;
  assert.ok(before > 0);
  // From just before the reading that the measurement begins with, 120 s before the end, to almost the end.
  for (const seconds of [12, 8, 30, 30, 10, 10, 10, 10, 10]) {
    const { usage, keep } = await pass(seconds);
    assert.deepEqual([usage.gpus, usage.cpu_seconds, keep.bought_seconds], [undefined, 12.346, 0]);
  }
  assert.equal(used, before);
  assert.equal((await purser.status(token, id)).keep.reason, 'idle');
  assert.equal((await keep('off', { extend_seconds: 0 })).status, 200);
  later(301);
  assert.equal((await purser.status(token, id)).usage.gpus.length, 2, 'nothing measures it any more');
  assert.deepEqual(purser.problems(), []);
});
