import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { stringify } from 'yaml';
import { openSshd, type Sshd } from '../compute/engines/sshd.ts';
import { type Installation, installation } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';

/** A slot on the hosts of a pool, as purser.yaml has it. */
function poolOf(hosts: Sshd[], over: Partial<Sshd['host']> = {}) {
  const settings = hosts.map(({ host }) => ({ ...host, price_hourly_usd: '0.36', ...over }));
  return { provider_two: { backend: 'ssh', hosts: settings } };
}

/** An installation that has stopped while a tenant lives on the first of two pool hosts. */
async function withLease(t: TestContext) {
  const hosts = [await openSshd(t), await openSshd(t, { chip: 'other-chip' })];
  const [one, two] = hosts;
  if (!one || !two) return undefined;
  const purser = installation(t, { settings: null });
  const file = join(purser.directory, 'purser.yaml');
  const configure = (compute: object) =>
    writeFileSync(file, stringify({ listen: '127.0.0.1:0', ssh: { listen: '127.0.0.1:0' }, compute }));
  configure(poolOf([one, two]));
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '500'];
  const { agent_token: token } = await purser.json(...create, '--expires', '7200');
  const made = await server.ask('POST', '/v1/compute/create', {
    token,
    key: randomUUID(),
    body: { provider: 'provider_two', spec: { chip: 'test-chip', max_seconds: 3600 } },
  });
  assert.equal(made.status, 200, made.text);
  await server.stop();
  return { purser, one, two, configure, id: made.body.id as string };
}

/** `purser serve` must say no, in these words, and leave nothing that listens. */
async function refusesToServe(purser: Installation, what: RegExp, id: string) {
  const said = await purser.cli('serve');
  assert.equal(said.code, 1, said.stderr);
  assert.match(said.stderr, what);
  assert.ok(said.stderr.includes(id), 'the lease is named');
  assert.match(said.stderr, /Put it back.*purser resource abandon ID --reason/s);
  assert.ok(!said.stderr.includes('"event":"serving"'));
  assert.equal(existsSync(join(purser.directory, 'purser.sock')), false);
}

test('a backend with a live lease cannot be taken out of the configuration; put back, the lease goes on', async (t) => {
  const it = await withLease(t);
  if (!it) return;
  const { purser, one, two, configure, id } = it;
  const chips = { h100: { cpus: 1, memory_gib: 1, price_hourly_usd: '1' } };
  const other = { ...one.host, state_directory: '/var/lib/elsewhere' };
  for (const [compute, what] of [
    [{}, /compute\.provider_two no longer has the backend ssh/],
    [{ provider_two: { backend: 'slurm', job_user: 'nobody', chips } }, /no longer has the backend ssh/],
    [poolOf([two]), new RegExp(`no longer has the pool host 127\\.0\\.0\\.1:${one.host.port},`)],
    [poolOf([one], { port: two.host.port }), /no longer has the pool host/],
    [poolOf([{ ...one, host: other }, two]), /with the host key and state_directory that it had/],
    [poolOf([one], { host_key: two.host.host_key }), /with the host key and state_directory that it had/],
  ] as const) {
    configure(compute);
    await refusesToServe(purser, what, id);
  }
  assert.ok(existsSync(join(one.pool, 'tenant')), 'nobody ended it');

  configure(poolOf([one])); // A host without a tenant may go.
  const server = await purser.serve();
  await purser.json('resource', 'stop', id);
  // On a busy machine its end may take longer than the command waits.
  await until('the lease has ended', async () => (await purser.json('resource', 'show', id)).status === 'stopped');
  assert.equal(existsSync(join(one.pool, 'tenant')), false);
  await server.stop();
  configure({});
  await (await purser.serve()).stop();
});

test('where a backend is gone for good, its leases can be listed, wanted to end, and let go of', async (t) => {
  const it = await withLease(t);
  if (!it) return;
  const { purser, configure, id } = it;
  configure({});
  await refusesToServe(purser, /no longer has the backend ssh/, id);
  const { resources } = await purser.json('resource', 'list');
  assert.deepEqual(
    resources.map((it: { id: string; status: string }) => [it.id, it.status]),
    [[id, 'running']],
  );
  const stopping = await purser.json('resource', 'stop', id);
  assert.equal(stopping.status, 'stopping', 'nobody has confirmed that it ended');
  assert.match(stopping.last_error, /the backend ssh is no longer configured for provider_two/);
  await refusesToServe(purser, /no longer has the backend ssh/, id);
  const gone = await purser.json('resource', 'abandon', id, '--reason', 'the host burned down');
  assert.deepEqual([gone.status, gone.abandoned_reason], ['stopped', 'the host burned down']);
  assert.deepEqual((await purser.json('resource', 'list')).resources, []);
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  const server = await purser.serve();
  await server.stop();
});
