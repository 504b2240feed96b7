import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import type { Backend, SpecOne } from '../../src/compute/backend.ts';
import { jobName } from '../../src/compute/engines/kubernetes/describe.ts';
import { collect } from '../../src/compute/machine/collect.ts';
import { until } from '../helper/waiting.ts';
import { conform, gone } from './conformance.ts';
import { LIST_WRITABLE } from './engines/disk.ts';
import type { KubernetesCluster } from './engines/kubernetes.ts';
import { kubernetesSubject, NAMESPACE, sharedKubernetes } from './engines/kubernetes-subject.ts';
import { workInGuest } from './guest.ts';

const now = () => Math.floor(Date.now() / 1000);

const backends: Backend[] = [];
after(async () => {
  for (const it of backends) await it.close();
});

async function subject(t: TestContext, change: Parameters<typeof kubernetesSubject>[2] = {}) {
  const it = await sharedKubernetes(t);
  if (!it) return undefined;
  const opened = kubernetesSubject(it.cluster, it.kubeconfig, change);
  backends.push(opened.backend);
  return { ...opened, cluster: it.cluster };
}

let count = 0;
const freshTag = () => `purser-inst-conformance-res-own${count++}-${process.pid}`;
async function start({ backend, spec }: NonNullable<Awaited<ReturnType<typeof subject>>>, seconds = 600) {
  const tag = freshTag();
  const order = { tag, quote: await backend.quote(spec), deadline: now() + seconds };
  assert.deepEqual(await backend.create(order), { kind: 'created', ref: tag });
  await until('it runs', async () => {
    const it = await backend.inspect(tag);
    assert.notEqual(it?.state, 'ended', it?.note);
    return it?.state === 'running' && (await backend.guest.prove(tag)) === undefined;
  });
  return tag;
}
const sh = async (backend: Backend, tag: string, command: string) => {
  const { stdout, stderr } = await backend.guest.exec(tag, { command, timeoutSeconds: 60, streamBytesMax: 100_000 });
  return `${stdout}${stderr}`.trim();
};
const podOf = async (cluster: KubernetesCluster, tag: string) =>
  JSON.parse(
    await cluster.kubectl(['get', 'pods', '-n', NAMESPACE, '-l', `purser.lease=${jobName(tag)}`, '-o', 'json']),
  ).items[0];

conform('kubernetes', (t) => subject(t));
workInGuest('kubernetes', (t) => subject(t));

test('kubernetes: the GPUs of a pod are those of its spec', async (t) => {
  const { backend, spec } = (await subject(t)) ?? {};
  const gpus = (count: number) => backend?.guest.gpus?.('a pod', { ...(spec as SpecOne), gpus: count });
  if (backend) assert.deepEqual([0, 2].map(gpus), [0, 2]);
});

test('kubernetes: the rights of the page are enough, and what is missing has a name', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend, cluster } = opened;
  const findings = await backend.doctor.check();
  assert.deepEqual(
    findings.map(({ name, ok }) => [name, ok]),
    ['cluster', 'rights', 'network', 'pod', 'kernel'].map((it) => [it, true]),
    JSON.stringify(findings),
  );
  assert.match(findings.find((it) => it.name === 'rights')?.detail ?? '', /^all that leases need/);
  const elsewhere = await subject(t, { namespace: 'default' });
  const rights = (await elsewhere?.backend.doctor.check())?.find((it) => it.name === 'rights');
  assert.equal(rights?.ok, false);
  assert.match(rights?.detail ?? '', /may not create jobs, .*create pods\/exec/);
  const quote = await backend.quote(opened.spec);
  const refused = await elsewhere?.backend.create({ tag: freshTag(), quote, deadline: now() + 600 });
  assert.equal(refused?.kind === 'refused' && refused.code, 'provider_unavailable');
  assert.match(refused?.kind === 'refused' ? (refused.words ?? '') : '', /forbidden/);
  await cluster.kubectl(['get', 'networkpolicy', '-n', NAMESPACE]);
});

test('kubernetes: a lease is limited, has no token, no capabilities and no way out', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend, cluster } = opened;
  const tag = await start(opened);
  assert.equal(
    await sh(backend, tag, "awk '/^Cap(Prm|Eff|Bnd)|^NoNewPrivs/ { print $2 }' /proc/1/status; id -u; id -g; pwd"),
    [...Array(3).fill('0'.repeat(16)), '1', '1000', '1000', '/home/lease'].join('\n'),
  );
  assert.match(await sh(backend, tag, 'ls /var/run/secrets'), /No such file/);
  assert.match(await sh(backend, tag, 'env'), /NVIDIA_VISIBLE_DEVICES=void/);
  assert.equal(
    await sh(backend, tag, 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null'),
    String(128 * 1024 ** 2),
  );
  const pod = await podOf(cluster, tag);
  assert.deepEqual(pod.spec.containers[0].resources.requests, pod.spec.containers[0].resources.limits);
  assert.deepEqual(pod.spec.containers[0].resources.limits, {
    cpu: '250m',
    memory: '128Mi',
    'ephemeral-storage': '1Gi',
  });
  assert.equal(pod.spec.automountServiceAccountToken, false);
  const { items } = JSON.parse(await cluster.kubectl(['get', 'networkpolicy', '-n', NAMESPACE, '-o', 'json']));
  const policies = new Map(
    items.map((it: { metadata: { name: string }; spec: object }) => [it.metadata.name, it.spec]),
  );
  assert.deepEqual(policies.get('purser-none'), {
    podSelector: { matchExpressions: [{ key: 'purser.lease', operator: 'Exists' }] },
    policyTypes: ['Ingress', 'Egress'],
  });
  assert.ok(JSON.stringify(policies.get('purser-internet')).includes('"169.254.0.0/16"'));
  assert.deepEqual(
    [pod.metadata.labels['purser.network'], pod.metadata.labels['purser.lease']],
    ['none', jobName(tag)],
  );
  await gone(backend, tag);
});

test('kubernetes: a tenant writes to directories of the pod, to memory, and to one file that the kubelet mounts', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend } = opened;
  const tag = await start(opened);
  const writable = (await sh(backend, tag, LIST_WRITABLE)).split('\n').sort();
  t.diagnostic(writable.join('; '));
  const [, type] = /^(\S+) directory \/home\/lease$/m.exec(writable.join('\n')) ?? [];
  // What lies in the pod's volumes and in its layer is measured by the kubelet.
  const measured = ['/home/lease', '/tmp', '/run/purser'].map((path) => `${type} directory ${path}`);
  const others = writable.filter((it) => !measured.includes(it) && !it.startsWith('overlay directory '));
  assert.deepEqual(others, [`${type} file /dev/termination-log`, 'tmpfs directory /dev/shm']);
  await backend.guest
    .exec(tag, {
      command: 'head -c 30000000 /dev/zero >/dev/termination-log',
      timeoutSeconds: 60,
      streamBytesMax: 100,
    })
    .catch(() => {});
  const { exceeded, note } = await until('that ends it', async () => {
    const found = await backend.inspect(tag);
    return found?.state === 'ended' && found;
  });
  assert.equal(exceeded, 'disk', note);
  assert.match(note ?? '', /^it wrote more than 16 MiB to files that the engine mounts into it/);
  await gone(backend, tag);
});

test('kubernetes: a session passes much, takes no more than is read, and ends at the end of its input', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend } = opened;
  const tag = await start(opened);
  const bytes = Buffer.alloc(3_000_000, 'purser ');
  const session = await backend.guest.session(tag, { command: 'cat; echo over >&2; exit 4', terminal: undefined });
  const said = collect(session.stderr as NonNullable<typeof session.stderr>, 1000);
  session.stdin.end(bytes);
  const out = await collect(session.stdout, bytes.length * 2);
  assert.ok(out.bytes.equals(bytes));
  assert.deepEqual([await session.ended, (await said).bytes.toString()], [{ code: 4 }, 'over\n']);

  const endless = await backend.guest.session(tag, { command: 'cat /dev/zero', terminal: undefined });
  await until('it has begun', async () => endless.stdout.readableLength > 0);
  const before = process.memoryUsage().rss;
  await new Promise((resolve) => setTimeout(resolve, 1500));
  assert.ok(process.memoryUsage().rss - before < 64 * 1024 ** 2, 'what nobody reads stays there');
  endless.ended.catch(() => {});
  endless.kill();
  await until('it was killed', async () => (await sh(backend, tag, 'pidof cat')) === '');
  await gone(backend, tag);
});

test('kubernetes: a terminal has its size, and takes another', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend } = opened;
  const tag = await start(opened);
  const terminal = { term: 'xterm', columns: 90, rows: 30 };
  const command = 'until [ "$(stty size 2>/dev/null)" = "40 100" ]; do sleep 0.1; done; echo $TERM; exit 3';
  const session = await backend.guest.session(tag, { command, terminal });
  assert.equal(session.stderr, undefined);
  session.resize(100, 40);
  const said = collect(session.stdout, 1000);
  assert.deepEqual(await session.ended, { code: 3 });
  assert.equal((await said).bytes.toString(), 'xterm\r\n');
  await gone(backend, tag);
});

test('kubernetes: the Job ends a lease whose tenant moved the own watchdog, also after an extension', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend } = opened;
  const tag = await start(opened, 120);
  const first = now() + 20;
  assert.deepEqual(await backend.extend(tag, first), { kind: 'done' });
  const moved = first + 10;
  assert.deepEqual(await backend.extend(tag, moved), { kind: 'done' });
  assert.equal(await sh(backend, tag, '/proc/1/exe 9999999999'), '9999999999');
  await until('the Job has ended it', async () => {
    const it = await backend.inspect(tag); // And so has its controller look again.
    if (it?.state === 'running') return false;
    assert.ok(now() >= moved, `not before its deadline: ${it?.note}`);
    return /DeadlineExceeded/.test(it?.note ?? ''); // The controller removes the pod first, and says why a moment later.
  });
  await gone(backend, tag);
});

test('kubernetes: its own watchdog ends a lease while the API server is away', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend, cluster } = opened;
  const tag = await start(opened);
  const deadline = now() + 30;
  assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
  const { uid } = (await podOf(cluster, tag)).metadata;
  await cluster.stopApiServer();
  t.after(() => cluster.startApiServer());
  await assert.rejects(backend.inspect(tag));
  const { quote } = { quote: await backend.quote(opened.spec) };
  assert.equal((await backend.create({ tag: freshTag(), quote, deadline: now() + 600 })).kind, 'refused');
  const isRunning = async () =>
    (await cluster.docker.listContainers({ filters: { name: [`k8s_lease_.*${uid}`] } })).length > 0;
  assert.ok(await isRunning());
  await until('it has ended on its node', async () => !(await isRunning()));
  assert.ok(now() >= deadline, 'not before its deadline');
  await cluster.startApiServer();
  await until('the API has heard of it', async () => (await backend.inspect(tag))?.state === 'ended');
  assert.match((await backend.inspect(tag))?.note ?? '', /deadline/i);
  await gone(backend, tag);
});

test('kubernetes: a connection that is cut leaves the outcome of a command open, and the lease alive', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend, cluster } = opened;
  const tag = await start(opened);
  const command = backend.guest.exec(tag, {
    command: 'touch begun; sleep 30',
    timeoutSeconds: 60,
    streamBytesMax: 100,
  });
  command.catch(() => {});
  await until('it runs', async () => (await sh(backend, tag, 'ls')) === 'begun');
  cluster.cut();
  await assert.rejects(command, /nobody knows how it ended/);
  assert.equal(await sh(backend, tag, 'echo alive'), 'alive');
  await gone(backend, tag);
});

test('kubernetes: a pod that the Job makes in the place of another is not the lease any more', async (t) => {
  const opened = await subject(t);
  if (!opened) return;
  const { backend, cluster } = opened;
  const tag = await start(opened);
  assert.deepEqual(await backend.extend(tag, now() + 600), { kind: 'done' });
  const { name } = (await podOf(cluster, tag)).metadata;
  await cluster.kubectl(['delete', 'pod', '-n', NAMESPACE, name, '--wait=false']);
  await until('it has ended', async () => (await backend.inspect(tag))?.state === 'ended');
  await until('the pod is gone', async () => (await podOf(cluster, tag))?.metadata.name !== name);
  assert.equal((await backend.inspect(tag))?.state, 'ended');
  await assert.rejects(sh(backend, tag, 'true'), /does not run/);
  await gone(backend, tag);
});

test('kubernetes: what a lease waits for is said, and a quota is a clear no', async (t) => {
  const opened = await subject(t);
  const far = await subject(t, { node_selector: { 'purser.test/nowhere': 'yes' } });
  const imageless = await subject(t, { image: 'localhost/nothing:1' });
  if (!opened || !far || !imageless) return;
  const order = async (backend: Backend) => {
    const tag = freshTag();
    const created = await backend.create({ tag, quote: await backend.quote(opened.spec), deadline: now() + 600 });
    return { tag, created };
  };
  const waiting = await order(far.backend);
  const pending = await until('it is not placed', async () => {
    const it = await far.backend.inspect(waiting.tag);
    return it?.note ? it : undefined;
  });
  assert.equal(pending.state, 'provisioning');
  assert.equal(pending.waitsFor, 'the cluster has no free place for it');
  assert.match(pending.note ?? '', /node/);
  await far.backend.destroy(waiting.tag);

  const hopeless = await order(imageless.backend);
  const ended = await until('it has failed', async () => {
    const it = await imageless.backend.inspect(hopeless.tag);
    return it?.state === 'ended' && it;
  });
  assert.match(ended.note ?? '', /ErrImageNeverPull/);
  await imageless.backend.destroy(hopeless.tag);

  await opened.cluster.kubectl(['create', 'quota', 'small', '-n', NAMESPACE, '--hard=pods=0']);
  t.after(() => opened.cluster.kubectl(['delete', 'quota', 'small', '-n', NAMESPACE]));
  const refused = await until('the quota holds', async () => {
    const { tag, created } = await order(opened.backend);
    if (created.kind === 'refused') return created;
    await opened.backend.destroy(tag);
    return false;
  });
  assert.equal(refused.code, 'capacity_unavailable');
  assert.match(refused.words ?? '', /exceeded quota/);
  assert.deepEqual(
    (
      await until('the offers show it', async () => {
        const offers = await opened.backend.offers();
        return offers.every((it) => !it.available) && offers;
      })
    ).map((it) => it.available),
    [false],
  );
});

test('kubernetes: a lease on a dead node stays until its deadline is long over', async (t) => {
  const opened = await subject(t);
  const later = await subject(t, { ahead: 1000 });
  if (!opened || !later) return;
  const { backend, cluster } = opened;
  const tag = await start(opened);
  assert.deepEqual(await backend.extend(tag, now() + 600), { kind: 'done' });
  await cluster.killNode(); // For good: this file has its cluster for itself (test/layers.ts), and this is its last test.
  await backend.destroy(tag);
  await until('it is being removed', async () => (await podOf(cluster, tag)).metadata.deletionTimestamp !== undefined);
  await backend.destroy(tag);
  assert.equal((await backend.inspect(tag))?.state, 'ended', 'nobody has confirmed that it is gone');
  await gone(later.backend, tag);
  assert.deepEqual(await backend.find(tag), []);
});
