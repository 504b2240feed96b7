import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import { type Backend, tagOf, tagPrefix } from '../../src/compute/backend.ts';
import { openKubernetesBackend } from '../../src/compute/engines/kubernetes/kubernetes.ts';
import { type KubernetesSettings, slots } from '../../src/compute/engines/kubernetes/settings.ts';
import { collect } from '../../src/compute/machine/collect.ts';
import { changeResource } from '../../src/ledger/resource.ts';
import { createRandom, SEED } from '../helper/random.ts';
import { pause } from '../helper/waiting.ts';
import { LONG, openWith } from '../lease/leases.ts';
import {
  doneBut,
  dropped,
  type FakeKubernetes,
  garbled,
  halved,
  type KubernetesCall,
  type KubernetesExec,
  type KubernetesFault,
  late,
  lost,
  openFakeKubernetes,
  runHere,
  says,
  saysPlain,
} from './engines/fake-kubernetes.ts';
import type { ApiObject } from './engines/kubernetes.ts';

const INSTALLATION = `inst_${randomBytes(13).toString('hex')}`;
const NAMESPACE = 'leases';
const SPEC = { gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
const freshTag = () => tagOf(INSTALLATION, `res_${randomBytes(13).toString('hex')}`);
const now = () => Math.floor(Date.now() / 1000);

const isCall = (method: string, path: RegExp) => (it: KubernetesCall) => it.method === method && path.test(it.path);
const makesJob = isCall('POST', /\/jobs$/);
const triesPod = isCall('POST', /\/pods$/);
const removesJob = isCall('DELETE', /\/jobs\//);
const movesJob = isCall('PATCH', /\/jobs\//);
const runs = isCall('GET', /\/exec$/);
const listsPods = isCall('GET', /\/pods$/);

/** A fake of its own, and a backend on it. */
async function openBench(t: TestContext) {
  const fake = await openFakeKubernetes(t);
  const directory = mkdtempSync(join(tmpdir(), 'purser-kubeconfig-'));
  writeFileSync(join(directory, 'config'), fake.kubeconfig);
  const settings = {
    backend: 'kubernetes',
    kubeconfig: join(directory, 'config'),
    namespace: NAMESPACE,
    image: 'busybox',
    prices: { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
  };
  const backend = openKubernetesBackend(v.parse(slots.provider_one, settings) as KubernetesSettings, { now });
  t.after(async () => {
    await backend.close();
    rmSync(directory, { recursive: true });
  });
  return { fake, backend, settings, directory, ...calls(backend) };
}
/** Opens one with a machine, whose server speaks a protocol of exec, or all of them. */
async function openMachine(t: TestContext, protocol?: string) {
  const bench = await openBench(t);
  if (protocol !== undefined) bench.fake.protocols = [protocol];
  const tag = freshTag();
  await bench.create(tag);
  return { ...bench, tag };
}
const PROTOCOLS = ['v5.channel.k8s.io', 'v4.channel.k8s.io'];
const calls = (backend: Backend) => ({
  create: async (tag: string = freshTag()) =>
    backend.create({ tag, quote: await backend.quote(SPEC), deadline: now() + 600 }),
  sh: (ref: string, command: string) =>
    backend.guest.exec(ref, { command, timeoutSeconds: 20, streamBytesMax: 1024 * 1024 }),
});
const jobsOf = (fake: FakeKubernetes) => fake.objects('jobs').length;

type Outcome = { kind: string; code?: string };
const CREATES: [what: string, match: (call: KubernetesCall) => boolean, KubernetesFault, Outcome, jobs: 0 | 1][] = [
  ['a pod that is forbidden', triesPod, says(403, 'Forbidden'), { kind: 'refused', code: 'provider_unavailable' }, 0],
  ['a pod that is invalid', triesPod, says(422, 'Invalid'), { kind: 'refused', code: 'provider_unavailable' }, 0],
  [
    'a fault before anything was asked for',
    triesPod,
    says(500, 'InternalError'),
    { kind: 'refused', code: 'provider_unavailable' },
    0,
  ],
  [
    'a connection lost before anything was asked for',
    triesPod,
    lost,
    { kind: 'refused', code: 'provider_unavailable' },
    0,
  ],
  ['a job that is forbidden', makesJob, says(403, 'Forbidden'), { kind: 'refused', code: 'provider_unavailable' }, 0],
  [
    'a used-up quota',
    makesJob,
    says(403, 'Forbidden: exceeded quota: leases'),
    { kind: 'refused', code: 'capacity_unavailable' },
    0,
  ],
  ['a job that is invalid', makesJob, says(422, 'Invalid'), { kind: 'refused', code: 'provider_unavailable' }, 0],
  [
    'too many requests',
    makesJob,
    says(429, 'TooManyRequests', { 'retry-after': '1' }),
    { kind: 'refused', code: 'provider_unavailable' },
    0,
  ],
  ['a fault of the server', makesJob, says(500, 'InternalError'), { kind: 'unknown' }, 0],
  ['a time-out of the server, which made it', makesJob, doneBut(504, 'Timeout'), { kind: 'unknown' }, 1],
  ['a gateway without its server', makesJob, saysPlain(502, 'Bad Gateway'), { kind: 'unknown' }, 0],
  ['a connection lost before', makesJob, dropped, { kind: 'unknown' }, 0],
  ['a connection lost after', makesJob, lost, { kind: 'unknown' }, 1],
  ['half an answer', makesJob, halved, { kind: 'unknown' }, 1],
  ['an answer that is no JSON', makesJob, garbled, { kind: 'unknown' }, 1],
  ['a slow answer', makesJob, late(1500), { kind: 'created' }, 1],
];

for (const [what, match, fault, outcome, jobs] of CREATES)
  test(`kubernetes: of a create, ${what} is ${outcome.kind}; another create of the tag makes no second machine`, async (t) => {
    const { fake, create, backend } = await openBench(t);
    const tag = freshTag();
    fake.fault(match, fault);
    const { kind, code } = (await create(tag)) as Outcome;
    assert.deepEqual({ kind, ...(code ? { code } : {}) }, outcome);
    assert.equal(jobsOf(fake), jobs);
    assert.equal((await backend.find(tag)).length, jobs);
    assert.deepEqual(await create(tag), { kind: 'created', ref: tag });
    assert.deepEqual([jobsOf(fake), fake.objects('pods').length], [1, 1]);
  });

test('kubernetes: creates of one tag at the same time make one machine', async (t) => {
  const { fake, create } = await openBench(t);
  const tag = freshTag();
  const made = await Promise.all(Array.from({ length: 8 }, () => create(tag)));
  assert.deepEqual(
    made,
    Array.from({ length: 8 }, () => ({ kind: 'created', ref: tag })),
  );
  assert.equal(jobsOf(fake), 1);
});

test('kubernetes: a job of that name with another tag is nobody’s machine', async (t) => {
  const { fake, create, backend } = await openBench(t);
  const tag = freshTag();
  await create(tag);
  const [job] = fake.objects('jobs');
  for (const [key, value] of Object.entries(job.metadata.annotations))
    if (value === tag) job.metadata.annotations[key] = freshTag();
  assert.equal((await create(tag)).kind, 'unknown');
  await assert.rejects(backend.find(tag), /is there, and is not/);
  await assert.rejects(backend.destroy(tag), /is there, and is not/);
  assert.equal(jobsOf(fake), 1);
});

test('kubernetes: a server that is not there is refused; one that no longer takes the token is asked with it anew', async (t) => {
  const { fake, create, directory } = await openBench(t);
  const config = readFileSync(join(directory, 'config'), 'utf8');
  await create();
  writeFileSync(join(directory, 'config'), config.replace('fake-token', 'next-token'));
  const isOld = ({ headers }: KubernetesCall) => headers.authorization === 'Bearer fake-token';
  fake.fault(isOld, says(401, 'Unauthorized'), Number.POSITIVE_INFINITY);
  assert.equal((await create()).kind, 'created');
  assert.equal(jobsOf(fake), 2);
  fake.fault(() => true, says(401, 'Unauthorized'), Number.POSITIVE_INFINITY);
  assert.equal((await create()).kind, 'refused');
  await fake.close();
  assert.equal((await create()).kind, 'refused');
});

test('kubernetes: whatever happens to creates, in any order, a tag has one machine at most and the outcomes are true', async (t) => {
  t.diagnostic(`seed ${SEED}`);
  const { whole, pick } = createRandom(SEED);
  const { fake, create, backend } = await openBench(t);
  const faults = CREATES.map(([, , fault]) => fault).filter((it) => it !== CREATES.at(-1)?.[2]);
  for (let round = 0; round < 150; round++) {
    const tag = freshTag();
    const before = jobsOf(fake);
    let isMade = false;
    for (let attempt = 0; attempt < 3; attempt++) {
      const calls = fake.calls.length + whole(0, 2);
      const fault = pick(faults);
      if (whole(0, 3)) fake.fault(() => fake.calls.length > calls, fault);
      const { kind } = await create(tag);
      fake.clear();
      const there = jobsOf(fake) - before;
      if (kind === 'created') isMade = true;
      if (isMade) assert.equal(there, 1, `round ${round}: ${kind}`);
      if (kind === 'refused' && attempt === 0) assert.equal(there, 0, `round ${round}: refused`);
      assert.ok(there <= 1, `round ${round}: ${there} machines`);
    }
    assert.equal((await backend.find(tag)).length, jobsOf(fake) - before);
  }
});

test('kubernetes: a list is read to its end, begun anew when the server forgot it, or fails', async (t) => {
  const { fake, backend, create } = await openBench(t);
  const tags = Array.from({ length: 7 }, freshTag).sort();
  for (const tag of tags) await create(tag);
  const listed = async () => (await backend.listOwned(tagPrefix(INSTALLATION))).map((it) => it.tag).sort();
  fake.pageMax = 3;
  assert.deepEqual(await listed(), tags);
  const continued = ({ query }: KubernetesCall) => query.has('continue');
  fake.fault(continued, says(410, 'Expired'));
  assert.deepEqual(await listed(), tags);
  for (const fault of [
    says(500, 'InternalError'),
    says(403, 'Forbidden'),
    dropped,
    halved,
    garbled,
    saysPlain(200, '{"kind":"Status"}'),
  ]) {
    fake.fault(continued, fault);
    await assert.rejects(listed());
    fake.fault(listsPods, fault);
    await assert.rejects(backend.find(tags[0] as string));
  }
  fake.fault(continued, says(410, 'Expired'), Number.POSITIVE_INFINITY);
  await assert.rejects(listed(), /410/);
});

test('kubernetes: only the API’s own word says that there is no machine', async (t) => {
  const { fake, backend, tag } = await openMachine(t);
  const asksJob = isCall('GET', /\/jobs\/./);
  for (const fault of [
    saysPlain(404, 'no such page'),
    says(503, 'ServiceUnavailable'),
    says(403, 'Forbidden'),
    dropped,
    garbled,
  ]) {
    fake.fault(asksJob, fault);
    await assert.rejects(backend.inspect(tag));
  }
  assert.equal((await backend.inspect(tag))?.state, 'running');
  assert.equal(await backend.inspect(freshTag()), undefined);
});

/** Ends the one machine of a fake as a watchdog does for what was written beside its disk. */
function endOverDisk(fake: FakeKubernetes): void {
  const [[pod], [job]] = [fake.objects('pods'), fake.objects('jobs')];
  const [{ name }] = pod.spec.containers;
  pod.status = { phase: 'Failed', containerStatuses: [{ name, state: { terminated: { exitCode: 153 } } }] };
  job.status.conditions = [{ type: 'Failed', status: 'True', reason: 'BackoffLimitExceeded' }];
}
const BETWEEN_LOOKS: [what: string, before: (fake: FakeKubernetes) => void, between: (fake: FakeKubernetes) => void][] =
  [
    ['ends', () => {}, endOverDisk],
    ['that has ended is removed', endOverDisk, (fake) => fake.remove('pods')],
  ];
for (const [what, before, between] of BETWEEN_LOOKS)
  test(`kubernetes: why a machine ended is known also where its pod ${what} between the look at the pods and that at the Job`, async (t) => {
    const { fake, backend, tag } = await openMachine(t);
    before(fake);
    fake.fault(isCall('GET', /\/jobs\/./), (response, perform) => {
      between(fake);
      const { status, body } = perform();
      response.writeHead(status).end(JSON.stringify(body));
    });
    const { state, exceeded, note } = (await backend.inspect(tag)) ?? {};
    assert.deepEqual([state, exceeded], ['ended', 'disk'], note);
  });

test('kubernetes: a machine is gone with its pods, and a removal that is not certain is done again', async (t) => {
  const { fake, backend, tag } = await openMachine(t);
  for (const fault of [says(500, 'InternalError'), says(429, 'TooManyRequests', { 'retry-after': '1' }), dropped]) {
    fake.fault(removesJob, fault);
    await assert.rejects(backend.destroy(tag));
    assert.equal((await backend.inspect(tag))?.state, 'running');
  }
  fake.podsLinger = true;
  fake.fault(removesJob, lost);
  await assert.rejects(backend.destroy(tag));
  assert.equal(jobsOf(fake), 0);
  assert.equal((await backend.inspect(tag))?.state, 'ended', 'its pod is still there');
  await backend.destroy(tag);
  fake.podsLinger = false;
  fake.remove('pods');
  await backend.destroy(tag);
  assert.equal(await backend.inspect(tag), undefined);
});

test('kubernetes: long after all that was sold, a lost node keeps no pod from being removed, also one whose Job is gone', async (t) => {
  const { fake, backend, tag } = await openMachine(t);
  const forced = () => fake.calls.filter((it) => it.method === 'DELETE' && it.body?.gracePeriodSeconds === 0).length;
  const [pod] = fake.objects('pods') as [ApiObject];
  pod.status.startTime = new Date().toISOString();
  // Somebody has deleted the Job without waiting for its pod, whose node does not answer.
  pod.metadata.deletionTimestamp = pod.status.startTime;
  fake.podsLinger = true;
  fake.remove('jobs');
  assert.equal(fake.objects('pods').length, 1);
  await backend.destroy(tag);
  assert.equal((await backend.inspect(tag))?.state, 'ended');
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() + 30 * 86_400_000 });
  await backend.destroy(tag);
  assert.equal(forced(), 1);
  assert.equal(await backend.inspect(tag), undefined);
});

test('kubernetes: another job that got the name meanwhile is not removed', async (t) => {
  const { fake, backend, tag } = await openMachine(t);
  const [job] = fake.objects('jobs');
  fake.fault(removesJob, (response, perform) => {
    job.metadata.uid = 'another';
    const { status, body } = perform();
    response.writeHead(status).end(JSON.stringify(body));
  });
  await backend.destroy(tag);
  assert.equal(jobsOf(fake), 1);
});

const EXTENDS: [what: string, KubernetesFault, kind: string, isMoved: boolean][] = [
  ['that is forbidden', says(403, 'Forbidden'), 'refused', false],
  ['that is invalid', says(422, 'Invalid'), 'refused', false],
  ['of another job', says(409, 'Conflict'), 'refused', false],
  ['of no job', says(404, 'NotFound'), 'refused', false],
  ['too many', says(429, 'TooManyRequests', { 'retry-after': '1' }), 'refused', false],
  ['with a fault', says(500, 'InternalError'), 'unknown', false],
  ['whose connection is lost before', dropped, 'unknown', false],
  ['whose connection is lost after', lost, 'unknown', true],
  ['with half an answer', halved, 'unknown', true],
  ['that is answered', late(100), 'done', true],
];
test('kubernetes: the outcome of moving a deadline is exact', async (t) => {
  for (const [what, fault, kind, isMoved] of EXTENDS) {
    const { fake, backend, tag } = await openMachine(t);
    const before = (await backend.inspect(tag))?.deadline as number;
    fake.fault(movesJob, fault);
    assert.equal((await backend.extend(tag, before + 300)).kind, kind, what);
    assert.equal((await backend.inspect(tag))?.deadline, isMoved ? before + 300 : before, what);
  }
});

/** Makes the only Job one whose deadline was moved back, and whose controller has looked at the earlier one since. */
function makeRearmDue(fake: FakeKubernetes) {
  const [job] = fake.objects('jobs');
  job.metadata.annotations['purser.rearm'] = String(now() - 60);
  return job;
}
const rearmOf = (fake: FakeKubernetes) => {
  const [{ metadata, spec }] = fake.objects('jobs');
  return [metadata.annotations['purser.rearm'] !== undefined, spec.activeDeadlineSeconds];
};

test('kubernetes: a deadline that was moved meanwhile is not set back by the one that was read before', async (t) => {
  const { fake, backend, tag } = await openMachine(t);
  const job = makeRearmDue(fake);
  fake.fault(movesJob, (response, perform) => {
    Object.assign(job.metadata, { resourceVersion: 'of an extension' });
    job.spec.activeDeadlineSeconds = 1200;
    const { status, body } = perform();
    response.writeHead(status).end(JSON.stringify(body));
  });
  assert.equal((await backend.inspect(tag))?.state, 'running');
  assert.deepEqual(rearmOf(fake), [true, 1200]);
  assert.equal((await backend.find(tag))[0]?.state, 'running');
  assert.deepEqual(rearmOf(fake), [true, 1200], 'who searches has no lock');
  await backend.inspect(tag);
  assert.deepEqual(rearmOf(fake), [false, 1201]);
});

test('kubernetes: reconcile only looks, and leaves a deadline that is to be set again to the step of its lease', async (t) => {
  const { fake, settings } = await openBench(t);
  const compute = { provider_one: settings };
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', 'busybox', { settings: { compute } });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const { ledger, clock } = purser.app;
  await ledger.write(changeResource, { id, values: { quarantinedAt: clock.now() } });
  makeRearmDue(fake);
  const patches = () => fake.count('PATCH', /jobs/);
  const before = patches();
  const { leases } = await purser.run('resource.reconcile', {});
  assert.deepEqual(
    leases.map((it) => [it.machine, it.would_end]),
    [['running', null]],
  );
  assert.equal(patches(), before);
  await ledger.write(changeResource, { id, values: { quarantinedAt: null } });
  purser.clock.advance(61);
  await purser.app.reaper.runOnce();
  assert.equal(patches(), before + 1);
  assert.equal(rearmOf(fake)[0], false);
});

test('kubernetes: a lease whose namespace is not that of the settings is unreachable, never gone', async (t) => {
  const { fake, settings } = await openBench(t);
  const cluster: KubernetesFault = (response) => response.end(JSON.stringify({ metadata: { uid: 'cluster' } }));
  fake.fault(isCall('GET', /namespaces\/kube-system$/), cluster, Number.POSITIVE_INFINITY);
  const compute = { provider_one: settings };
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', 'busybox', { settings: { compute } });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const turnTo = async (namespace: string) => {
    const file = join(purser.directory, 'purser.yaml');
    writeFileSync(file, readFileSync(file, 'utf8').replace(/namespace: .*/, `namespace: ${namespace}`));
    await purser.reopen();
    purser.clock.advance(61);
    await purser.app.reaper.runOnce();
    return purser.run('resource.list', {});
  };
  assert.match((await turnTo('others')).resources[0]?.last_error ?? '', /unreachable: /);
  assert.equal(jobsOf(fake), 1);
  assert.equal((await turnTo(NAMESPACE)).resources[0]?.last_error, null);
  assert.equal((await purser.stop(token, id)).body.status, 'stopped');
  assert.equal(jobsOf(fake), 0);
});

test('kubernetes: a deadline that the watchdog does not take is not sold', async (t) => {
  const { fake, backend, tag } = await openMachine(t);
  const before = (await backend.inspect(tag))?.deadline as number;
  const answering = (code: string) => (exec: KubernetesExec) =>
    runHere({ ...exec, command: exec.command.map((it) => (it === '/proc/1/exe' ? code : it)) });
  fake.exec = answering('false');
  assert.equal((await backend.extend(tag, before + 300)).kind, 'refused');
  fake.exec = ({ socket }) => socket.terminate();
  await assert.rejects(backend.extend(tag, before + 300));
  assert.equal((await backend.inspect(tag))?.deadline, before);
  assert.equal(fake.count('PATCH', /jobs/), 0);

  const codes = ['false', 'false', 'true']; // An engine may fail to start a program now and then.
  fake.exec = (exec) => answering(codes.shift() as string)(exec);
  assert.deepEqual([await backend.extend(tag, before + 300), codes], [{ kind: 'done' }, []]);
});

for (const protocols of [['v5.channel.k8s.io', 'v4.channel.k8s.io'], ['v5.channel.k8s.io'], ['v4.channel.k8s.io']])
  test(`kubernetes: commands, their output and their input over ${protocols.join(' and ')}`, async (t) => {
    const { fake, backend, create, sh } = await openBench(t);
    fake.protocols = protocols;
    const tag = freshTag();
    await create(tag);
    const said = await sh(tag, 'echo out; echo err >&2; exit 7');
    assert.deepEqual([said.exitCode, said.stdout.toString(), said.stderr.toString()], [7, 'out\n', 'err\n']);
    const long = await sh(tag, 'head -c 3000000 /dev/zero; head -c 200000 /dev/zero >&2');
    assert.deepEqual([long.stdout.length, long.stdoutTruncated, long.stderr.length], [1024 * 1024, true, 200_000]);
    const content = randomBytes(300_000);
    const open = join(tmpdir(), `purser-upload-${randomBytes(6).toString('hex')}`);
    t.after(() => rmSync(open, { recursive: true, force: true }));
    await backend.guest.upload(tag, `${open}/file`, content);
    assert.ok(readFileSync(`${open}/file`).equals(content));
  });

test('kubernetes: a command whose protocol is refused runs, though another one has learnt meanwhile which is spoken', async (t) => {
  const { fake, sh, tag } = await openMachine(t);
  // At first the backend expects v5, and then what was spoken last.
  for (const spoken of ['v4.channel.k8s.io', 'v5.channel.k8s.io']) {
    fake.protocols = [spoken];
    const known = Promise.withResolvers<void>();
    const asked = Promise.withResolvers<void>();
    fake.fault(runs, async (response, perform) => {
      asked.resolve();
      await known.promise;
      saysPlain(403, 'bad protocol')(response, perform);
    });
    const slow = sh(tag, 'echo slow');
    await asked.promise;
    await sh(tag, 'true').finally(known.resolve);
    assert.equal((await slow).stdout.toString(), 'slow\n');
  }
});

test('kubernetes: a server that speaks no protocol of ours, or no longer has the pod, runs nothing', async (t) => {
  const { fake, sh, tag } = await openMachine(t);
  fake.protocols = ['v9.channel.k8s.io'];
  await assert.rejects(sh(tag, 'true'));
  fake.protocols = ['v5.channel.k8s.io'];
  for (const fault of [says(404, 'NotFound'), says(500, 'InternalError'), says(403, 'Forbidden'), dropped]) {
    fake.fault(runs, fault);
    await assert.rejects(sh(tag, 'true'));
  }
  assert.equal((await sh(tag, 'true')).exitCode, 0);
});

/** Ends the socket in a way of its own, once the command has said so much. */
const cutAfter =
  (bytes: number, end: (exec: KubernetesExec) => void) =>
  (exec: KubernetesExec): void => {
    let left = bytes;
    runHere({
      ...exec,
      stdout(data) {
        const piece = Buffer.from(data as string).subarray(0, left);
        left -= piece.length;
        exec.stdout(piece);
        if (left === 0) end(exec);
      },
    });
  };

test('kubernetes: how a command ended is unknown when its socket ends without saying so', async (t) => {
  for (const protocol of PROTOCOLS) {
    const { fake, sh, tag } = await openMachine(t, protocol);
    const ends: [string, (exec: KubernetesExec) => void][] = [
      ['closes', ({ socket }) => socket.close(1000)],
      ['breaks', ({ socket }) => socket.terminate()],
      [
        'says that it failed',
        (exec) => void [exec.status({ status: 'Failure', message: 'the node is gone' }), exec.socket.close()],
      ],
      ['says what cannot be read', (exec) => void [exec.socket.send(Buffer.from('\x03<html>')), exec.socket.close()]],
    ];
    for (const [what, end] of ends) {
      fake.exec = cutAfter(5000, end);
      await assert.rejects(
        sh(tag, 'head -c 10000 /dev/zero; sleep 30'),
        /nobody knows how it ended/,
        `${protocol} ${what}`,
      );
      fake.exec = end;
      await assert.rejects(sh(tag, 'true'), Error, `${protocol} ${what} at once`);
    }
  }
});

test('kubernetes: how a command ended is known also to one who reads its messages long after', async (t) => {
  const { backend, tag } = await openMachine(t);
  async function readLate(size: number): Promise<void> {
    const command = `head -c ${size} /dev/zero >&2; exit 7`;
    const session = await backend.guest.session(tag, { command, terminal: undefined });
    session.stdin.end();
    session.stdout.resume();
    await Promise.race([session.ended, pause(1500)]);
    const said = collect(session.stderr as Readable, size);
    assert.deepEqual(await session.ended, { code: 7 }, `${size}`);
    assert.equal((await said).bytes.length, size);
  }
  await Promise.all([5000, 12_000, 20_000].map(readLate));
});

test('kubernetes: a command whose messages nobody reads ends when it is killed', async (t) => {
  const { backend, tag } = await openMachine(t);
  const command = 'head -c 12000 /dev/zero >&2; exit 7';
  const session = await backend.guest.session(tag, { command, terminal: undefined });
  session.stdin.end();
  await once(session.stdout.resume(), 'end');
  session.kill();
  // Whether its code has passed through depends on the lengths in which the messages came.
  const end = await session.ended.catch(({ message }: Error) => message);
  if (typeof end === 'string') assert.match(end, /nobody knows how it ended/);
  else assert.deepEqual(end, { code: 7 });
});

test('kubernetes: input that a command leaves unread is ended before the server ends the socket, which would lose output', async (t) => {
  for (const protocol of PROTOCOLS) {
    const { fake, backend, tag } = await openMachine(t, protocol);
    let resets = 0;
    fake.exec = (exec) => {
      let last: unknown;
      exec.stdin.on('data', (data) => {
        last = data;
      });
      const hasEnded = () => (exec.stdin as Writable & Readable).writableEnded || String(last) === '0\n';
      runHere({
        ...exec,
        exit(code) {
          if (!hasEnded()) resets += 1;
          exec.exit(code);
        },
      });
    };
    const session = await backend.guest.session(tag, { command: 'echo out; exit 3', terminal: undefined });
    session.stderr?.resume();
    const said = collect(session.stdout, 100);
    session.stdin.write(Buffer.alloc(300_000));
    assert.deepEqual(await session.ended, { code: 3 }, protocol);
    assert.equal((await said).bytes.toString(), 'out\n', protocol);
    assert.equal(resets, 0, protocol);
    session.stdin.write('more'); // It is discarded.
  }
});

test('kubernetes: a socket that is not open yet ends with the backend', async (t) => {
  const { fake, settings, tag } = await openMachine(t);
  const backend = openKubernetesBackend(v.parse(slots.provider_one, settings) as KubernetesSettings, { now });
  const asked = Promise.withResolvers<void>();
  fake.fault(
    ({ path }) => path.includes('/exec'),
    () => asked.resolve(),
  ); // It is never answered.
  const command = calls(backend).sh(tag, 'true');
  const ended = assert.rejects(command, /closed before the connection was established/);
  await asked.promise;
  await backend.close();
  await ended;
});

test('kubernetes: a server may close a stream by itself', async (t) => {
  const { fake, sh, tag } = await openMachine(t);
  fake.exec = (exec) =>
    runHere({
      ...exec,
      exit(code) {
        for (const stream of [1, 2]) exec.socket.send(Buffer.from([255, stream]));
        exec.exit(code);
      },
    });
  const said = await sh(tag, 'echo out; exit 3');
  assert.deepEqual([said.exitCode, said.stdout.toString()], [3, 'out\n']);
});

test('kubernetes: where pods have a RuntimeClass, a deadline is moved by the file of the watchdog, in its directory', async (t) => {
  const { fake, backend, settings } = await openBench(t);
  const walled = openKubernetesBackend(
    v.parse(slots.provider_one, { ...settings, runtime_class: 'gvisor' }) as KubernetesSettings,
    { now },
  );
  t.after(() => walled.close());
  const ran: string[][] = [];
  fake.exec = (exec) => {
    const at = exec.command.findIndex((it) => /^\/(proc\/1\/exe|run\/purser\/watchdog)$/.test(it));
    ran.push(exec.command.slice(at));
    runHere({ ...exec, command: exec.command.with(at, 'true') });
  };
  const deadline = now() + 900;
  for (const it of [backend, walled]) {
    const tag = freshTag();
    await calls(it).create(tag);
    // What the pod was made with decides, not what the settings say now.
    assert.deepEqual(await backend.extend(tag, deadline), { kind: 'done' });
  }
  assert.deepEqual(ran, [
    ['/proc/1/exe', String(deadline)],
    ['/run/purser/watchdog', String(deadline), '/run/purser'],
  ]);
});

test('kubernetes: a RuntimeClass that the cluster lacks is refused, and doctor names it', async (t) => {
  const { fake, settings } = await openBench(t);
  const backend = openKubernetesBackend(
    v.parse(slots.provider_one, { ...settings, runtime_class: 'kata' }) as KubernetesSettings,
    { now },
  );
  t.after(() => backend.close());
  assert.deepEqual(
    (await backend.offers(60_000)).map((it) => [it.runtime, it.available]),
    [['kata', true]],
  );
  const classes = async () => (await backend.doctor.check()).filter((it) => /kernel|runtime_class/.test(it.name));
  const name = 'runtime_class kata';
  assert.deepEqual(await classes(), [{ name, ok: true, detail: 'the API admits the pod of a lease under it' }]);
  const rejected = 'pods "x" is forbidden: pod rejected: RuntimeClass "kata" not found';
  fake.fault(triesPod, saysPlain(403, rejected), Number.POSITIVE_INFINITY);
  const [missing] = (await classes()) ?? [];
  assert.deepEqual([missing?.name, missing?.ok], [name, false]);
  assert.match(missing?.detail ?? '', /^the cluster has no such RuntimeClass\. Make it, or correct runtime_class/);
  const { reason, words } = (await calls(backend).create()) as { reason?: string; words?: string };
  assert.equal(reason, 'The cluster lacks the RuntimeClass of this machine. Nothing was charged.');
  assert.match(words ?? '', /RuntimeClass "kata" not found/);
  assert.equal(jobsOf(fake), 0);
});

test('kubernetes: what Purser may not do in the cluster is said by its checks', async (t) => {
  const { fake, backend } = await openBench(t);
  const rights = async () => (await backend.doctor.check()).find((it) => it.name === 'rights');
  fake.denied = new Set(['create pods/exec', 'patch jobs', 'get secrets', 'list secrets', 'create rolebindings']);
  const missing = await rights();
  assert.equal(missing?.ok, false);
  assert.match(missing?.detail ?? '', /may not patch jobs, create pods\/exec in the namespace leases/);
  fake.denied = new Set(['get secrets', 'list secrets', 'create rolebindings']);
  assert.deepEqual([(await rights())?.ok], [true]);
  fake.denied = new Set();
  assert.match((await rights())?.detail ?? '', /and more: get secrets, list secrets, create rolebindings/);
});
