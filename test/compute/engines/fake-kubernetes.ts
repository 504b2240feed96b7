import { spawn } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { constants } from 'node:os';
import { type Duplex, PassThrough, type Readable } from 'node:stream';
import type { TestContext } from 'node:test';
import { type WebSocket, WebSocketServer } from 'ws';
import { resetConnection } from '../../../src/net/reset.ts';
import { whenRead } from '../../helper/listener.ts';
import type { ApiObject } from './kubernetes.ts';

/** A request as it arrived. */
export type KubernetesCall = {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: http.IncomingHttpHeaders;
  body: ApiObject;
};
type Answered = { status: number; body: object; headers?: Record<string, string> };
/** What happens to a request instead of its answer. `perform` does what it asks for, and returns the answer. */
export type KubernetesFault = (response: http.ServerResponse, perform: () => Answered) => unknown;

/** A command that somebody runs in a pod, over a socket of the protocol that was agreed on. */
export type KubernetesExec = {
  pod: string;
  command: string[];
  query: URLSearchParams;
  protocol: string;
  socket: WebSocket;
  /** What comes on stdin until its end, which only v5 can tell, or until the socket closes. */
  stdin: Readable;
  stdout(data: string | Buffer): void;
  stderr(data: string | Buffer): void;
  /** Sends the status of a command that ended with this code, and closes the socket. */
  exit(code: number): void;
  /** Sends an object as status. */
  status(status: object): void;
};

/** A server that speaks Kubernetes' protocol and keeps objects in memory, with every fault on request. */
export type FakeKubernetes = {
  url: string;
  /** A kubeconfig for it, as text. */
  kubeconfig: string;
  calls: KubernetesCall[];
  count(method: string, path: RegExp): number;
  /** The next `times` requests that match get this fault, beginning now. */
  fault(match: (call: KubernetesCall) => unknown, fault: KubernetesFault, times?: number): void;
  /** Forgets faults that have not happened yet. */
  clear(): void;
  /** The objects of a kind, such as `jobs`. */
  objects(resource: string): ApiObject[];
  /** Removes all objects of a kind. */
  remove(resource: string): void;
  /** The status of a new pod with this container: by default it runs at once. Undefined: the job has no pod yet. */
  podStatus: (container: string) => object | undefined;
  /** Whether pods stay when their job is deleted, as those of a node that cannot be reached. */
  podsLinger: boolean;
  /** The most objects in one page of a list, however many were asked for. */
  pageMax: number;
  /** What a SelfSubjectAccessReview denies, such as `create pods/exec`. */
  denied: Set<string>;
  /** The protocols of exec that the server speaks. */
  protocols: string[];
  /** Runs a command. By default on this machine, as nobody; only what would talk to process 1 says nothing and ends with 0. */
  exec: (exec: KubernetesExec) => unknown;
  close(): Promise<void>;
};

/** Answers without doing anything. `reason` is Kubernetes' own word. */
export const says =
  (status: number, reason: string, headers: Record<string, string> = {}): KubernetesFault =>
  (response) =>
    answer(response, { ...failure(status, reason), headers });
/** Answers as something before the server would: not with a Status. */
export const saysPlain =
  (status: number, text: string): KubernetesFault =>
  (response) =>
    response.writeHead(status, { 'content-type': 'text/plain' }).end(text);
/** Breaks the connection and does nothing. */
export const dropped: KubernetesFault = (response) => resetConnection(response.socket);
/** Does it, and breaks the connection. */
export const lost: KubernetesFault = (response, perform) => {
  perform();
  resetConnection(response.socket);
};
/** Does it, and answers half. */
export const halved: KubernetesFault = (response, perform) => {
  const text = JSON.stringify(perform().body);
  response.writeHead(200, { 'content-length': text.length });
  response.write(text.slice(0, text.length / 2), () => response.socket?.destroy());
};
/** Does it, and answers something that is no JSON. */
export const garbled: KubernetesFault = (response, perform) => {
  perform();
  response.end('<html>');
};
/** Does it, and answers after this time. */
export const late =
  (milliseconds: number): KubernetesFault =>
  (response, perform) =>
    setTimeout(() => answer(response, perform()), milliseconds);
/** Does it first, and then says something else. */
export const doneBut =
  (status: number, reason: string): KubernetesFault =>
  (response, perform) => {
    perform();
    answer(response, failure(status, reason));
  };

const KINDS: Record<string, string> = {
  jobs: 'Job',
  pods: 'Pod',
  networkpolicies: 'NetworkPolicy',
  selfsubjectaccessreviews: 'SelfSubjectAccessReview',
  namespaces: 'Namespace',
};
const PATH = /^\/(api\/v1|apis\/[^/]+\/[^/]+)(?:\/namespaces\/([^/]+)(?=\/))?\/([a-z]+)(?:\/([^/]+))?(?:\/([a-z]+))?$/;
const STREAM = { stdin: 0, stdout: 1, stderr: 2, error: 3, close: 255 } as const;

export async function openFakeKubernetes(t: Pick<TestContext, 'after'>): Promise<FakeKubernetes> {
  const objects = new Map<string, ApiObject>();
  const faults: { match: (call: KubernetesCall) => unknown; fault: KubernetesFault; times: number }[] = [];
  const connections = new Set<Duplex>();
  let version = 1000;

  const of = (resource: string, namespace?: string) =>
    [...objects.entries()]
      .filter(([key]) => key.startsWith(`${resource}/${namespace === undefined ? '' : `${namespace}/`}`))
      .map(([, object]) => object);

  function store(resource: string, namespace: string, object: ApiObject): ApiObject {
    const { name } = object.metadata;
    object.metadata = { ...object.metadata, namespace, resourceVersion: String(++version) };
    objects.set(`${resource}/${namespace}/${name}`, object);
    return object;
  }
  const fresh = (body: ApiObject): ApiObject => ({
    ...body,
    metadata: { ...body.metadata, uid: randomUUID(), creationTimestamp: new Date().toISOString() },
  });

  /** What the Job controller, the scheduler and the kubelet do in a real cluster, at once. */
  function startPod(job: ApiObject): void {
    const { name, namespace, uid } = job.metadata;
    const status = fake.podStatus(job.spec.template.spec.containers[0].name);
    job.status = status === undefined ? {} : { active: 1, startTime: new Date().toISOString() };
    if (status === undefined) return;
    const { metadata, spec } = job.spec.template;
    const labels = { ...metadata?.labels, 'job-name': name, 'controller-uid': uid };
    const owner = { apiVersion: 'batch/v1', kind: 'Job', name, uid, controller: true };
    const pod = {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { ...metadata, name: `${name}-${randomBytes(3).toString('hex')}`, labels, ownerReferences: [owner] },
      spec: { ...spec, nodeName: 'node-1' },
      status,
    };
    store('pods', namespace, fresh(pod));
  }

  function remove(resource: string, object: ApiObject): void {
    const { namespace, name, uid } = object.metadata;
    const pods = resource === 'jobs' ? of('pods', namespace) : [];
    for (const pod of pods.filter((it) => it.metadata.ownerReferences?.[0]?.uid === uid))
      if (fake.podsLinger) pod.metadata.deletionTimestamp = new Date().toISOString();
      else objects.delete(`pods/${namespace}/${pod.metadata.name}`);
    objects.delete(`${resource}/${namespace}/${name}`);
  }

  function list(resource: string, namespace: string | undefined, query: URLSearchParams): Answered {
    const limit = Math.min(Number(query.get('limit') ?? 0) || Number.POSITIVE_INFINITY, fake.pageMax);
    const from = Number(query.get('continue') ?? 0);
    const found = of(resource, namespace).filter((it) => selects(query.get('labelSelector') ?? '', it));
    const rest = found.length - from - limit;
    const items = found.slice(from, from + limit);
    const metadata = {
      resourceVersion: String(version),
      ...(rest > 0 ? { continue: String(from + limit), remainingItemCount: rest } : {}),
    };
    return { status: 200, body: { kind: `${KINDS[resource]}List`, apiVersion: 'v1', metadata, items } };
  }

  function perform({ method, path, query, body }: KubernetesCall): Answered {
    if (path === '/version') return { status: 200, body: { major: '1', minor: '33', gitVersion: 'v1.33.0-fake' } };
    const [, , namespace, resource = '', name] = PATH.exec(path) ?? [];
    if (!(resource in KINDS)) return failure(404, 'NotFound');
    if (resource === 'selfsubjectaccessreviews') {
      const { verb, resource: what, subresource } = body.spec.resourceAttributes;
      const allowed = !fake.denied.has(`${verb} ${what}${subresource ? `/${subresource}` : ''}`);
      return { status: 201, body: { ...body, status: { allowed } } };
    }
    if (method === 'POST') {
      const key = `${resource}/${namespace}/${body.metadata.name}`;
      if (objects.has(key)) return failure(409, 'AlreadyExists');
      if (query.get('dryRun') === 'All') return { status: 201, body: fresh(body) };
      const made = store(resource, namespace as string, fresh(body));
      if (resource === 'jobs') startPod(made);
      return { status: 201, body: made };
    }
    if (method === 'GET' && name === undefined) return list(resource, namespace, query);
    const object = objects.get(`${resource}/${namespace ?? ''}/${name}`);
    if (!object) return failure(404, 'NotFound');
    if (method === 'PATCH') {
      const { resourceVersion = object.metadata.resourceVersion } = body.metadata ?? {};
      if (resourceVersion !== object.metadata.resourceVersion) return failure(409, 'Conflict');
      return { status: 200, body: store(resource, namespace as string, merge(object, body)) };
    }
    if (method === 'DELETE') {
      const uid = body?.preconditions?.uid;
      if (uid !== undefined && uid !== object.metadata.uid) return failure(409, 'Conflict');
      remove(resource, object);
    }
    return { status: 200, body: object };
  }

  const server = http.createServer(
    whenRead((request, response, body) => {
      const call = callOf(request, body.toString());
      fake.calls.push(call);
      const fault = faultFor(call);
      if (fault) fault(response, () => perform(call));
      else answer(response, perform(call));
    }),
  );
  function faultFor(call: KubernetesCall): KubernetesFault | undefined {
    const found = faults.find(({ match, times }) => times > 0 && match(call));
    if (found) found.times -= 1;
    return found?.fault;
  }

  const sockets = new WebSocketServer({
    noServer: true,
    perMessageDeflate: false,
    handleProtocols: (offered) => [...offered].find((it) => fake.protocols.includes(it)) ?? false,
  });
  server.on('upgrade', (request, connection, head) => {
    const call = callOf(request, '');
    fake.calls.push(call);
    const refuse = ({ status, body }: Answered) => {
      const text = JSON.stringify(body);
      connection.end(`HTTP/1.1 ${status} No\r\ncontent-length: ${text.length}\r\nconnection: close\r\n\r\n${text}`);
    };
    const fault = faultFor(call);
    if (fault) {
      const response = new http.ServerResponse(request);
      response.assignSocket(connection as Socket);
      return void fault(response, () => failure(500, 'InternalError'));
    }
    const [, , namespace, , name] = PATH.exec(call.path) ?? [];
    if (!objects.has(`pods/${namespace}/${name}`)) return refuse(failure(404, 'NotFound'));
    const offered = (request.headers['sec-websocket-protocol'] ?? '').split(/, */);
    if (!offered.some((it) => fake.protocols.includes(it))) return connection.end('HTTP/1.1 403 Forbidden\r\n\r\n'); // As golang.org/x/net/websocket does: without a Status.
    sockets.handleUpgrade(request, connection, head, (socket) => fake.exec(openExec(socket, name as string, call)));
  });
  server.on('connection', (connection) => {
    connections.add(connection);
    connection.on('error', () => {}).once('close', () => connections.delete(connection));
  });

  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const fake: FakeKubernetes = {
    url,
    kubeconfig: JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'fake', cluster: { server: url } }],
      users: [{ name: 'fake', user: { token: 'fake-token' } }],
      contexts: [{ name: 'fake', context: { cluster: 'fake', user: 'fake' } }],
      'current-context': 'fake',
    }),
    calls: [],
    count: (method, path) => fake.calls.filter((it) => it.method === method && path.test(it.path)).length,
    fault: (match, fault, times = 1) => void faults.unshift({ match, fault, times }),
    clear: () => void faults.splice(0),
    objects: (resource) => of(resource),
    remove: (resource) => of(resource).forEach((it) => void remove(resource, it)),
    podStatus: runningStatus,
    podsLinger: false,
    pageMax: Number.POSITIVE_INFINITY,
    denied: new Set(),
    protocols: ['v5.channel.k8s.io', 'v4.channel.k8s.io'],
    exec: runHere,
    async close() {
      const closed = once(server, 'close');
      server.close();
      for (const it of connections) it.destroy();
      await closed;
    },
  };
  t.after(fake.close);
  return fake;
}

/** The status of a pod that runs. */
export const runningStatus = (container: string) => ({
  phase: 'Running',
  startTime: new Date().toISOString(),
  conditions: [
    { type: 'PodScheduled', status: 'True' },
    { type: 'Ready', status: 'True' },
  ],
  containerStatuses: [
    {
      name: container,
      ready: true,
      started: true,
      restartCount: 0,
      state: { running: { startedAt: new Date().toISOString() } },
    },
  ],
});

function callOf(request: http.IncomingMessage, text: string): KubernetesCall {
  const { pathname, searchParams } = new URL(request.url as string, 'http://fake');
  const { method = '', headers } = request;
  return { method, path: pathname, query: searchParams, headers, body: text === '' ? undefined : JSON.parse(text) };
}

function answer(response: http.ServerResponse, { status, body, headers = {} }: Answered): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

function failure(code: number, reason: string): Answered {
  const body = { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Failure', reason, code, message: reason };
  return { status: code, body };
}

/** Whether an object has the labels of a selector. Only `key=value` and `key`. */
function selects(selector: string, { metadata }: ApiObject): boolean {
  return selector
    .split(',')
    .filter(Boolean)
    .every((term) => {
      const [key, value] = term.split(/={1,2}/) as [string, string?];
      return value === undefined ? metadata.labels?.[key] !== undefined : metadata.labels?.[key] === value;
    });
}

/** RFC 7386. */
function merge(target: ApiObject, patch: ApiObject): ApiObject {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const merged = { ...target };
  for (const [key, value] of Object.entries(patch))
    if (value === null) delete merged[key];
    else merged[key] = merge(merged[key] ?? {}, value);
  return merged;
}

function openExec(socket: WebSocket, pod: string, { query }: KubernetesCall): KubernetesExec {
  const stdin = new PassThrough();
  socket.once('close', () => stdin.end());
  socket.on('message', (message) => {
    const [stream, data] = [(message as Buffer)[0], (message as Buffer).subarray(1)];
    if (stream === STREAM.stdin) stdin.write(data);
    if (stream === STREAM.close && data[0] === STREAM.stdin) stdin.end();
  });
  const send = (stream: number, data: string | Buffer) =>
    socket.readyState === socket.OPEN &&
    socket.send(Buffer.concat([Buffer.from([stream]), Buffer.from(data as string)]));
  const exec: KubernetesExec = {
    pod,
    command: query.getAll('command'),
    query,
    protocol: socket.protocol,
    socket,
    stdin,
    stdout: (data) => send(STREAM.stdout, data),
    stderr: (data) => send(STREAM.stderr, data),
    status: (status) => send(STREAM.error, JSON.stringify({ metadata: {}, ...status })),
    exit(code) {
      exec.status(
        code === 0
          ? { status: 'Success' }
          : {
              status: 'Failure',
              reason: 'NonZeroExitCode',
              message: `command terminated with non-zero exit code: exit status ${code}`,
              details: { causes: [{ reason: 'ExitCode', message: String(code) }] },
            },
      );
      socket.close(1000);
    },
  };
  return exec;
}

/** Runs a command for real, but not what names process 1: that is this machine's. */
export function runHere({ command, stdin, ...exec }: KubernetesExec): void {
  const [program, ...args] = command.map((it) => (it === '/proc/1/exe' ? 'true' : it)) as [string, ...string[]];
  const nobody = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : {};
  const child = spawn(program, args, { cwd: '/tmp', env: { PATH: '/usr/bin:/bin' }, ...nobody });
  stdin.pipe(child.stdin.on('error', () => {}));
  child.stdout.on('data', exec.stdout);
  child.stderr.on('data', exec.stderr);
  child.once('close', (code, signal) => exec.exit(code ?? 128 + constants.signals[signal as NodeJS.Signals]));
  exec.socket.once('close', () => child.kill('SIGKILL'));
}
