import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { stringify } from 'yaml';
import { hasComponent } from '../helper/component.ts';
import { freePort } from '../helper/free-port.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, reset } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';
import { openMemoryServer } from '../lease/leases.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { alertQueries, dashboardQueries, GRAFANA } from './grafana.ts';

test('promtool accepts the alert rules, and the metrics of a server', async (t) => {
  if (!hasComponent(t, 'promtool')) return;
  const purser = await openTestServer(t);
  execFileSync('promtool', ['check', 'rules', join(GRAFANA, 'alerts.yml')], { stdio: 'pipe' });
  execFileSync('promtool', ['test', 'rules', join(import.meta.dirname, '../fixtures/alerts.test.yml')], {
    stdio: 'pipe',
  });
  const { token } = await purser.openWallet();
  await purser.chat(token);
  const input = await purser.app.events.registry.metrics();
  execFileSync('promtool', ['check', 'metrics'], { input, stdio: 'pipe' });
});

/** Which expressions have no series in a server that does everything but this, and why. */
const EMPTY: Record<string, string> = {
  'purser_storage_replicas{state="up_to_date"}': 'its disk does not replicate itself',
  'purser_storage_replicas{state="unknown"}': 'its disk does not replicate itself',
};

test('a real Prometheus scrapes the server: every expression of the dashboard and the alerts has its series', async (t) => {
  if (!hasComponent(t, 'prometheus')) return;
  let prometheus: ChildProcess | undefined;
  t.after(async () => {
    if (!prometheus || prometheus.exitCode !== null || prometheus.signalCode !== null) return;
    prometheus.kill('SIGKILL');
    await once(prometheus, 'exit');
  });
  const directory = temporaryDirectory(t);
  const [metricsPort, port] = [await freePort(), await freePort()];
  const purser = await openMemoryServer(t, {
    settings: {
      metrics: { listen: `127.0.0.1:${metricsPort}` },
      opentelemetry: { endpoint: 'http://127.0.0.1:1' },
      backup: { every: '1d', directory },
    },
  });
  writeFileSync(
    join(directory, 'prometheus.yml'),
    stringify({
      global: { scrape_interval: '200ms', evaluation_interval: '200ms' },
      rule_files: [join(GRAFANA, 'alerts.yml')],
      scrape_configs: [{ job_name: 'purser', static_configs: [{ targets: [`127.0.0.1:${metricsPort}`] }] }],
    }),
  );
  prometheus = spawn(
    'prometheus',
    [
      `--config.file=${join(directory, 'prometheus.yml')}`,
      `--storage.tsdb.path=${join(directory, 'tsdb')}`,
      `--web.listen-address=127.0.0.1:${port}`,
      '--log.level=error',
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  );
  const ask = async (path: string) => {
    const answer = await fetch(`http://127.0.0.1:${port}${path}`).catch(() => undefined);
    return answer?.ok ? ((await answer.json()) as { data: any }).data : undefined;
  };

  const { token } = await purser.openWallet({ budget_cents: 1000 });
  const gateway = await openGateway(purser);
  const work = async () => {
    purser.upstream.handle = completion();
    await purser.chat(token);
    purser.upstream.handle = streaming(said('hello'), FINISHED, counted(), DONE);
    await gateway.streamed();
    purser.upstream.handle = failure(400);
    await purser.chat(token);
  };
  await work();
  await purser.lease(token);
  purser.upstream.handle = reset;
  await purser.chat(token);
  purser.app.events.failed('test', new Error('a failure'));

  const queries = [
    ...dashboardQueries(),
    ...alertQueries()
      .flatMap((it) => it.split(/ or | unless /))
      .flatMap(operands),
  ];
  const waiting = new Set(queries.map((it) => it.replaceAll('$__rate_interval', '1m')));
  const look = async () => {
    await work();
    for (const query of waiting) {
      const found = await ask(`/api/v1/query?query=${encodeURIComponent(query)}`);
      if (found?.result.length) waiting.delete(query);
    }
    return [...waiting].every((it) => it in EMPTY);
  };
  await until(() => `there is something to show for ${[...waiting].join('; ')}`, look);
  assert.deepEqual([...waiting].sort(), Object.keys(EMPTY).sort());
  const { groups } = await ask('/api/v1/rules');
  assert.deepEqual(
    groups[0].rules.map(({ health, lastError }: any) => [health, lastError]),
    alertQueries().map(() => ['ok', undefined]),
  );
  const { activeTargets } = await ask('/api/v1/targets');
  assert.deepEqual([activeTargets[0].health, activeTargets[0].lastError], ['up', '']);
});

/** What an alert compares: `a > 2 * b` asks for `a` and `2 * b`. An absent metric is asked for itself. */
const operands = (query: string): string[] =>
  query
    .split(/ (?:>|<|==) /)
    .map((it) => it.trim().replace(/^absent\((.*)\)$/, '$1'))
    .filter((it) => /purser_/.test(it))
    .map((it) => it.replace(/ offset 15m\)?$/, '').replace(/^sum by \(where\) \((?=purser_failures_total$)/, ''));
