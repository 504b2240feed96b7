import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { request } from 'undici';
import WebSocket from 'ws';
import { until } from '../helper/waiting.ts';
import { openFakeKubernetes } from './engines/fake-kubernetes.ts';
import type { ApiObject } from './engines/kubernetes.ts';
import { sharedKubernetes } from './engines/kubernetes-subject.ts';

/** What the backend relies on, of a real API server and of the fake one alike. */
type Api = {
  url: string;
  token: string;
  ca?: Buffer;
  call(method: string, path: string, body?: object): Promise<{ status: number; body: ApiObject }>;
};

const jobOf = (name: string, image: string) => ({
  apiVersion: 'batch/v1',
  kind: 'Job',
  metadata: { name, labels: { test: 'list' } },
  spec: {
    backoffLimit: 0,
    template: {
      spec: {
        restartPolicy: 'Never',
        terminationGracePeriodSeconds: 0,
        containers: [
          {
            name: 'main',
            image,
            command: ['sleep', 'infinity'],
            resources: { limits: { cpu: '100m', memory: '64Mi' } },
          },
        ],
      },
    },
  },
});

async function examine({ url, token, ca, call }: Api, image: string): Promise<void> {
  const jobs = '/apis/batch/v1/namespaces/default/jobs';
  const made = [await call('POST', jobs, jobOf('a', image)), await call('POST', jobs, jobOf('b', image))];
  assert.deepEqual(
    made.map((it) => it.status),
    [201, 201],
  );
  const again = await call('POST', jobs, jobOf('a', image));
  assert.deepEqual([again.status, again.body.kind, again.body.reason], [409, 'Status', 'AlreadyExists']);
  const none = await call('GET', `${jobs}/none`);
  assert.deepEqual([none.status, none.body.kind, none.body.reason], [404, 'Status', 'NotFound']);
  const patched = await call('PATCH', `${jobs}/a`, {
    metadata: { annotations: { x: 'y' } },
    spec: { activeDeadlineSeconds: 500 },
  });
  assert.deepEqual([patched.body.spec.activeDeadlineSeconds, patched.body.metadata.annotations.x], [500, 'y']);
  const first = (await call('GET', `${jobs}?labelSelector=test=list&limit=1`)).body;
  const rest = (
    await call('GET', `${jobs}?labelSelector=test=list&limit=1&continue=${encodeURIComponent(first.metadata.continue)}`)
  ).body;
  assert.deepEqual([first.kind, rest.kind, rest.metadata.continue ?? ''], ['JobList', 'JobList', '']);
  assert.deepEqual([...first.items, ...rest.items].map((it: ApiObject) => it.metadata.name).sort(), ['a', 'b']);

  const pods = '/api/v1/namespaces/default/pods';
  const { spec } = jobOf('a', image).spec.template;
  const tried = await call('POST', `${pods}?dryRun=All`, {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'a' },
    spec,
  });
  assert.equal(tried.status, 201);
  assert.equal((await call('GET', `${pods}/a`)).status, 404);
  const pod = await until('the pod of a runs', async () => {
    const [it] = (await call('GET', `${pods}?labelSelector=job-name=a`)).body.items;
    return it?.status.phase === 'Running' && it;
  });
  assert.equal(pod.metadata.ownerReferences[0].uid, made[0]?.body.metadata.uid);

  const refused = await new Promise<{ status: number | undefined; text: string }>((resolve, reject) => {
    const path = `${pods}/${pod.metadata.name}/exec?command=true&stdout=true`;
    const socket = new WebSocket(`${url.replace('http', 'ws')}${path}`, ['v9.channel.k8s.io'], {
      headers: { authorization: `Bearer ${token}` },
      ...(ca ? { ca } : {}),
    });
    socket.once('unexpected-response', (_, response) => {
      let text = '';
      response.on('data', (chunk) => {
        text += chunk;
      });
      response.once('end', () => resolve({ status: response.statusCode, text }));
    });
    socket.once('error', reject).once('open', () => reject(new Error('it speaks v9')));
  });
  assert.deepEqual(refused, { status: 403, text: '' });

  const other = { kind: 'DeleteOptions', apiVersion: 'v1', preconditions: { uid: 'another' } };
  const kept = await call('DELETE', `${jobs}/a`, other);
  assert.deepEqual([kept.status, kept.body.reason], [409, 'Conflict']);
  for (const name of ['a', 'b'])
    await call('DELETE', `${jobs}/${name}`, { ...other, preconditions: {}, propagationPolicy: 'Foreground' });
  await until('the jobs and their pods are gone', async () => {
    const left = [await call('GET', jobs), await call('GET', `${pods}?labelSelector=job-name`)];
    return left.every(({ body }) => body.items.length === 0);
  });
}

test('the fake API behaves as the backend relies on', async (t) => {
  const fake = await openFakeKubernetes(t);
  fake.protocols = ['v5.channel.k8s.io'];
  const call = async (method: string, path: string, body?: object) => {
    const answer = await request(`${fake.url}${path}`, {
      method: method as 'GET',
      body: body === undefined ? null : JSON.stringify(body),
    });
    return { status: answer.statusCode, body: (await answer.body.json()) as ApiObject };
  };
  await examine({ url: fake.url, token: '', call }, 'busybox');
});

test('a real API behaves as the backend relies on', async (t) => {
  const shared = await sharedKubernetes(t);
  if (!shared) return;
  const { url, token, ca, api, image } = shared.cluster;
  await examine({ url, token, ca: readFileSync(ca), call: api }, image);
});

test('the cluster of the tests runs jobs and passes exit codes, again after its API server and its node were killed', async (t) => {
  const cluster = (await sharedKubernetes(t))?.cluster;
  if (!cluster) return;
  t.after(() => cluster.kubectl(['delete', 'jobs', '--all', '--wait=false']));
  const create = (name: string) =>
    cluster.api('POST', '/apis/batch/v1/namespaces/default/jobs', jobOf(name, cluster.image));
  const running = (name: string) =>
    until(`the pod of ${name} runs`, async () => {
      const { body } = await cluster.api('GET', `/api/v1/namespaces/default/pods?labelSelector=job-name=${name}`);
      const [pod] = body.items;
      return pod?.status.phase === 'Running' && pod.metadata.name;
    });

  assert.equal((await create('first')).status, 201);
  const pod = await running('first');
  await assert.rejects(cluster.kubectl(['exec', pod, '--', 'sh', '-c', 'exit 7']), { code: 7 });
  assert.equal((await create('first')).status, 409);

  await cluster.stopApiServer();
  await assert.rejects(cluster.api('GET', '/readyz'), { code: 'ECONNREFUSED' });
  await cluster.startApiServer();
  assert.equal((await cluster.kubectl(['exec', pod, '--', 'echo', 'still here'])).trim(), 'still here');

  await cluster.killNode();
  await cluster.startNode();
  assert.equal((await create('second')).status, 201);
  await running('second');
});
