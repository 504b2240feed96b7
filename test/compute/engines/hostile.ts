import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import * as v from 'valibot';
import { followFaults } from '../../../src/base/fault.ts';
import type { Backend } from '../../../src/compute/backend.ts';
import { openContainerBackend } from '../../../src/compute/engines/container/container.ts';
import { openKubernetesBackend } from '../../../src/compute/engines/kubernetes/kubernetes.ts';
import { type KubernetesSettings, slots } from '../../../src/compute/engines/kubernetes/settings.ts';
import type { Random } from '../../helper/random.ts';
import { waitFor } from '../../helper/waiting.ts';
import { BODIES, framed, hostileAnswer, mutated } from '../../http/hostile-http.ts';
import { LXD_PREFIX, lxdSubject } from './lxd.ts';

const PREFIX = 'purser-inst-fake-';

export { PREFIX as CONTAINER_PREFIX };

const TAG = `${PREFIX}res-fake`;
const now = () => Math.floor(Date.now() / 1000);
const SPEC = { gpu: null, gpus: 0, cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
/** An engine that says nothing more is silent for so long, and then closes the connection. */
const SILENCE_MILLISECONDS = 50;
/** Far fewer than connections that may wait to be accepted (Node's backlog is 511): one is accepted in a turn of the event loop. */
const CALLS_AT_ONCE = 64;
/** What a backend was told once, it may believe from then on: after so many answers comes another one. */
const ANSWERS_EACH = 500;

/** What an honest engine answers, by path. The first that fits counts. */
type Skeletons = [path: RegExp, answer: unknown][];

/** An engine that answers with what an honest one would, with faults put in: in its JSON, in its framing, or in both. */
async function openHostile(t: TestContext, random: Random, skeletons: Skeletons, path?: string) {
  const counted = { answers: 0 };
  const server = createServer((socket: Socket) => {
    socket.on('error', () => {});
    socket.setTimeout(SILENCE_MILLISECONDS, () => socket.destroy());
    let head = '';
    socket.on('data', (piece) => {
      head += piece.toString('latin1');
      const end = head.indexOf('\r\n\r\n');
      if (end < 0) return;
      const [, asked = ''] = head.split(' ', 2);
      const isUpgrade = /\r\nupgrade:/i.test(head.slice(0, end));
      head = '';
      counted.answers++;
      const skeleton = skeletons.find(([path]) => path.test(asked))?.[1] ?? {};
      const choice = random.whole(1, 10);
      if (isUpgrade && choice > 3)
        return void socket.end(
          Buffer.concat([
            Buffer.from('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n'),
            Buffer.from(random.pick(BODIES), 'latin1'),
            Buffer.from(Array.from({ length: random.whole(0, 40) }, () => random.whole(0, 255))),
          ]),
        );
      if (choice <= 2) return void socket.end(hostileAnswer(random, isUpgrade));
      const status = random.pick(['200', '200', '200', '201', '202', '204', '304', '400', '404', '409', '500']);
      const bytes = framed(random, status, JSON.stringify(choice <= 3 ? skeleton : mutated(random, skeleton)) ?? '');
      if (random.whole(1, 10) <= 7) socket.write(bytes);
      else socket.end(bytes);
    });
  });
  if (path === undefined) server.listen(0, '127.0.0.1');
  else server.listen(path);
  await once(server, 'listening');
  t.after(() => server.close());
  return { server, counted };
}

/** Everything that a backend is asked. */
function calls(backend: Backend, ref: string): (() => Promise<unknown>)[] {
  const give = { timeoutSeconds: 1, cwd: undefined, command: 'true' };
  return [
    () => backend.offers(),
    () => backend.find(TAG),
    () => backend.inspect(ref),
    () => backend.destroy(ref),
    () => backend.listOwned(PREFIX),
    () => backend.extend(ref, now() + 100),
    async () =>
      backend.create({ tag: TAG, quote: await backend.quote(SPEC as never), deadline: now() + 100, walletId: 'w' }),
    () => backend.guest.exec(ref, give as never),
    () => backend.guest.upload(ref, '/tmp/x', Buffer.from('x')),
    async () => {
      const session = await backend.guest.session(ref, { command: 'true', terminal: undefined });
      session.ended.catch(() => {});
      for (const it of [session.stdin, session.stdout, session.stderr]) it?.on('error', () => {});
      session.stdout.resume();
      session.stderr?.resume();
      session.stdin.end('x');
      const kill = setTimeout(() => session.kill(), SILENCE_MILLISECONDS);
      await session.ended.finally(() => clearTimeout(kill));
    },
    async () => backend.guest.prove(ref),
    async () => backend.doctor.check(),
    async () => backend.strangers?.list(PREFIX),
  ];
}

/**
 * Asks backends anything until their engine has answered often enough. No answer may do more than fail its call, and every call
 * ends: at once, or at a limit of time.
 */
async function attack(
  t: TestContext,
  random: Random,
  open: () => Backend,
  ref: string,
  { counted, count }: { counted: { answers: number }; count: number },
) {
  const faults: string[] = [];
  using _ = followFaults((where, error) => void faults.push(`${where}: ${(error as Error).stack}`));
  const uncaught: unknown[] = [];
  const note = (error: unknown) => void uncaught.push(error);
  process.on('uncaughtException', note); // Unhandled rejections come here, too. The test would ask on in vain.
  t.after(() => process.off('uncaughtException', note));
  while (counted.answers < count && !uncaught.length) {
    const backend = open();
    const asked = calls(backend, ref);
    const until = Math.min(count, counted.answers + ANSWERS_EACH);
    const worker = async () => {
      while (counted.answers < until && !uncaught.length)
        await random
          .pick(asked)()
          .catch(() => {});
    };
    await waitFor('the calls have ended', Promise.all(Array.from({ length: CALLS_AT_ONCE }, worker)));
    await waitFor('the backend is closed', backend.close());
  }
  t.diagnostic(`${counted.answers} answers, ${faults.length} contained faults`);
  assert.deepEqual(uncaught, []);
  // A library may throw where it reads its engine; Purser's own code expects anything.
  const ours = faults.filter((it) => /^[^\n]*\n\s+at [^\n]*\/src\//.test(it));
  assert.deepEqual([...new Set(ours)].slice(0, 5), []);
}

const directoryOf = (t: TestContext) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-hostile-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
};

/** Opens the backend of a container engine at a socket. */
export function containerAt(path: string): Backend {
  const settings = {
    backend: 'container',
    socket: `unix://${path}`,
    image: 'x',
    pull: 'missing',
    network: 'none',
    pids: 64,
    provision_seconds: 60,
    prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: {} },
    limits: { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 20, max_seconds: 3600 },
    gpu_mode: 'nvidia',
  } as never;
  return openContainerBackend(settings, { prefix: PREFIX, now });
}

/** Returns what opens the backend of a Kubernetes cluster at a port. */
export function kubernetesAt(t: TestContext, port: number): () => Backend {
  const kubeconfig = join(directoryOf(t), 'config');
  const name = { name: 'x' };
  writeFileSync(
    kubeconfig,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'x',
      clusters: [{ ...name, cluster: { server: `http://127.0.0.1:${port}` } }],
      users: [{ ...name, user: { token: 'x' } }],
      contexts: [{ ...name, context: { cluster: 'x', user: 'x' } }],
    }),
  );
  const settings = v.parse(slots.provider_one, {
    backend: 'kubernetes',
    kubeconfig,
    namespace: 'leases',
    image: 'busybox',
    prices: { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.005' },
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
  }) as KubernetesSettings;
  return () => openKubernetesBackend(settings, { now });
}

async function attackContainer(t: TestContext, random: Random, count: number) {
  const labels = { 'purser.tag': TAG, 'purser.deadline': String(now() + 100) };
  const state = { Running: true, Status: 'running', ExitCode: 0, StartedAt: '2026-01-01T00:00:00Z', OOMKilled: false };
  const path = join(directoryOf(t), 'socket');
  const { counted } = await openHostile(
    t,
    random,
    [
      [
        /\/containers\/json/,
        [{ Id: 'a'.repeat(64), Names: [`/${TAG}`], Labels: labels, State: 'running', Created: 1, Image: 'x' }],
      ],
      [/\/containers\/create/, { Id: 'a'.repeat(64), Warnings: [], message: 'No such image: x' }],
      [
        /\/containers\/[^/]+\/json/,
        {
          Id: 'a'.repeat(64),
          Name: `/${TAG}`,
          State: state,
          Config: { Labels: labels, User: '', Image: 'x' },
          HostConfig: {},
          Created: '2026-01-01T00:00:00Z',
        },
      ],
      [/\/exec\/[^/]+\/json/, { Running: false, ExitCode: 0, Pid: 1 }],
      [/\/exec$/, { Id: 'b'.repeat(64) }],
      [/\/containers\/[^/]+\/(top)/, { Titles: ['PID'], Processes: [['1']] }],
      [/\/images\/create/, { status: 'Pulling', id: 'x', progressDetail: {} }],
      [/\/images\/[^/]+\/json/, { Id: 'sha256:x', Config: { User: '' }, Os: 'linux', Architecture: 'amd64' }],
      [
        /\/info/,
        {
          NCPU: 8,
          MemTotal: 16e9,
          Driver: 'overlay2',
          SecurityOptions: ['name=seccomp'],
          OSType: 'linux',
          Architecture: 'x86_64',
          Runtimes: {},
        },
      ],
      [
        /\/version/,
        { ApiVersion: '1.45', Version: '26', Os: 'linux', Arch: 'amd64', Components: [{ Name: 'Engine' }] },
      ],
      [/\/networks/, [{ Name: 'none', Id: 'n', Containers: {} }]],
    ],
    path,
  );
  await attack(t, random, () => containerAt(path), TAG, { counted, count });
}

async function attackKubernetes(t: TestContext, random: Random, count: number) {
  const metadata = {
    name: 'x',
    namespace: 'leases',
    uid: 'u',
    resourceVersion: '1',
    labels: { 'purser/tag': TAG, 'job-name': 'x' },
    annotations: {},
    creationTimestamp: '2026-01-01T00:00:00Z',
  };
  const container = { name: 'lease', ready: true, state: { running: { startedAt: '2026-01-01T00:00:00Z' } } };
  const pod = {
    kind: 'Pod',
    metadata,
    spec: { nodeName: 'n', containers: [{ name: 'lease', resources: {} }] },
    status: { phase: 'Running', containerStatuses: [container], conditions: [] },
  };
  const job = {
    kind: 'Job',
    metadata,
    spec: { activeDeadlineSeconds: 100, template: { metadata, spec: pod.spec } },
    status: { active: 1, startTime: '2026-01-01T00:00:00Z' },
  };
  const { server, counted } = await openHostile(t, random, [
    [/\/pods\?|\/pods$/, { kind: 'PodList', metadata: { resourceVersion: '1' }, items: [pod] }],
    [/\/pods\//, pod],
    [/\/jobs\?|\/jobs$/, { kind: 'JobList', metadata: { resourceVersion: '1' }, items: [job] }],
    [/\/jobs\//, job],
    [/\/version/, { major: '1', minor: '30', gitVersion: 'v1.30.0' }],
    [
      /\/nodes/,
      {
        kind: 'NodeList',
        metadata: {},
        items: [{ metadata, status: { allocatable: { cpu: '8', memory: '16Gi' }, conditions: [] }, spec: {} }],
      },
    ],
    [/selfsubject/, { status: { allowed: true } }],
  ]);
  const { port } = server.address() as { port: number };
  const open = kubernetesAt(t, port);
  await attack(t, random, open, 'leases/x/u', { counted, count });
}

async function attackLxd(t: TestContext, random: Random, count: number) {
  const path = join(directoryOf(t), 'socket');
  const sync = (metadata: unknown) => ({ type: 'sync', status: 'Success', status_code: 200, metadata });
  const operation = {
    id: 'op',
    class: 'task',
    status: 'Success',
    status_code: 200,
    err: '',
    metadata: { return: 0, fds: { 0: 's', 1: 's', 2: 's', control: 's' } },
  };
  const instance = {
    name: 'purser-x',
    status: 'Running',
    status_code: 103,
    type: 'container',
    created_at: '2026-01-01T00:00:00Z',
    location: 'none',
    config: { 'user.purser.tag': `${LXD_PREFIX}res-fake`, 'user.purser.deadline': '1' },
    devices: {},
    expanded_config: {},
    expanded_devices: {},
    state: { status: 'Running', pid: 1, processes: 1 },
  };
  const { counted } = await openHostile(
    t,
    random,
    [
      [/\/operations\//, sync(operation)],
      [/\/instances\/[^/]+\/state/, sync(instance.state)],
      [
        /\/instances\/[^/]+\/exec/,
        { type: 'async', status_code: 100, operation: '/1.0/operations/op', metadata: operation },
      ],
      [/\/instances\/[^/?]+/, sync(instance)],
      [/\/instances/, sync([instance])],
      [/\/resources/, sync({ cpu: { total: 8 }, memory: { total: 16e9 } })],
      [
        /\/1\.0(\?|$)/,
        sync({ auth: 'trusted', environment: { server: 'lxd', server_version: '5.0.2', server_clustered: false } }),
      ],
    ],
    path,
  );
  await attack(t, random, () => lxdSubject(`unix://${path}`).backend, 'purser-x', { counted, count });
}

/** Attacks the client of each kind of engine with `count` hostile answers. */
export const HOSTILE_ENGINES = {
  'a container engine': attackContainer,
  'a Kubernetes cluster': attackKubernetes,
  LXD: attackLxd,
};
