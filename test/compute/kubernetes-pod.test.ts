import assert from 'node:assert/strict';
import test from 'node:test';
import * as v from 'valibot';
import { newId } from '../../src/base/id.ts';
import { type Spec, tagOf } from '../../src/compute/backend.ts';
import { describeJob, describePod, jobName } from '../../src/compute/engines/kubernetes/describe.ts';
import type { KubernetesJob, Pod } from '../../src/compute/engines/kubernetes/objects.ts';
import { type KubernetesSettings, notes, slots } from '../../src/compute/engines/kubernetes/settings.ts';
import { machineOf } from '../../src/compute/engines/kubernetes/state.ts';
import { quoteOf } from '../../src/compute/kit/priced.ts';

const base = { backend: 'kubernetes', namespace: 'leases', image: 'debian:12' };
const prices = { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.005', gpu_hourly_usd: { h100: '2.5', l4: '0.5' } };
const gpuNodes = { h100: { 'nvidia.com/gpu.product': 'H100' }, l4: { 'nvidia.com/gpu.product': 'L4' } };
const one = { ...base, prices, limits: { cpus: 8, memory_gib: 32, gpus: 2 }, gpu_nodes: gpuNodes };
const parse = (slot: keyof typeof slots, settings: object) => v.parse(slots[slot], settings) as KubernetesSettings;
const tag = tagOf(newId('inst'), newId('res'));
const podOf = (settings: KubernetesSettings, spec: Spec) =>
  describePod(settings, { tag, quote: quoteOf(settings, spec), deadline: 2000 }, 1000).spec;

test('the name of a Job is a label, whatever its tag, and another one for every tag', () => {
  const tags = [tag, tagOf(newId('inst'), newId('trial')), tagOf(newId('inst'), newId('res')), 'purser-offers'];
  for (const it of tags) assert.match(jobName(it), /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])$/);
  assert.equal(new Set(tags.map(jobName)).size, tags.length);
});

test('each slot has its shape of a pod: chips and offers name their nodes and GPUs', () => {
  const gpuLease = podOf(parse('provider_one', { ...one, node_selector: { pool: 'leases' } }), {
    ...{ gpu: 'h100', gpus: 2, cpus: 1.5, memory_gib: 0.3, max_seconds: 600 },
  });
  assert.deepEqual(gpuLease.nodeSelector, { pool: 'leases', 'nvidia.com/gpu.product': 'H100' });
  assert.deepEqual(gpuLease.containers[0]?.resources, {
    requests: { cpu: '1500m', memory: '308Mi', 'ephemeral-storage': '20Gi', 'nvidia.com/gpu': '2' },
    limits: { cpu: '1500m', memory: '308Mi', 'ephemeral-storage': '20Gi', 'nvidia.com/gpu': '2' },
  });
  assert.deepEqual(gpuLease.containers[0]?.env, [{ name: 'HOME', value: '/home/lease' }]);

  const chips = {
    l4: { node_selector: gpuNodes.l4, cpus: 4, memory_gib: 16, price_hourly_usd: '0.7', runtime_class: 'kata' },
  };
  const chip = podOf(parse('provider_two', { ...base, chips, gpu_resource: 'amd.com/gpu' }), {
    ...{ chip: 'l4', max_seconds: 600 },
  });
  assert.deepEqual(Object.entries(chip.containers[0]?.resources.limits ?? {}).at(-1), ['amd.com/gpu', '1']);
  assert.deepEqual(chip.nodeSelector, gpuNodes.l4);
  assert.equal(chip.runtimeClassName, 'kata');

  const offers = [{ id: 'small', cpus: 1, memory_gib: 2, max_disk_gb: 30, price_hourly_usd: '0.05' }];
  const tolerations = [{ key: 'leases' }, { key: 'pool', value: 'x', effect: 'NoSchedule' }];
  const settings = parse('provider_three', { ...base, offers, tolerations, runtime_class: 'gvisor', shm_gib: 1 });
  const offer = podOf(settings, { offer_id: 'small', disk_gb: 5, max_seconds: 600 });
  assert.equal(offer.containers[0]?.resources.limits['ephemeral-storage'], '5Gi');
  assert.equal(offer.runtimeClassName, 'gvisor');
  assert.equal(offer.containers[0]?.args[3], '/run/purser');
  assert.deepEqual(offer.volumes[2], { name: 'private', emptyDir: { medium: 'Memory', sizeLimit: '1Mi' } });
  assert.deepEqual(offer.tolerations, [
    { operator: 'Exists', key: 'leases' },
    { operator: 'Equal', key: 'pool', value: 'x', effect: 'NoSchedule' },
  ]);
  assert.ok(offer.volumes.some((it) => it.name === 'shm'));
  assert.throws(() => quoteOf(settings, { offer_id: 'large', disk_gb: 5, max_seconds: 600 }), {
    code: 'offer_not_found',
  });
  assert.equal(notes(settings).length, 1);
});

test("the kubelet's own deadline is behind every one that can be sold", () => {
  const settings = parse('provider_one', { ...one, provision_seconds: 100 });
  const quote = quoteOf(settings, { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 600 });
  // Another backend of the slot may have given the lease a longer time until it is ready.
  for (const provisionSeconds of [100, 900]) {
    const job = describeJob(settings, { tag, quote, deadline: 1600 + provisionSeconds }, 1000);
    assert.equal(job.spec.activeDeadlineSeconds, 600 + provisionSeconds);
    assert.ok(job.spec.template.spec.activeDeadlineSeconds >= quote.maxSeconds + provisionSeconds);
  }
});

test('settings that cannot be meant are refused', () => {
  const faults: [keyof typeof slots, object, RegExp][] = [
    ['provider_one', { ...one, gpu_nodes: {} }, /several GPU types are priced/],
    ['provider_one', { ...one, gpu_nodes: { ...gpuNodes, a100: {} } }, /no price/],
    ['provider_one', { ...one, user: 0 }, /Expected >=1/],
    ['provider_one', { ...one, namespace: 'Leases' }, /name of a namespace/],
    ['provider_one', { ...one, kubeconfig: 'config' }, /absolute path/],
    ['provider_two', { ...base, chips: {} }, /has no chip/],
    ['provider_two', { ...base, chips: { x: { cpus: 1, memory_gib: 1 } } }, /price_hourly_usd/],
  ];
  for (const [slot, settings, says] of faults) assert.throws(() => parse(slot, settings), says);
});

const job = (
  status: KubernetesJob['status'] = { startTime: '2026-01-01T00:00:00Z' },
  annotations = {},
): KubernetesJob => ({
  metadata: { name: 'j', uid: 'j1', resourceVersion: '1', creationTimestamp: '2026-01-01T00:00:00Z', annotations },
  spec: { activeDeadlineSeconds: 600 },
  status,
});
const pod = (status: NonNullable<Pod['status']>, uid = 'p1', deletionTimestamp?: string): Pod => ({
  metadata: {
    ...{ name: uid, uid, resourceVersion: '1', creationTimestamp: '2026-01-01T00:00:00Z' },
    ...(deletionTimestamp ? { deletionTimestamp } : {}),
  },
  status,
});
type State = NonNullable<NonNullable<Pod['status']>['containerStatuses']>[number]['state'];
const inside = (phase: string, state: State, more: NonNullable<Pod['status']> = {}) =>
  pod({ phase, containerStatuses: [{ name: 'lease', state: state as NonNullable<State> }], ...more });
const ended = (exitCode: number, reason = 'Error') => inside('Failed', { terminated: { exitCode, reason } });

test('what a Job and its pod say is one machine, in plain words', () => {
  const deadline = Date.parse('2026-01-01T00:10:00Z') / 1000;
  const failed = { conditions: [{ type: 'Failed', status: 'True', reason: 'DeadlineExceeded' }] };
  const failing = { conditions: [{ type: 'FailureTarget', status: 'True', reason: 'DeadlineExceeded' }] };
  const table: [KubernetesJob | undefined, Pod[], object | undefined][] = [
    [undefined, [], undefined],
    [undefined, [ended(0)], { state: 'ended', note: /its Job is gone/ }],
    [job(), [], { state: 'provisioning', waitsFor: 'the cluster has not made it yet' }],
    [job(), [inside('Running', { running: {} })], { state: 'running', deadline }],
    [job({}), [inside('Running', { running: {} })], { state: 'running', deadline: undefined }],
    [job(failed), [], { state: 'ended', note: /DeadlineExceeded/ }],
    [job(failing, { 'purser.pod': 'p1' }), [], { state: 'ended', note: /DeadlineExceeded/ }],
    [job(failing), [inside('Running', { running: {} })], { state: 'ended', note: /DeadlineExceeded/ }],
    [job(), [ended(0)], { state: 'ended', note: /its deadline has passed/ }],
    [job(), [ended(143)], { state: 'ended', exceeded: undefined, note: /somebody stopped it/ }],
    [job(failed), [ended(153)], { state: 'ended', exceeded: 'disk', note: /more than 16 MiB to files/ }],
    [job(), [ended(78)], { state: 'ended', note: /the image needs sh, uname/ }],
    [job(), [ended(137, 'OOMKilled')], { state: 'ended', note: /ran out of memory/ }],
    [
      job(),
      [inside('Failed', undefined, { reason: 'Evicted', message: 'Pod ephemeral local storage usage exceeds 1Gi.' })],
      { state: 'ended', exceeded: 'disk' },
    ],
    [
      job(),
      [inside('Failed', undefined, { reason: 'Evicted', message: 'The node was low on resource: ephemeral-storage.' })],
      { state: 'ended', exceeded: undefined, note: /low on resource/ },
    ],
    [
      job(),
      [inside('Pending', { waiting: { reason: 'ImagePullBackOff', message: 'Back-off' } })],
      { state: 'provisioning', waitsFor: 'its image cannot be pulled', note: /Back-off/ },
    ],
    [
      job(),
      [inside('Pending', { waiting: { reason: 'ContainerCreating' } })],
      { state: 'provisioning', waitsFor: 'its container is being made', note: undefined },
    ],
    [job(), [inside('Pending', { waiting: { reason: 'ErrImageNeverPull' } })], { state: 'ended' }],
    [
      job(undefined, { 'purser.pod': 'p0' }),
      [inside('Running', { running: {} })],
      { state: 'ended', note: /removed or replaced/ },
    ],
  ];
  for (const [of, pods, expected] of table) {
    const machine = machineOf('ref', of, pods) as Record<string, unknown> | undefined;
    if (!expected) assert.equal(machine, undefined);
    for (const [name, value] of Object.entries(expected ?? {}))
      if (value instanceof RegExp) assert.match(String(machine?.[name]), value);
      else assert.equal(machine?.[name], value, `${name} of ${JSON.stringify(machine)}`);
  }
});
