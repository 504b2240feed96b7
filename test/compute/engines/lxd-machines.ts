import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { connect } from 'node:net';
import { join } from 'node:path';
import { hasComponent } from '../../helper/component.ts';
import { whenRead } from '../../helper/listener.ts';
import { hasEnded } from '../../helper/waiting.ts';
import { LXD_IMAGE, type Lxd } from './lxd.ts';

/**
 * Virtual machines for a real LXD on a machine that can run none: Debian's LXD insists on a kernel with vhost_vsock. This stands
 * before LXD, and speaks its API for virtual machines (its REST API; `instance/drivers/driver_qemu.go` of 5.0). What is inside one is
 * a container of LXD. What is outside is a real QEMU, which has the arguments of `raw.qemu`, no disk, and processors that never start.
 * All else, keepers among it, is LXD's own.
 */
export type LxdMachines = {
  socket: string;
  /** Returns the QEMU of an instance. */
  qemuOf(ref: string): ChildProcess;
  /** Starts the QEMU of an instance again, as LXD does when the guest restarts. */
  startAgain(ref: string): Promise<void>;
  /** The questions for a state that are answered before the agent inside runs. */
  agentComesAfter: number;
  /** Arguments that this QEMU does not know, as one that was built without a device. */
  qemuLacks: string;
  stop(): void;
};

export const MACHINE_IMAGE = 'machine';
const QEMU_KEY = 'user.test.qemu';
const QEMU = ['-S', '-machine', 'q35', '-accel', 'kvm', '-accel', 'tcg', '-cpu', 'qemu64', '-m', '16'];
/** LXD sets these as well. */
const AS_LXD = [
  '-qmp',
  'stdio',
  '-nodefaults',
  '-nographic',
  '-no-user-config',
  '-sandbox',
  'on,obsolete=deny,spawn=allow',
];
/** Settings that LXD refuses for a virtual machine (shared/instance.go, InstanceConfigKeysContainer). */
const OF_CONTAINERS =
  /^(limits\.(cpu\.allowance|memory\.swap|processes)|raw\.lxc|security\.(idmap|nesting|privileged))/;
const OF_MACHINES = ['raw.qemu', 'security.secureboot'];
const INIT = 'lxc.init.cmd = /bin/sleep 1000000\nlxc.hook.mount = /bin/sh -c "ip link set lo up || :"';

type Instance = { name: string; type: string; config?: Record<string, string> | null };
type Order = Instance & { config: Record<string, string>; source: { alias?: string } };
type Answer = { status: number; headers: http.IncomingHttpHeaders; body: Buffer };

const refusal = (status: number, error: string): Answer => ({
  status,
  headers: { 'content-type': 'application/json' },
  body: Buffer.from(JSON.stringify({ type: 'error', error, error_code: status })),
});

/** Opens one before `lxd`, whose socket is beside LXD's own. Without QEMU, returns undefined and skips the test. */
export async function openLxdMachines(
  t: Parameters<typeof hasComponent>[0],
  lxd: Lxd,
): Promise<LxdMachines | undefined> {
  if (!hasComponent(t, 'qemu-system-x86_64')) return undefined;
  const far = join(lxd.data, 'unix.socket');
  const near = join(lxd.directory, 'machines.sock');
  const running = new Map<string, ChildProcess>();
  const asked = new Map<string, number>();
  const argumentsOf = new Map<string, string>();

  async function startQemu(ref: string): Promise<string | undefined> {
    const wanted = `${argumentsOf.get(ref)} ${machines.qemuLacks}`.trim().split(' ');
    const child = spawn('qemu-system-x86_64', [...QEMU, ...AS_LXD, ...wanted], {
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    running.set(ref, child);
    let said = '';
    child.stderr.on('data', (chunk: Buffer) => {
      said += chunk;
    });
    // LXD stops an instance whose QEMU has gone.
    child.once('exit', () => void halt(ref).catch(() => {}));
    // Its monitor takes a command once all devices are there.
    child.stdin.on('error', () => {}).write('{"execute":"qmp_capabilities"}\n');
    const answered = new Promise<void>((resolve) =>
      child.stdout.on('data', (chunk: Buffer) => chunk.includes('"return"') && resolve()),
    );
    await Promise.race([answered, once(child, 'close')]);
    return hasEnded(child) ? `Failed to run: qemu-system-x86_64: ${said}` : undefined;
  }

  const halt = (ref: string) =>
    lxd.api.run('PUT', `/1.0/instances/${ref}/state`, { action: 'stop', force: true, timeout: 10 }, 30_000);

  /** Returns the order of the container in the place of a virtual machine, or what LXD says against that one. */
  function translate(order: Order): Order | Answer {
    const odd = Object.keys(order.config).find((key) => OF_CONTAINERS.test(key));
    if (odd !== undefined) return refusal(400, `Invalid config: Unknown configuration key: ${odd}`);
    const config = Object.fromEntries(Object.entries(order.config).filter(([key]) => !OF_MACHINES.includes(key)));
    const qemu = order.config['raw.qemu'] ?? '';
    argumentsOf.set(order.name, qemu);
    asked.set(order.name, 0);
    const source = { ...order.source, alias: LXD_IMAGE };
    return { ...order, type: 'container', source, config: { ...config, [QEMU_KEY]: qemu, 'raw.lxc': INIT } };
  }

  async function answer(request: http.IncomingMessage, body: Buffer): Promise<Answer> {
    const { method = '', url = '' } = request;
    const path = url.replace(/\?.*/, '');
    const [, ref = ''] = /^\/1\.0\/instances\/([^/]+)\/state$/.exec(path) ?? [];
    const isJson = request.headers['content-type'] === 'application/json';
    const said = isJson ? JSON.parse(body.toString()) : undefined;
    let sent = body;
    if (method === 'POST' && path === '/1.0/instances' && said.type === 'virtual-machine') {
      const translated = translate(said);
      if ('status' in translated) return translated;
      sent = Buffer.from(JSON.stringify(translated));
    }
    if (method === 'PUT' && argumentsOf.has(ref) && said.action === 'start') {
      const fault = await startQemu(ref);
      if (fault !== undefined) return refusal(400, fault);
    }
    if (method === 'PUT' && argumentsOf.has(ref) && said.action === 'stop') running.get(ref)?.kill('SIGKILL');
    const to = url.replace(`/images/aliases/${MACHINE_IMAGE}`, `/images/aliases/${LXD_IMAGE}`);
    const got = await forward(far, request, to, sent);
    if (!/json/.test(got.headers['content-type'] ?? '')) return got;
    const json = JSON.parse(got.body.toString());
    if (path === '/1.0') json.metadata.environment.driver += ' | qemu';
    if (to !== url) json.metadata.type = 'virtual-machine';
    if (method === 'GET' && argumentsOf.has(ref)) {
      const count = (asked.get(ref) ?? 0) + 1;
      asked.set(ref, count);
      if (count <= machines.agentComesAfter) json.metadata.processes = -1;
    }
    for (const it of [json.metadata].flat() as (Instance | null)[])
      if (it?.config?.[QEMU_KEY] !== undefined) it.type = 'virtual-machine';
    return { ...got, body: Buffer.from(JSON.stringify(json)) };
  }

  const server = http.createServer(
    whenRead(async (request, response, body) => {
      const { status, headers, body: said } = await answer(request, body).catch(() => refusal(503, 'LXD is away'));
      const { 'transfer-encoding': _, ...kept } = headers;
      response.writeHead(status, { ...kept, 'content-length': said.length }).end(said);
    }),
  );
  server.on('upgrade', (request, stream, head) => {
    const out = connect(far);
    const lines = Object.entries(request.headers).map(([name, value]) => `${name}: ${value}`);
    out.write(`${request.method} ${request.url} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`);
    out.write(head);
    for (const [one, other] of [
      [stream, out],
      [out, stream],
    ] as const)
      one.on('error', () => other.destroy()).once('close', () => other.destroy());
    stream.pipe(out).pipe(stream);
  });
  await once(server.listen(near), 'listening');

  const machines: LxdMachines = {
    socket: `unix://${near}`,
    agentComesAfter: 1,
    qemuLacks: '',
    qemuOf: (ref) => running.get(ref) as ChildProcess,
    async startAgain(ref) {
      const fault = await startQemu(ref);
      if (fault !== undefined) throw new Error(fault);
    },
    stop() {
      for (const it of running.values()) it.kill('SIGKILL');
      server.closeAllConnections();
      server.close();
    },
  };
  return machines;
}

async function forward(far: string, request: http.IncomingMessage, path: string, body: Buffer): Promise<Answer> {
  const headers = { ...request.headers, 'content-length': String(body.length) };
  const out = http.request({ socketPath: far, method: request.method, path, headers, agent: false }).end(body);
  const [response] = (await once(out, 'response')) as [http.IncomingMessage];
  return {
    status: response.statusCode ?? 500,
    headers: response.headers,
    body: Buffer.concat(await response.toArray()),
  };
}
