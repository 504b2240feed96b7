import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import * as v from 'valibot';
import { newId } from '../../src/base/id.ts';
import { type Spec, tagOf } from '../../src/compute/backend.ts';
import { describePod } from '../../src/compute/engines/kubernetes/describe.ts';
import { openKubernetesBackend } from '../../src/compute/engines/kubernetes/kubernetes.ts';
import { type KubernetesSettings, notes, slots } from '../../src/compute/engines/kubernetes/settings.ts';
import { quoteOf } from '../../src/compute/kit/priced.ts';
import { openLine } from '../../src/egress/line.ts';
import { parseList } from '../../src/egress/list.ts';
import { freePort } from '../helper/free-port.ts';
import { until } from '../helper/waiting.ts';
import { type KubernetesExec, openFakeKubernetes, runHere } from './engines/fake-kubernetes.ts';
import { WATCHDOG } from './engines/host-session.ts';

const base = { backend: 'kubernetes', namespace: 'leases', image: 'busybox' };
const sizes = {
  prices: { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.005' },
  limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
};
const SPEC = { gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
const freshTag = () => tagOf(newId('inst'), newId('res'));
const now = () => Math.floor(Date.now() / 1000);
const parse = (slot: keyof typeof slots, settings: object) => v.parse(slots[slot], settings) as KubernetesSettings;

function podOf(settings: KubernetesSettings, spec: Spec) {
  const pod = describePod(settings, { tag: freshTag(), quote: quoteOf(settings, spec), deadline: 2000 }, 1000);
  const names = pod.spec.containers[0]?.env.map(({ name }) => name).filter((it) => /_proxy$/i.test(it));
  const { dnsPolicy, dnsConfig } = pod.spec as { dnsPolicy?: string; dnsConfig?: object };
  return { network: pod.metadata.labels['purser.network'], names: names?.length, dnsPolicy, dnsConfig };
}

test('a pod with egress is in the policy that closes all, knows the proxy, and asks no name service', () => {
  const closed = {
    ...{ network: 'none', names: 8, dnsPolicy: 'None' },
    dnsConfig: { nameservers: ['127.0.0.1'] },
  };
  const plain = { network: 'none', names: 0, dnsPolicy: undefined, dnsConfig: undefined };
  const sized = parse('provider_one', { ...base, ...sizes, egress: ['pypi.org'] });
  assert.deepEqual(podOf(sized, SPEC), closed);
  assert.deepEqual(podOf(parse('provider_one', { ...base, ...sizes }), SPEC), plain);
  assert.match(notes(sized).at(-1) ?? '', /or egress is only advice/);

  const offers = [
    { id: 'a', cpus: 1, memory_gib: 1, max_disk_gb: 1, price_hourly_usd: '0.05' },
    { id: 'b', cpus: 1, memory_gib: 1, max_disk_gb: 1, price_hourly_usd: '0.05', egress: 'public' },
  ];
  const offering = parse('provider_three', { ...base, offers, egress: 'none' });
  const ofOffer = (offer_id: string) => podOf(offering, { offer_id, disk_gb: 1, max_seconds: 600 });
  assert.deepEqual([ofOffer('a'), ofOffer('b')], [plain, closed]);

  const chips = { x: { gpus: 0, cpus: 1, memory_gib: 1, price_hourly_usd: '0.05' } };
  const chipping = parse('provider_two', { ...base, chips, egress: ['pypi.org'] });
  assert.deepEqual(podOf(chipping, { chip: 'x', max_seconds: 600 }), closed);
  for (const [slot, settings] of [
    ['provider_one', { ...sizes, egress: 'none' }],
    ['provider_two', { chips, egress: ['pypi.org'] }],
    ['provider_three', { offers }],
  ] as const)
    assert.throws(() => parse(slot, { ...base, ...settings, network: 'internet' }), /has both network and egress/);
});

/** A lease with egress on a fake cluster, whose pod is this machine. `change` changes how commands run there. */
async function openLease(t: TestContext, change: (exec: KubernetesExec) => KubernetesExec, settings: object = {}) {
  const fake = await openFakeKubernetes(t);
  const directory = mkdtempSync(join(tmpdir(), 'purser-kubeconfig-'));
  writeFileSync(join(directory, 'config'), fake.kubeconfig);
  const kubeconfig = join(directory, 'config');
  const all = { ...base, kubeconfig, ...sizes, egress: ['pypi.org'], ...settings };
  const backend = openKubernetesBackend(parse('provider_one', all), { now });
  t.after(async () => {
    await backend.close();
    rmSync(directory, { recursive: true });
  });
  fake.exec = (exec) => runHere(change(exec));
  const tag = freshTag();
  const quote = await backend.quote(SPEC);
  assert.deepEqual(await backend.create({ tag, quote, deadline: now() + 600 }), { kind: 'created', ref: tag });
  return { fake, backend, tag, quote };
}

for (const [protocol, runtime] of [
  ['v5.channel.k8s.io', undefined],
  ['v4.channel.k8s.io', 'gvisor'],
] as const)
  test(`the way out of a pod goes over ${protocol}${runtime ? ', by the file of the watchdog' : ''}`, async (t) => {
    const port = await freePort();
    const program = runtime ? '/run/purser/watchdog' : '/proc/1/exe';
    const argv: string[][] = [];
    const { fake, backend, tag } = await openLease(
      t,
      (exec) => {
        argv.push(exec.command.slice(exec.command.indexOf(program)));
        // A tenant can write to the standard error of what runs as them.
        const noisy = ['/bin/sh', '-c', 'head -c 1000000 /dev/zero >&2; exec "$0" egress "$1"', WATCHDOG, String(port)];
        return { ...exec, command: exec.command.toSpliced(exec.command.indexOf(program), 3, ...noisy) };
      },
      runtime ? { runtime_class: runtime } : {},
    );
    fake.protocols = [protocol];
    const { egress } = backend.guest;
    assert.ok(egress);
    assert.deepEqual(egress.listOf(SPEC), parseList(['pypi.org']));
    const line = openLine(await egress.begin(tag), (stream) => stream.pipe(stream));
    t.after(line.close);
    await line.ready;
    assert.deepEqual(argv.at(-1), [program, 'egress', '63541']);

    const sent = randomBytes(500_000);
    const socket = connect({ port, host: '127.0.0.1' });
    socket.end(sent);
    const pieces: Buffer[] = [];
    for await (const piece of socket) pieces.push(piece);
    assert.ok(Buffer.concat(pieces).equals(sent), 'every byte comes back');

    line.close();
    await until('the program has ended with its stream', () => isRefused(port));
  });

const isRefused = (port: number) =>
  new Promise<boolean>((resolve) => {
    const socket = connect({ port, host: '127.0.0.1' });
    socket.once('connect', () => resolve(false)).once('error', () => resolve(true));
    socket.once('connect', () => socket.destroy());
  });

test('doctor tries what a pod with egress reaches past the proxy, and says it plainly', async (t) => {
  const server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  t.after(() => server.close());
  const variables = ['KUBERNETES_SERVICE_HOST=127.0.0.1', `KUBERNETES_SERVICE_PORT=${port}`];
  const { backend, tag, quote } = await openLease(t, (exec) => ({
    ...exec,
    command: ['/usr/bin/env', ...variables, ...exec.command],
  }));
  const open = await backend.doctor.unlimited?.(tag, quote);
  assert.match(open ?? '', new RegExp(`reaches the API server \\(127\\.0\\.0\\.1 port ${port}\\) past the proxy`));
  assert.match(open ?? '', /does not enforce NetworkPolicy/);
  server.close();
  await once(server, 'close');
  assert.equal(await backend.doctor.unlimited?.(tag, quote), undefined);
  const network = (await backend.doctor.check()).find(({ name }) => name === 'network');
  assert.match(network?.detail ?? '', /through Purser \(pypi\.org\)\. Only a network plugin that enforces/);
});
