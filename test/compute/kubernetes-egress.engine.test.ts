import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import test, { type TestContext } from 'node:test';
import { newId } from '../../src/base/id.ts';
import type { Backend } from '../../src/compute/backend.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { systemOutside } from '../../src/egress/outside.ts';
import { openSite, PUBLIC } from '../egress/proxy-shared.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import type { KubernetesCluster } from './engines/kubernetes.ts';
import { settingsOn, sharedKubernetes } from './engines/kubernetes-subject.ts';
import { rentOne } from './rented.ts';

/** The address of the API server for pods. */
const API_SERVER = '10.0.0.1';

/**
 * Stands in for a network plugin that enforces the policy of leases, which this cluster has not: the bridge of all pods is down
 * until the end of the test, so that nothing passes from them or to them.
 */
function closePods(t: TestContext, { directory }: KubernetesCluster): void {
  const isIts = (file: string) => {
    try {
      return readFileSync(file, 'utf8').includes(`${directory}/etcd`);
    } catch {
      return false; // It has ended.
    }
  };
  const [, , pid] = (globSync('/proc/[0-9]*/cmdline').find(isIts) ?? '').split('/');
  const set = (state: 'up' | 'down') =>
    execFileSync('nsenter', [`--target=${pid}`, '--net', 'ip', 'link', 'set', 'docker0', state]);
  t.after(() => set('up'));
  set('down');
}

test('kubernetes: a pod reaches what is in the operator’s list, and nothing else where policies are enforced', async (t) => {
  const shared = await sharedKubernetes(t);
  if (!shared) return;
  const site = await openSite(t, 'HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n');
  const asked: string[] = [];
  const purser = await openTestServer(t, {
    settings: {
      compute: {
        provider_one: {
          ...settingsOn(shared.cluster, shared.kubeconfig),
          egress: ['good.test', '*.better.test:8080'],
        },
      },
    },
    outside: {
      async lookUp(host) {
        asked.push(host);
        return [PUBLIC];
      },
      dial: () => connect({ host: '127.0.0.1', port: site.port, allowHalfOpen: true }),
      isOwn: () => false,
      trust: systemOutside.trust,
    },
  });
  const { backend } = purser.app.slots.list[0] as { backend: Backend };
  const tryIt = () => selfTest({ backend, provisionSeconds: 60 }, newId('inst'), () => Math.floor(Date.now() / 1000));
  // The network of this cluster enforces nothing, and doctor says so.
  const open = await tryIt();
  assert.equal(open.ok, false);
  assert.match(open.detail, new RegExp(`it runs, but its pod reaches the API server \\(${API_SERVER} port 443\\)`));
  closePods(t, shared.cluster);
  const closed = await tryIt();
  assert.match(closed.detail, /and its way out opened; it was destroyed and is gone$/);
  assert.ok(closed.ok);

  const { id, token, sh } = await rentOne(purser, { cpus: 0.25, memory_gib: 0.25 });
  const good = () => sh('wget -q -O - http://good.test/');

  // The first command finds the way out open.
  assert.equal(await good(), 'hello\n');
  assert.equal(await sh('wget -q -O - http://a.better.test:8080/'), 'hello\n');
  assert.match(await sh('wget -q -O - http://bad.test/'), /403 Forbidden/);
  assert.match(await sh(`wget -q -O - http://${API_SERVER}:443/`), /403 Forbidden/);
  const variables = await sh('env | grep -i _proxy | sort');
  assert.equal(variables.split('\n').filter((it) => it.includes('=')).length, 8, variables);
  // What ignores the proxy finds no name server, and reaches neither the cluster nor its node.
  assert.equal(await sh('grep ^nameserver /etc/resolv.conf'), 'nameserver 127.0.0.1\n');
  assert.match(await sh('unset http_proxy; wget -q -T 2 -O - http://good.test/ || echo none'), /none/);
  for (const address of [`${API_SERVER} 443`, '172.17.0.1 443', '10.9.9.1 10250'])
    assert.match(await sh(`nc -w 2 ${address} </dev/null || echo none`), /none/, address);
  assert.deepEqual(asked, ['good.test', 'a.better.test']);

  const status = await purser.ask('POST', '/v1/compute/status', { token, body: { id } });
  assert.deepEqual(
    status.body.egress.map(({ host, bytes, refused }: Record<string, unknown>) => [host, bytes !== 0, refused]),
    [
      ['good.test', true, 0],
      ['a.better.test', true, 0],
      ['bad.test', false, 1],
      [API_SERVER, false, 1],
    ],
  );

  const narrow = (allow: string[]) => purser.ask('POST', '/v1/compute/egress', { token, body: { id, allow } });
  assert.equal((await narrow(['bad.test'])).status, 400);
  assert.equal((await narrow([])).status, 200);
  assert.match(await good(), /403 Forbidden/);
  assert.equal((await narrow(['good.test'])).status, 200);

  // The program is the tenant's own process: whoever ends it has no way out until it is opened again.
  const found =
    'for it in $(ls /proc); do [ "$(head -c 11 /proc/$it/cmdline 2>/dev/null)" = /proc/1/exe ] && echo $it; done';
  const programs = async () => (await sh(found)).trim().split('\n');
  await sh(`kill -9 ${(await programs()).join(' ')}`);
  await until('the way out is open again', async () => (await good()) === 'hello\n');
  // A server that starts again opens it again, and leaves one program.
  await purser.reopen();
  await until('the way out is open again', async () => (await good()) === 'hello\n');
  await until('one program is left', async () => (await programs()).length === 1);

  const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.equal(stopped.status, 200, stopped.text);
});
