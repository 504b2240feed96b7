import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { writeWith } from '../helper/closures.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, reset } from '../helper/upstream.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { alertQueries, dashboardQueries } from './grafana.ts';

test('metrics say what models cost and do; a server that fails is told of once, and when it is back', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  await purser.chat(token);
  const listenAgain = await purser.upstream.leave();
  await purser.chat(token);
  await purser.chat(token);
  const logged = (event: string) => purser.log.filter((line) => line.includes(`"event":"upstream.${event}"`)).length;
  const text = () => purser.app.events.registry.metrics();
  assert.deepEqual([logged('down'), logged('back')], [1, 0]);
  assert.match(await text(), /^purser_upstream_up\{upstream="local"\} 0$/m);
  await listenAgain();
  await purser.chat(token);
  assert.deepEqual([logged('down'), logged('back')], [1, 1]);
  purser.upstream.handle = failure(401);
  await purser.chat(token);
  await purser.chat(token);
  assert.deepEqual([logged('down'), logged('back')], [2, 1]);

  const all = await text();
  for (const line of [
    'purser_upstream_calls_total{model="chat",upstream="local",code="answered"} 2',
    'purser_upstream_calls_total{model="chat",upstream="local",code="gateway_unavailable"} 4',
    'purser_upstream_seconds_count{model="chat",upstream="local",stream="false"} 2',
    'purser_tokens_total{model="chat",upstream="local",kind="prompt"} 20',
    'purser_tokens_total{model="chat",upstream="local",kind="completion"} 10',
    'purser_accounts_available_cents 99000',
    'purser_accounts_reserved_cents 1000',
    'purser_held_usd 0',
    'purser_operations_open 0',
    'purser_wallets_open 1',
  ])
    assert(all.split('\n').includes(line), `${line}\nis not in\n${all}`);
  assert(!all.includes(id) && !/\b(wal|op|acct|res)_/.test(all), 'no ids');
});

test('the dashboard and the alert rules ask for metrics that the server has', async (t) => {
  const collector = { endpoint: 'http://127.0.0.1:1' };
  const purser = await openTestServer(t, { settings: { opentelemetry: collector } });
  const names = new Set(
    (await purser.app.events.registry.getMetricsAsJSON()).flatMap(({ name }) => [name, `${name}_bucket`]),
  );
  const queries = [...dashboardQueries(), ...alertQueries()];
  assert(queries.length > 50);
  for (const query of queries)
    for (const [name] of query.matchAll(/\b(purser|process)_\w+/g)) assert(names.has(name), `${name} in ${query}`);
});

test('metrics have no label that a caller can make up', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const canary = 'made-up-by-a-caller';
  await gateway.chat({ model: canary, metadata: { [canary]: canary } });
  await purser.ask('GET', `/v1/${canary}`, { token: gateway.token });
  await purser.ask('POST', '/v1/compute/create', {
    token: gateway.token,
    key: canary,
    body: { provider: canary, spec: {} },
  });
  await gateway.chat();
  assert(!(await purser.app.events.registry.metrics()).includes(canary));
});

test('calls of backends are counted by slot, backend and outcome; a backend that fails is down until it answers', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet({ ...LONG, budget_cents: 1000 });
  const lines = async () => (await purser.app.events.registry.metrics()).split('\n');
  const has = async (line: string) => {
    const all = await lines();
    assert(all.includes(line), `${line}\nis not in\n${all.filter((it) => /backend|lease/.test(it)).join('\n')}`);
  };
  const of = 'slot="provider_one",backend="container"';
  await has(`purser_leases_live{${of}} 0`);
  await has(`purser_backend_up{${of}} 1`);
  const { id } = (await purser.lease(token)).body;
  await has(`purser_leases_live{${of}} 1`);
  await has('purser_leases_live{slot="provider_three",backend="container"} 0');
  await has(`purser_leases_total{${of},event="ready"} 1`);
  await has(`purser_backend_calls_total{${of},call="create",code="ok"} 1`);
  await has(`purser_backend_seconds_count{${of},call="create"} 1`);

  purser.memory.before.inspect = () => Promise.reject(new Error('the engine is gone'));
  purser.memory.before.destroy = purser.memory.before.inspect;
  await purser.stop(token, id);
  await has(`purser_backend_up{${of}} 0`);
  await has(`purser_backend_calls_total{${of},call="destroy",code="failed"} 1`);
  await has('purser_backend_up{slot="provider_three",backend="container"} 1');
  delete purser.memory.before.inspect;
  delete purser.memory.before.destroy;
  await purser.stop(token, id);
  await has(`purser_backend_up{${of}} 1`);
  await has(`purser_leases_total{${of},event="ended"} 1`);
  await has(`purser_leases_live{${of}} 0`);
});

test('a stream is timed to its first byte and to its end', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('hello'), FINISHED, counted(), DONE);
  await gateway.streamed();
  const all = (await purser.app.events.registry.metrics()).split('\n');
  for (const line of [
    'purser_upstream_first_byte_seconds_count{model="chat",upstream="local",stream="true"} 1',
    'purser_upstream_seconds_count{model="chat",upstream="local",stream="true"} 1',
    'purser_request_tokens_bucket{le="16",model="chat",upstream="local",kind="prompt"} 1',
    'purser_charged_usd_total{kind="chat",subject="chat"} 0.00012',
    'purser_ready 1',
  ])
    assert(all.includes(line), `${line}\nis not in\n${all.join('\n')}`);
});

test('what is frozen is ready all the same, and its own metrics say that it is frozen', async (t) => {
  const purser = await openTestServer(t);
  await purser.run('freeze', {});
  const all = (await purser.app.events.registry.metrics()).split('\n');
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  for (const line of [
    '# HELP purser_ready 1 while it can take new holds, as /readyz says, frozen or not.',
    'purser_ready 1',
    'purser_frozen_installations 1',
  ])
    assert(all.includes(line), line);
});

test('a model server is down in the metrics as its events say: over a restart, and no more once it is not configured', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const up = async () =>
    /^purser_upstream_up\{upstream="local"\} (\d)$/m.exec(await purser.app.events.registry.metrics())?.[1];
  const told = (event: string) => purser.log.filter((line) => line.includes(`"event":"upstream.${event}"`)).length;
  assert.equal(await up(), undefined);
  purser.upstream.handle = failure(401);
  await purser.chat(token);
  await purser.chat(token);
  assert.equal(await up(), '0');
  assert.deepEqual([told('misconfigured'), told('down')], [1, 1]);
  await writeWith(purser.app.ledger, () => {});
  await purser.reopen();
  assert.equal(await up(), '0');
  purser.upstream.handle = completion();
  await purser.chat(token);
  assert.deepEqual([await up(), told('back')], ['1', 1]);
  for (let i = 0; i < 3; i++) {
    purser.upstream.handle = reset;
    await purser.chat(token);
  }
  assert.equal(await up(), '0');
  const file = join(purser.directory, 'purser.yaml');
  const { router, ...settings } = parse(readFileSync(file, 'utf8'));
  writeFileSync(file, stringify(settings));
  await purser.run('reload', {});
  assert.equal(await up(), undefined);
});
