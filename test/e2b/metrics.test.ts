import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { openE2b } from './shared.ts';

const OF_KERNEL = `cpu 1000000
cpu 1500000
cores 4
memory 104857600 max
cache 4096
overlay 1000 250 750 25% /
`;

/** What a sandbox whose kernel prints this has for metrics. */
async function metricsOf(t: TestContext, stdout: string, templateID: string) {
  const { purser, api, create } = await openE2b(t);
  for (const { backend } of purser.app.slots.list) {
    const { exec } = backend.guest;
    backend.guest.exec = async (...args) => ({ ...(await exec(...args)), stdout: Buffer.from(stdout) });
  }
  const { sandboxID } = (await create({ templateID })).body;
  const answer = await api('GET', `/sandboxes/${sandboxID}/metrics`);
  assert.equal(answer.status, 200, answer.text);
  const now = purser.clock.wall();
  return { metrics: answer.body, now };
}

test('the metrics of a sandbox are what its kernel tells, within what it has rented', async (t) => {
  const { metrics, now } = await metricsOf(t, OF_KERNEL, 'fixed');
  const [{ cpuUsedPct, ...metric }] = metrics;
  assert.ok(cpuUsedPct > 0);
  assert.deepEqual(metric, {
    timestamp: new Date(Math.floor(now / 1000) * 1000).toISOString(),
    timestampUnix: Math.floor(now / 1000),
    cpuCount: 1,
    memUsed: 104_857_600,
    memTotal: 0.25 * 1024 ** 3,
    memCache: 4096,
    diskUsed: 250 * 1024,
    diskTotal: 1000 * 1024,
  });
  const [offered] = (await metricsOf(t, OF_KERNEL.replace(' max', ' 268435456'), 'base')).metrics;
  assert.deepEqual([offered.cpuCount, offered.memTotal], [4, 268_435_456]);
});

test('where the kernel does not tell there are no metrics', async (t) => {
  for (const missing of [/^cpu 15.*\n/m, /^memory.*\n/m, /^overlay.*\n/m])
    assert.deepEqual((await metricsOf(t, OF_KERNEL.replace(missing, ''), 'base')).metrics, []);
});
