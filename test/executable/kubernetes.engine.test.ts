import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import type { ApiObject, KubernetesCluster } from '../compute/engines/kubernetes.ts';
import { NAMESPACE, sharedKubernetes } from '../compute/engines/kubernetes-subject.ts';
import { openChromium } from '../helper/chromium.ts';
import { installation, type Serving } from '../helper/executable.ts';
import { plainSsh } from '../helper/plain-ssh.ts';
import { until } from '../helper/waiting.ts';

const SECONDS = 60;
const MORE_SECONDS = 45;
/** The Job's controller and the watchdog are each this late at most. */
const CHIP = { gpus: 0, cpus: 0.25, memory_gib: 0.0625, disk_gb: 1, price_hourly_usd: '0.36' };

/** A Purser that leases Jobs of the cluster as the user `purser`, with a wallet. */
async function openPurser(t: TestContext, cluster: KubernetesCluster, kubeconfig: string) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-rent-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const backend = { backend: 'kubernetes', kubeconfig, namespace: NAMESPACE, image: cluster.image, pull: 'never' };
  const purser = installation(t, { settings: { compute: { provider_two: { ...backend, chips: { small: CHIP } } } } });
  let server: Serving = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const order = ['--account', accounts[0].id, '--name', 'a', '--budget-cents', '500'];
  const wallet = await purser.json('wallet', 'create', ...order);
  const ask = (path: string, body: object, key?: string) =>
    server.ask('POST', `/v1/compute/${path}`, { token: wallet.agent_token, body, ...(key ? { key } : {}) });
  return {
    purser,
    directory,
    wallet,
    ask,
    server: () => server,
    async kill() {
      server.kill('SIGKILL');
      await server.ended;
    },
    async serve() {
      server = await purser.serve();
    },
    async rent(seconds = SECONDS) {
      const spec = { chip: 'small', max_seconds: seconds };
      const created = await ask('create', { provider: 'provider_two', spec }, randomUUID());
      assert.equal(created.status, 200, created.text);
      return until('the lease runs', async () => {
        const { body } = await ask('status', { id: created.body.id });
        assert.ok(['provisioning', 'running'].includes(body.status), JSON.stringify(body));
        return body.status === 'running' && body;
      });
    },
  };
}

test('leases on a real Kubernetes, by the executable alone and the rights of the page', async (t) => {
  const shared = await sharedKubernetes(t);
  if (!shared) return;
  const { cluster, kubeconfig } = shared;
  // An API server that has just started, or a busy machine, may answer with an error.
  const pods = (): Promise<ApiObject[]> =>
    until(
      'the API lists the pods',
      async () => (await cluster.api('GET', `/api/v1/namespaces/${NAMESPACE}/pods`)).body.items,
    );
  const first = await openPurser(t, cluster, kubeconfig);
  const { ask, purser } = first;

  let expires = 0;
  let id = '';
  await t.test('rented, used, extended; it outlives a Purser and an API server that are killed', async () => {
    const running = await first.rent();
    id = running.id;
    assert.deepEqual([running.charged_usd, running.reserved_usd, running.billing_state], ['0.006', '0.00', 'settled']);
    const said = await ask('exec', { id, command: 'echo hello; exit 3' });
    assert.deepEqual([said.body.stdout, said.body.exit_code], ['hello\n', 3], said.text);
    const upload = await ask('upload', {
      id,
      path: '/tmp/deep/file',
      content_base64: Buffer.from('taken').toString('base64'),
    });
    assert.equal(upload.status, 200, upload.text);
    const access = (await ask('ssh', { id })).body;
    assert.equal(await plainSsh(access, first.directory, 'cat', '/tmp/deep/file'), 'taken');
    const code = await plainSsh(access, first.directory, 'exit 9').catch(({ cause }) => cause.code);
    assert.equal(code, 9);

    const site =
      'mkdir -p /tmp/site; echo "<h1>Hello</h1>" >/tmp/site/index.html; httpd -p 127.0.0.1:8080 -h /tmp/site';
    assert.equal((await ask('exec', { id, command: site })).body.exit_code, 0);
    const { url } = (await ask('port', { id, port: 8080 })).body;
    const chromium = await openChromium(t, new URL(url).origin);
    if (chromium) {
      const { page, context } = await chromium.open();
      await page.goto(url);
      assert.equal(await page.textContent('h1'), 'Hello');
      await context.close();
    }

    const extended = await ask('extend', { id, additional_seconds: MORE_SECONDS }, randomUUID());
    assert.equal(extended.status, 200, extended.text);
    expires = extended.body.expires_at;
    assert.deepEqual([expires, extended.body.charged_usd], [running.expires_at + MORE_SECONDS, '0.0105']);

    await first.kill();
    await first.serve();
    assert.equal((await ask('exec', { id, command: 'cat /tmp/deep/file' })).body.stdout, 'taken');

    await cluster.stopApiServer();
    const failed = await ask('exec', { id, command: 'true' });
    assert.ok(failed.status >= 500, failed.text);
    assert.equal((await ask('status', { id })).body.status, 'running');
    await cluster.startApiServer();
    assert.equal((await ask('exec', { id, command: 'cat /tmp/deep/file' })).body.stdout, 'taken');
  });

  // Rented now, for a node that is killed when the first lease has ended.
  const second = await openPurser(t, cluster, kubeconfig);
  const doomed = await second.rent(600);

  await t.test('it ends at its deadline with Purser dead', async () => {
    await first.kill();
    const mine = (all: ApiObject[]) => all.filter((it) => JSON.stringify(it.metadata).includes(id.replace('_', '-')));
    assert.equal(mine(await pods()).length, 1, 'it outlives Purser');
    const isRunning = async () => mine(await pods()).some((it) => it.status.phase === 'Running');
    await until('it has ended', async () => !(await isRunning()));
    const late = Date.now() / 1000 - expires;
    t.diagnostic(`it had ended ${late.toFixed(1)} s after its deadline`);
    assert.ok(late > -1, `${late} s`);
    await first.serve();
    const ended = await until('Purser knows it', async () => {
      const { body } = await ask('status', { id });
      return body.ended_at !== null && body;
    });
    assert.deepEqual([ended.status, ended.end_reason], ['stopped', 'lease_expired']);
    assert.equal((await purser.json('wallet', 'close', first.wallet.id, '--wait')).status, 'closed');
    await until('nothing of it is left', async () => mine(await pods()).length === 0);
    assert.equal((await purser.cli('ledger', 'verify')).code, 0);
  });

  await t.test('a killed node leaves nothing that costs, and the operator is told', async () => {
    assert.equal((await second.ask('exec', { id: doomed.id, command: 'true' })).status, 200);
    t.after(() => cluster.startNode());
    await cluster.killNode();
    const killed = Date.now();
    const after = () => `${((Date.now() - killed) / 1000).toFixed(1)} s after the node was killed`;
    const failed = await second.ask('exec', { id: doomed.id, command: 'true' });
    assert.ok(failed.status >= 500, failed.text);
    // As a cluster's autoscaler or its operator does with a node that is gone. Until then nobody knows whether its pods run.
    await cluster.kubectl(['delete', 'node', cluster.node]);
    const body = await until('it has ended', async () => {
      await second.ask('exec', { id: doomed.id, command: 'true' }); // Has Purser look.
      const { body } = await second.ask('status', { id: doomed.id });
      return body.ended_at !== null && body;
    });
    t.diagnostic(`${after()}: ${JSON.stringify(body)}`);
    assert.deepEqual(
      [body.status, body.end_reason, body.billing_state, body.reserved_usd, body.charged_usd],
      ['stopped', 'provider_ended', 'settled', '0.00', doomed.charged_usd],
    );
    const told = await second.server().logged('lease.ended');
    t.diagnostic(JSON.stringify(told));
    assert.deepEqual([told.resource, told.reason], [doomed.id, 'provider_ended']);
    // The Job's controller made another pod when the node's was gone; it is removed with the Job.
    await until('the cluster has nothing of it', async () => (await pods()).length === 0);
    const closed = await second.purser.json('wallet', 'close', second.wallet.id, '--wait');
    assert.equal(closed.status, 'closed');
    assert.equal((await second.purser.cli('ledger', 'verify')).code, 0);
  });
});
