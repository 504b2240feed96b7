import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { request } from 'undici';
import { importImage } from '../compute/engines/docker.ts';
import { type ApiObject, type KubernetesCluster, openKubernetes } from '../compute/engines/kubernetes.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';

const MANIFEST = fileURLToPath(new URL('../../docs/kubernetes.yaml', import.meta.url));
const KUSTOMIZATION = readFileSync(new URL('../../packaging/kustomization.yaml', import.meta.url), 'utf8');
const PAGE = readFileSync(new URL('../../docs/kubernetes.md', import.meta.url), 'utf8');
const IMAGE = 'localhost/purser:1';
const UID = 65532;

/** The image that the Dockerfile makes, without building it: the executable and its libraries. */
async function importPurser({ docker, directory }: KubernetesCluster): Promise<void> {
  const root = join(directory, 'image');
  const libraries = execFileSync('ldd', [EXECUTABLE], { encoding: 'utf8' }).match(/\/\S+/g) ?? [];
  for (const file of libraries) {
    mkdirSync(join(root, dirname(file)), { recursive: true });
    copyFileSync(file, join(root, file));
  }
  copyFileSync(EXECUTABLE, join(root, 'purser'));
  execFileSync('tar', ['-C', root, '--create', '--file', `${root}.tar`, '.']);
  await importImage(docker, `${root}.tar`, { repo: IMAGE, changes: ['ENTRYPOINT ["/purser"]', 'CMD ["serve"]'] });
}

/** A disk of the node for the claim of the manifest. This one volume type takes fsGroup as a real disk does. */
function describeVolume({ directory, node }: KubernetesCluster): object {
  const path = join(directory, 'volume');
  mkdirSync(path);
  const term = { matchExpressions: [{ key: 'kubernetes.io/hostname', operator: 'In', values: [node] }] };
  return {
    apiVersion: 'v1',
    kind: 'PersistentVolume',
    metadata: { name: 'data' },
    spec: {
      capacity: { storage: '10Gi' },
      accessModes: ['ReadWriteOnce'],
      local: { path },
      nodeAffinity: { required: { nodeSelectorTerms: [term] } },
    },
  };
}

test('Purser on a cluster, by its page: ready, rents by its service account, and comes back with its books', async (t) => {
  const cluster = await openKubernetes(t);
  if (!cluster) return;
  const { kubectl } = cluster;
  await importPurser(cluster);
  const apply = (text: string) => kubectl(['apply', '--validate=false', '--filename', '-'], text);
  await apply(JSON.stringify(describeVolume(cluster)));

  // The commands of the page.
  for (const line of ['create namespace purser', 'rollout status statefulset/purser']) assert.ok(PAGE.includes(line));
  await kubectl(['create', 'namespace', 'purser']);
  const key = join(cluster.directory, 'master.key');
  writeFileSync(key, randomBytes(32).toString('hex'));
  await kubectl(['--namespace', 'purser', 'create', 'secret', 'generic', 'purser-master-key', `--from-file=${key}`]);
  // The base of a release, with the image in the place that its kustomization names.
  const base = join(cluster.directory, 'kubernetes');
  mkdirSync(base);
  copyFileSync(MANIFEST, join(base, 'purser.yaml'));
  const [name, tag] = IMAGE.split(':');
  const placed = KUSTOMIZATION.replace('newTag:', `newName: ${name}, newTag:`).replace('@VERSION@', tag as string);
  writeFileSync(join(base, 'kustomization.yaml'), placed);
  const manifest = (await kubectl(['kustomize', base])).replace('image: debian:12', `image: ${cluster.image}`);
  assert.ok(manifest.includes(IMAGE) && manifest.includes(cluster.image));
  await apply(manifest);
  const pod = async (): Promise<ApiObject> =>
    (await cluster.api('GET', '/api/v1/namespaces/purser/pods/purser-0')).body;
  const isReady = ({ status }: ApiObject) =>
    status?.conditions?.some((it: ApiObject) => it.type === 'Ready' && it.status === 'True');
  const ready = (what: string, before?: string) =>
    until(what, async () => {
      const it = await pod();
      return it.metadata?.uid !== before && isReady(it) && it;
    }).catch(async (error) => {
      const logs = await kubectl(['--namespace', 'purser', 'logs', 'purser-0']).catch(String);
      const events = await kubectl(['get', 'events', '--all-namespaces']).catch(String);
      throw new Error(`${error.message}\n${JSON.stringify((await pod()).status)}\n${logs}\n${events}`);
    });
  const first = await ready('Purser is ready');

  const run = async (...args: string[]) =>
    JSON.parse(await kubectl(['--namespace', 'purser', 'exec', 'purser-0', '--', '/purser', '--json', ...args]));
  const doctor = await run('doctor');
  const own = doctor.checks.filter((it: { name: string }) => it.name.startsWith('provider_one kubernetes'));
  t.diagnostic(own.map((it: { name: string; detail: string }) => `${it.name}: ${it.detail}`).join('\n'));
  assert.ok(own.every((it: { ok: boolean }) => it.ok));

  const account = await run('account', 'create', 'agents', '--credit-cents', '500');
  const wallet = await run('wallet', 'create', '--account', account.id, '--name', 'agent', '--budget-cents', '200');
  let url = `http://127.0.0.1:${await cluster.forward(first.status.podIP, 7420)}`;
  const ask = async (path: string, body: object, key?: string) => {
    const answer = await request(`${url}/v1/compute/${path}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${wallet.agent_token}`,
        'content-type': 'application/json',
        ...(key ? { 'idempotency-key': key } : {}),
      },
      body: JSON.stringify(body),
    });
    const said = (await answer.body.json()) as ApiObject;
    assert.equal(answer.statusCode, 200, JSON.stringify(said));
    return said;
  };
  const spec = { cpus: 0.25, memory_gib: 0.07, max_seconds: 300 };
  const { id } = await ask('create', { provider: 'provider_one', spec }, randomUUID());
  const lease = await until('the lease runs', async () => {
    const it = await ask('status', { id });
    return it.status === 'running' && it;
  });
  assert.equal((await ask('exec', { id, command: 'echo kept > /tmp/kept; exit 7' })).exit_code, 7);

  await kubectl(['--namespace', 'purser', 'delete', 'pod', 'purser-0']);
  const second = await ready('Purser is back', first.metadata.uid);
  url = `http://127.0.0.1:${await cluster.forward(second.status.podIP, 7420)}`;
  const after = await ask('status', { id });
  assert.deepEqual(
    [after.status, after.expires_at, after.charged_usd],
    ['running', lease.expires_at, lease.charged_usd],
  );
  assert.equal((await ask('exec', { id, command: 'cat /tmp/kept' })).stdout, 'kept\n');
  assert.equal((await run('wallet', 'show', wallet.id)).status, 'active');

  await ask('stop', { id });
  const left = async () => (await cluster.api('GET', '/apis/batch/v1/namespaces/purser-leases/jobs')).body.items.length;
  await until('its Job is gone', async () => (await left()) === 0);
  await kubectl(['--namespace', 'purser', 'exec', 'purser-0', '--', '/purser', 'ledger', 'verify']);
  assert.equal(first.spec.containers[0].securityContext.readOnlyRootFilesystem, true);
  assert.equal(second.spec.securityContext.runAsUser, UID);
});
