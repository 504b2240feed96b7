import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  closeSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import Docker from 'dockerode';
import { Agent, request } from 'undici';
import { resetConnection } from '../../../src/net/reset.ts';
import { findKubernetes } from '../../components.ts';
import { childrenOf } from '../../helper/children.ts';
import { hasComponent } from '../../helper/component.ts';
import { until } from '../../helper/waiting.ts';
import { IMAGE, importImage, packBusybox } from './docker.ts';
import { makeCertificates } from './remote.ts';

const RELAY = fileURLToPath(new URL('kubernetes-relay.ts', import.meta.url));
const NODE = 'node-1';
/** The address of the node and of the API server: both want one that is not loopback. */
const ADDRESS = '10.9.9.1';
const SERVICES = '10.0.0.0/24';
/** The API server's own service. Nothing forwards services here, so its address is one of the machine's. */
const API_SERVICE = '10.0.0.1';
/** Without a name of its own: kubelet's sandbox of a pod, which only waits. */
const PAUSE = 'localhost/pause:1';
/** It ends when it is told to: kubelet waits 10 s for it, and then up to a minute until it removes the pod. */
const WAIT = JSON.stringify(['/bin/sh', '-c', 'trap exit TERM; while :; do sleep 1000000 & wait; done']);
/** What kubelet demands of the kernel. It sees these values, so that it does not change the machine's. */
const TUNABLES = {
  'vm/overcommit_memory': 1,
  'vm/panic_on_oom': 0,
  'kernel/panic': 10,
  'kernel/panic_on_oops': 1,
  'kernel/keys/root_maxkeys': 1_000_000,
  'kernel/keys/root_maxbytes': 25_000_000,
};
/** A machine may lack the capability CAP_SYS_RESOURCE, which these two settings of a container need. */
const RUNC_WRAP = `#!/bin/sh
bundle=
for word; do
  [ "$bundle" = next ] && bundle=$word && break
  [ "$word" = --bundle ] && bundle=next
done
[ -f "$bundle/config.json" ] && sed -i -E 's/,"oomScoreAdj":-?[0-9]+//; s/,"rlimits":\\[[^]]*\\]//' "$bundle/config.json"
exec runc "$@"
`;
/** The kernel's hierarchies of control groups; this Kubernetes knows their first version alone. */
const CGROUPS = existsSync('/sys/fs/cgroup/memory/tasks')
  ? globSync('/sys/fs/cgroup/*/cgroup.procs').map((file) => dirname(file))
  : [];
const CONTROLLERS = [
  ...[
    'job',
    'ttl-after-finished',
    'garbagecollector',
    'namespace',
    'nodelifecycle',
    'podgc',
    'statefulset',
    'resourcequota',
  ],
  ...['serviceaccount', 'serviceaccount-token', 'root-ca-cert-publisher', 'endpoint'],
  ...['persistentvolume-binder', 'pvc-protection', 'pv-protection'],
];

/** A real Kubernetes of one node, with its own network, processes and mounts. The API server is reached at a port of 127.0.0.1. */
export type KubernetesCluster = {
  url: string;
  /** The file of the authority that signed the API server's certificate. */
  ca: string;
  /** The bearer token of an administrator, and one of the user `purser`, who may do nothing yet. */
  token: string;
  userToken: string;
  /** A file with the administrator's credentials. */
  kubeconfig: string;
  directory: string;
  /** An image that the node has: busybox. Nothing can be pulled. */
  image: string;
  node: string;
  /** The node's engine, to import images into. */
  docker: Docker;
  /** Runs kubectl as the administrator. Returns its stdout; throws with its stderr. */
  kubectl(args: readonly string[], input?: string): Promise<string>;
  /** Sends one request to the API as the administrator. */
  api(method: string, path: string, body?: object): Promise<{ status: number; body: ApiObject }>;
  /** Makes an address inside the cluster's network reachable, such as a pod's. Returns a port of 127.0.0.1. */
  forward(host: string, port: number): Promise<number>;
  /** Breaks all connections to the API server, as a router that forgets them. New ones are accepted. */
  cut(): void;
  /** Kills the API server: connections to it break, and new ones are refused. */
  stopApiServer(): Promise<void>;
  startApiServer(): Promise<void>;
  restartApiServer(): Promise<void>;
  /** Takes the node's power: kubelet, its engine and every container are gone at once. */
  killNode(): Promise<void>;
  /** Starts the node again, with the same disk. */
  startNode(): Promise<void>;
  stop(): Promise<void>;
};
/** An object of the API, read by tests. */
export type ApiObject = any;

/** Starts one. Without the programs it needs, returns undefined and skips the test. A `shared` one is stopped by whoever opened it. */
export async function openKubernetes(
  t: Pick<TestContext, 'after' | 'skip'>,
  { shared = false }: { shared?: boolean } = {},
): Promise<KubernetesCluster | undefined> {
  if (!hasComponent(t, 'kubernetes', () => CGROUPS.length > 0)) return undefined;
  const binaries = findKubernetes();
  const directory = mkdtempSync(join(tmpdir(), 'purser-kubernetes-'));
  const at = (name: string) => join(directory, name);
  const cgroup = basename(directory);
  for (const it of CGROUPS) mkdirSync(join(it, cgroup), { recursive: true });
  const token = randomBytes(16).toString('hex');
  const userToken = randomBytes(16).toString('hex');
  writeFiles(directory, token, userToken);

  const running = new Map<string, { child: ChildProcess; ended: Promise<unknown> }>();
  /** Starts a program in the namespaces of a process of this cluster, or as their first. */
  function start(name: string, command: readonly string[], inside?: number): ChildProcess {
    const enter = inside === undefined ? [] : ['nsenter', `--target=${inside}`, '--net', '--mount', '--pid', '--'];
    const [program, ...args] = [...enter, ...command];
    const log = openSync(at(`${name}.log`), 'a');
    const child = spawn(program as string, args, {
      cwd: directory,
      env: {
        PATH: `${binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`,
        LC_ALL: 'C',
        TMPDIR: directory, // containerd leaves its stacks there.
      },
      stdio: ['pipe', log, log],
    });
    closeSync(log);
    running.set(name, { child, ended: once(child, 'exit') });
    return child;
  }
  /**
   * Kills what was started by this name, and all that runs in namespaces of its own. Once it returns, ports and files are
   * free: what entered namespaces has a parent outside that ends after it, and is killed only if it has no child yet.
   */
  async function kill(name: string) {
    const it = running.get(name);
    if (!it) return;
    running.delete(name);
    const inside = childrenOf(it.child.pid as number);
    for (const pid of inside)
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // It has ended in the meantime.
    if (inside.length === 0) it.child.kill('SIGKILL');
    await it.ended;
  }
  /** The last words of Kubernetes' programs are the stacks of all that ran; why it ended is before them. */
  const isRunning = (name: string) =>
    assert.equal(running.get(name)?.child.exitCode, null, `${name} ended: ${whyOf(name)}${logOf(name)}`);
  const allOf = (name: string) => readFileSync(at(`${name}.log`), 'utf8');
  const whyOf = (name: string) =>
    allOf(name)
      .match(/^F\d{4} .*\n/gm)
      ?.join('') ?? '';
  const logOf = (name: string) => allOf(name).slice(-3000);
  /** Starts the first process of new namespaces and returns its id, when it has done `script`. */
  async function startNamespaces(name: string, command: readonly string[], inside?: number): Promise<number> {
    const child = start(name, command, inside);
    return until(`${name} is there`, async () => {
      isRunning(name);
      return logOf(name).endsWith('ready\n') && firstInside(child.pid as number);
    });
  }

  // What runs in these namespaces, the node too, ends with their first process, and that with this one, whose pipe it reads.
  const setUp = [
    'exec 3<&0',
    'ip link set lo up',
    'ip link add uplink type bridge',
    `ip address add ${ADDRESS}/24 dev uplink`,
    `ip address add ${API_SERVICE}/32 dev uplink`,
    'ip link set uplink up',
    'ip route add default dev uplink',
    '"$@" <&3 &',
    'wait $!',
  ];
  const namespaces = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc', 'sh', '-ec'];
  const relay = [process.execPath, RELAY, at('api.sock'), '443'];
  let base = 0;
  let node = 0;
  const front = openFront(at('api.sock'));
  const others: ReturnType<typeof openFront>[] = [];
  async function forward(host: string, port: number) {
    const name = `relay-${others.length}`;
    start(name, [process.execPath, RELAY, at(`${name}.sock`), String(port), host], base);
    await until('the relay listens', async () => {
      isRunning(name);
      return logOf(name).endsWith('ready\n');
    });
    const other = openFront(at(`${name}.sock`));
    others.push(other);
    await other.open();
    return other.port();
  }

  const docker = new Docker({ socketPath: at('docker.sock') });
  async function startNode() {
    const see = Object.entries(TUNABLES).map(
      ([name]) => `mount --bind ${at('tunables')}/${name.replaceAll('/', '.')} /proc/sys/${name}`,
    );
    const script = [...see, 'echo ready', 'sleep infinity & wait $!'].join('\n');
    writeFileSync(at('node.log'), '');
    node = await startNamespaces('node', [...namespaces, script], base);
    // A machine that starts has an empty /run: another process may now have the id that an old file names.
    for (const it of ['docker.pid', 'exec']) rmSync(at(it), { recursive: true, force: true });
    start(
      'dockerd',
      [
        ...['dockerd', '-H', `unix://${at('docker.sock')}`, '--data-root', at('docker'), '--exec-root', at('exec')],
        ...['--pidfile', at('docker.pid'), '--exec-opt', 'native.cgroupdriver=cgroupfs'],
        ...['--add-runtime', `wrap=${at('runc-wrap')}`, '--default-runtime', 'wrap'],
      ],
      node,
    );
    await until('the engine of the node answers', () =>
      docker.ping().then(
        () => true,
        () => void isRunning('dockerd'),
      ),
    );
  }
  const startKubelet = () =>
    start(
      'kubelet',
      [
        ...['kubelet', `--kubeconfig=${at('kubeconfig-inside')}`, `--docker-endpoint=unix://${at('docker.sock')}`],
        ...[`--pod-infra-container-image=${PAUSE}`, `--root-dir=${at('kubelet')}`, `--cert-dir=${at('kubelet-certs')}`],
        ...['--cgroup-driver=cgroupfs', '--fail-swap-on=false', `--hostname-override=${NODE}`, `--node-ip=${ADDRESS}`],
        ...['--cgroups-per-qos=true', `--cgroup-root=/${cgroup}`, '--enforce-node-allocatable=', '--eviction-hard='],
        ...['--anonymous-auth=true', '--authorization-mode=AlwaysAllow', '--image-gc-high-threshold=100'],
        ...[`--volume-plugin-dir=${at('volume-plugins')}`, '--node-status-update-frequency=2s', '--sync-frequency=1s'],
        // Its registry of device plugins has a fixed path on the machine: of two that start at once, one ends.
        '--feature-gates=DevicePlugins=false',
      ],
      node,
    );
  async function startApiServer() {
    start(
      'kube-apiserver',
      [
        ...['kube-apiserver', '--etcd-servers=http://127.0.0.1:2379', '--bind-address=0.0.0.0', '--secure-port=443'],
        ...[`--advertise-address=${ADDRESS}`, `--service-cluster-ip-range=${SERVICES}`],
        ...[`--tls-cert-file=${at('certs/server.pem')}`, `--tls-private-key-file=${at('certs/server-key.pem')}`],
        ...['--service-account-issuer=https://kubernetes.default.svc', `--service-account-key-file=${at('sa.key')}`],
        ...[`--service-account-signing-key-file=${at('sa.key')}`, `--token-auth-file=${at('tokens')}`],
        ...['--authorization-mode=RBAC', '--kubelet-preferred-address-types=InternalIP'],
        ...['--default-not-ready-toleration-seconds=5', '--default-unreachable-toleration-seconds=5'],
      ],
      base,
    );
    await front.open();
    await until('the API server is ready', async () => {
      isRunning('kube-apiserver');
      return (await api('GET', '/readyz').catch(() => undefined))?.status === 200;
    });
  }
  async function stopApiServer() {
    await front.close();
    await kill('kube-apiserver');
  }

  let agent: Agent | undefined;
  async function api(method: string, path: string, body?: object) {
    const type = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json';
    agent ??= new Agent({ connect: { ca: readFileSync(at('certs/ca.pem')) } });
    const answer = await request(`https://127.0.0.1:${front.port()}${path}`, {
      method: method as 'GET',
      dispatcher: agent,
      headers: { authorization: `Bearer ${token}`, 'content-type': type },
      body: body === undefined ? null : JSON.stringify(body),
    });
    const text = await answer.body.text();
    return { status: answer.statusCode, body: text.startsWith('{') ? JSON.parse(text) : text };
  }
  const untilNodeReady = () =>
    until('the node is ready', async () => {
      for (const name of running.keys()) isRunning(name);
      const { body } = await api('GET', `/api/v1/nodes/${NODE}`);
      return body.status?.conditions?.some((it: ApiObject) => it.type === 'Ready' && it.status === 'True');
    });
  async function stop() {
    for (const it of [front, ...others]) await it.close();
    await agent?.close();
    await kill('base');
    for (const name of [...running.keys()]) await kill(name);
    for (const it of CGROUPS) await removeCgroup(join(it, cgroup));
    rmSync(directory, { recursive: true, force: true });
  }

  try {
    await front.open();
    base = await startNamespaces('base', [...namespaces.toSpliced(1, 0, '--net'), setUp.join('\n'), 'sh', ...relay]);
    start(
      'etcd',
      [
        ...['etcd', '--data-dir', at('etcd'), '--unsafe-no-fsync'],
        ...['--listen-client-urls', 'http://127.0.0.1:2379', '--advertise-client-urls', 'http://127.0.0.1:2379'],
        ...['--listen-peer-urls', 'http://127.0.0.1:2380'],
      ],
      base,
    );
    const engine = startNode().then(() => importImages(docker, directory));
    await Promise.all([startApiServer(), engine]);
    startKubelet();
    const control = ['--port=0', '--secure-port=0', `--kubeconfig=${at('kubeconfig-inside')}`, '--leader-elect=false'];
    start('kube-scheduler', ['kube-scheduler', ...control], base);
    start(
      'kube-controller-manager',
      [
        ...['kube-controller-manager', ...control, `--controllers=${CONTROLLERS.join(',')}`],
        ...['--feature-gates=TTLAfterFinished=true', `--root-ca-file=${at('certs/ca.pem')}`],
        ...['--use-service-account-credentials=false', `--service-account-private-key-file=${at('sa.key')}`],
        ...['--node-monitor-period=2s', '--node-monitor-grace-period=16s'],
      ],
      base,
    );
    writeKubeconfig(at('kubeconfig'), `https://127.0.0.1:${front.port()}`, at('certs/ca.pem'), token);
    await untilNodeReady();
  } catch (error) {
    await stop();
    throw error;
  }
  if (!shared) t.after(stop);
  return {
    url: `https://127.0.0.1:${front.port()}`,
    ca: at('certs/ca.pem'),
    token,
    userToken,
    kubeconfig: at('kubeconfig'),
    directory,
    image: IMAGE,
    node: NODE,
    docker,
    kubectl: (args, input = '') => runKubectl(at('kubeconfig'), directory, args, input),
    api,
    forward,
    cut: front.cut,
    stopApiServer,
    startApiServer,
    async restartApiServer() {
      await stopApiServer();
      await startApiServer();
    },
    async killNode() {
      await kill('node');
      await kill('dockerd');
      await kill('kubelet');
    },
    async startNode() {
      await startNode();
      startKubelet();
      await untilNodeReady();
    },
    stop,
  };
}

/** Returns the folder with Kubernetes' own programs, which the set-up has put there or now unpacks. */
function writeFiles(directory: string, token: string, userToken: string): void {
  const at = (name: string) => join(directory, name);
  const names = ['IP:127.0.0.1', `IP:${ADDRESS}`, `IP:${API_SERVICE}`, 'DNS:kubernetes.default.svc'];
  makeCertificates(at('certs'), names);
  const { privateKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs1', format: 'pem' },
  });
  writeFileSync(at('sa.key'), privateKey, { mode: 0o600 });
  writeFileSync(at('tokens'), `${token},admin,admin,system:masters\n${userToken},purser,purser\n`, { mode: 0o600 });
  writeFileSync(at('runc-wrap'), RUNC_WRAP, { mode: 0o755 });
  mkdirSync(at('tunables'));
  for (const [name, value] of Object.entries(TUNABLES))
    writeFileSync(at(`tunables/${name.replaceAll('/', '.')}`), `${value}\n`);
  writeKubeconfig(at('kubeconfig-inside'), 'https://127.0.0.1:443', at('certs/ca.pem'), token);
}

function writeKubeconfig(file: string, server: string, ca: string, token: string): void {
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'test', cluster: { server, 'certificate-authority': ca } }],
    users: [{ name: 'admin', user: { token } }],
    contexts: [{ name: 'test', context: { cluster: 'test', user: 'admin' } }],
    'current-context': 'test',
  };
  writeFileSync(file, JSON.stringify(config), { mode: 0o600 }); // YAML contains JSON.
}

async function importImages(docker: Docker, directory: string): Promise<void> {
  const archive = packBusybox(directory);
  await importImage(docker, archive, { repo: IMAGE });
  await importImage(docker, archive, { repo: PAUSE, changes: `ENTRYPOINT ${WAIT}` });
}

/** A port of 127.0.0.1, the same for as long as the cluster lives, in front of the relay in the cluster's network. */
function openFront(socket: string) {
  const open = new Set<Socket>();
  let server: Server | undefined;
  let port = 0;
  const cut = () => {
    for (const it of open) resetConnection(it);
  };
  return {
    port: () => port,
    cut,
    async open() {
      if (server) return;
      server = createServer({ allowHalfOpen: true }, (near) => {
        const far = connect({ path: socket, allowHalfOpen: true });
        open.add(near);
        near.once('close', () => open.delete(near));
        for (const [it, other] of [
          [near, far],
          [far, near],
        ] as const) {
          it.on('error', () => {});
          it.once('close', () => other.destroy());
          it.pipe(other);
        }
      });
      server.listen(port, '127.0.0.1');
      await once(server, 'listening');
      port = (server.address() as AddressInfo).port;
    },
    async close() {
      const closed = server && once(server, 'close');
      server?.close();
      server = undefined;
      cut();
      await closed;
    },
  };
}

function runKubectl(kubeconfig: string, home: string, args: readonly string[], input: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const env = { PATH: process.env.PATH, HOME: home, KUBECONFIG: kubeconfig };
    const child = execFile('kubectl', args, { env, maxBuffer: 2 ** 26 }, (error, stdout, stderr) => {
      if (error)
        reject(Object.assign(new Error(`kubectl ${args.join(' ')}: ${stderr}${stdout}`), { code: error.code }));
      else resolve(stdout);
    });
    child.stdin?.end(input);
  });
}

/** Returns the descendant of `pid` that is the first process of its own process namespace, if it is there. */
function firstInside(pid: number): number | undefined {
  for (const child of childrenOf(pid)) {
    const inside = /^NSpid:\t(.*)$/m.exec(readFileSync(`/proc/${child}/status`, 'utf8'))?.[1]?.split('\t') ?? [];
    if (inside.length > 1 && inside.at(-1) === '1') return child;
    const deeper = firstInside(child);
    if (deeper) return deeper;
  }
  return undefined;
}

/** Removes a control group and those below it, once the kernel has let go of their processes. */
async function removeCgroup(directory: string): Promise<void> {
  if (!existsSync(directory)) return;
  for (const it of readdirSync(directory, { withFileTypes: true }))
    if (it.isDirectory()) await removeCgroup(join(directory, it.name));
  await until(`${directory} is empty`, async () => {
    try {
      rmdirSync(directory);
      return true;
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === 'ENOENT';
    }
  });
}
