import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import ssh2 from 'ssh2';
import { sshKeyFromSeed } from '../../../src/base/ssh-key.ts';
import { resetConnection } from '../../../src/net/reset.ts';
import { hasComponent } from '../../helper/component.ts';
import { whenRead } from '../../helper/listener.ts';
import { until } from '../../helper/waiting.ts';

const { Server, utils } = ssh2;
const PAGE_COUNT_MAX = 25;
const DISK_GB_MIN = 8;
export const VAST_KEY = 'vast-account-canary-0123456789abcdef';

/** A call as it arrived. */
export type VastCall = {
  endpoint: VastEndpoint;
  method: string;
  path: string;
  query: URLSearchParams;
  headers: http.IncomingHttpHeaders;
  body: any;
};
export type VastEndpoint = 'search' | 'create' | 'show' | 'list' | 'attach' | 'destroy' | 'account';

/** The faults of this server. Counts decrease by one each time. */
export type VastFaults = {
  /** Answers of the next creates that do make the instance. */
  createThen: ('500' | 'error-with-contract' | 'reset' | 'hang' | 'garbage' | 'no-contract')[];
  /** Answers of the next creates, which make nothing. */
  createSays: [status: number, body: string][];
  /** Number of instances per create, all with the same label. */
  copies: number;
  /** What a create waits for. */
  createHeld: Promise<void> | undefined;
  /** Whether one offer can be rented twice. The second instance never starts. */
  sellTwice: boolean;
  /** Milliseconds until a new instance appears in lists. */
  listLagMilliseconds: number;
  /** Number of shows and destroys of a new instance that are answered with 404. */
  notYet: number;
  /** Number of calls of an endpoint that are answered with 429 in plain text, without Retry-After. */
  tooOften: Partial<Record<VastEndpoint, number>>;
  /** Minimum milliseconds between two calls of an endpoint. Closer calls get a 429. */
  spacing: Partial<Record<VastEndpoint, number>>;
  /** What a new instance reports forever instead of starting. */
  stuck: Record<string, unknown> | undefined;
  /** Delay of every answer, in milliseconds. */
  slow: number;
  /** Whether lists fail after their first page. */
  brokenPages: boolean;
  /** Whether lists omit instances and reveal it only in the total. */
  shortList: boolean;
  /** Answers of the next DELETE calls. */
  destroySays: [status: number, body: string][];
  /** The account's own data. */
  account: Record<string, unknown>;
};

type Offer = { id: number; dph: string; ends: number; rented: boolean; [more: string]: unknown };
type Instance = {
  id: number;
  offer: number;
  label: string;
  order: any;
  key: string;
  row: Record<string, unknown>;
  madeAt: number;
  notYet: number;
  keys: string[];
  port: number;
  /** Whether connections break after a command has run and before its result is sent. */
  cutsLines: boolean;
  end(): Promise<void>;
};

export type FakeVast = {
  url: string;
  calls: VastCall[];
  count(endpoint: VastEndpoint): number;
  faults: VastFaults;
  instances: ReadonlyMap<number, Instance>;
  /** Puts an offer on the market. `dph` is the JSON text of its price. */
  offer(over?: Partial<Offer>): number;
  /** Makes an instance directly, without an API call. */
  plant(label: string, row?: Record<string, unknown>): number;
  remove(id: number): Promise<void>;
  close(): Promise<void>;
};

const noFaults = (): VastFaults => ({
  createThen: [],
  createSays: [],
  createHeld: undefined,
  copies: 1,
  sellTwice: false,
  listLagMilliseconds: 0,
  notYet: 0,
  tooOften: {},
  spacing: {},
  stuck: undefined,
  slow: 0,
  brokenPages: false,
  shortList: false,
  destroySays: [],
  account: { id: 1, email: 'operator@example.test', credit: 12.5, balance: 0 },
});

/**
 * A server that speaks Vast's documented protocol, with every fault on request. Its instances are real: each is a process
 * tree in its own namespaces, with its own /tmp and /run, behind an SSH server on a free loopback port. Everything ends with
 * `close`.
 */
export async function openFakeVast(t: TestContext, { shared = false } = {}): Promise<FakeVast | undefined> {
  if (!hasComponent(t, 'namespaces')) return undefined;
  const offers = new Map<number, Offer>();
  const instances = new Map<number, Instance>();
  const lastCall = new Map<VastEndpoint, number>();
  let nextId = 5_000_000 + Math.floor(Math.random() * 1_000_000);

  function make(offerId: number, order: any, faults: VastFaults, loses = false): Instance {
    const id = ++nextId;
    const instance: Instance = {
      id,
      offer: offerId,
      label: String(order.label ?? ''),
      order,
      key: randomBytes(16).toString('hex'),
      madeAt: performance.now(),
      notYet: faults.notYet,
      keys: [],
      port: 0,
      cutsLines: false,
      row: {
        actual_status: null,
        intended_status: 'running',
        cur_state: 'stopped',
        next_state: 'running',
        status_msg: null,
      },
      end: async () => {},
    };
    instances.set(id, instance);
    const offer = offers.get(offerId);
    if (offer) offer.rented = true;
    Object.assign(instance.row, {
      start_date: Date.now() / 1000,
      end_date: offer?.ends ?? Date.now() / 1000 + 86_400,
      dph_total: 0.36,
      machine_id: 1,
      num_gpus: offer?.num_gpus ?? 0,
    });
    if (loses)
      Object.assign(instance.row, {
        cur_state: 'stopped',
        intended_status: 'stopped',
        next_state: 'stopped',
        actual_status: null,
      });
    else if (faults.stuck) Object.assign(instance.row, faults.stuck);
    else {
      instance.row.actual_status = 'loading';
      void boot(instance).then(() => {
        if (instances.has(id)) Object.assign(instance.row, { actual_status: 'running', cur_state: 'running' });
        else void instance.end();
      });
    }
    return instance;
  }

  async function remove(id: number): Promise<void> {
    const instance = instances.get(id);
    instances.delete(id);
    const offer = offers.get(instance?.offer ?? 0);
    if (offer) offer.rented = false;
    await instance?.end();
  }

  const rowOf = (it: Instance) => ({
    id: it.id,
    label: it.label,
    ssh_host: '127.0.0.1',
    ssh_port: it.port || null,
    public_ipaddr: '127.0.0.1',
    ports: it.port ? { '22/tcp': [{ HostIp: '0.0.0.0', HostPort: String(it.port) }] } : {},
    ...it.row,
  });

  async function answer(call: VastCall, response: http.ServerResponse): Promise<void> {
    const { endpoint, path } = call;
    const { faults } = fake;
    const say = (status: number, body: unknown) => {
      const text = typeof body === 'string' ? body : JSON.stringify(body);
      response.writeHead(status, { 'content-type': typeof body === 'string' ? 'text/plain' : 'application/json' });
      response.end(text);
    };
    if (faults.slow) await new Promise((resolve) => setTimeout(resolve, faults.slow));
    const before = lastCall.get(endpoint) ?? Number.NEGATIVE_INFINITY;
    const now = performance.now();
    lastCall.set(endpoint, now);
    const spacing = faults.spacing[endpoint] ?? 0;
    const left = faults.tooOften[endpoint] ?? 0;
    if (left > 0) faults.tooOften[endpoint] = left - 1;
    if (left > 0 || now - before < spacing) return say(429, 'API requests too frequent: endpoint threshold exceeded');

    const id = Number(/\/(\d+)\//.exec(path)?.[1]);
    const bearer = call.headers.authorization;
    const own = instances.get(id);
    const isOwn = own !== undefined && bearer === `Bearer ${own.key}` && endpoint === 'destroy';
    if (bearer !== `Bearer ${VAST_KEY}` && !isOwn)
      return say(401, { success: false, error: 'auth_error', msg: 'Invalid user key' });

    if (endpoint === 'account') return say(200, faults.account);
    if (endpoint === 'search') {
      const { id: wanted, duration, allocated_storage: disk, limit = 64 } = call.body;
      assert.ok(Number.isInteger(disk) && disk > 0, 'the price depends on the disk');
      const found = [...offers.values()]
        .filter((it) => !it.rented && (wanted === undefined || it.id === wanted.eq))
        .filter((it) => duration === undefined || it.ends - Date.now() / 1000 >= duration.gte)
        .sort((a, b) => Number(a.dph) - Number(b.dph))
        .slice(0, limit);
      const rows = found.map(({ id, dph, ends, rented: _, ...more }) =>
        JSON.stringify({
          id,
          ask_contract_id: id,
          end_date: ends,
          duration: ends - Date.now() / 1000,
          dph_total: '@',
          ...more,
        }).replace('"@"', dph),
      );
      response.writeHead(200, { 'content-type': 'application/json' });
      return void response.end(`{"offers":[${rows.join(',')}]}`);
    }

    if (endpoint === 'create') {
      await faults.createHeld;
      const says = faults.createSays.shift();
      if (says) return say(...says);
      const offer = offers.get(id);
      const { label, disk, onstart, runtype, image } = call.body;
      if (!offer || (offer.rented && !faults.sellTwice))
        return say(404, { success: false, error: 'no_such_ask', msg: `Instance type by id ${id} is not available.` });
      if (!(disk >= DISK_GB_MIN) || !image || !runtype || label.length > 256 || onstart.length > 4096)
        return say(400, { success: false, error: 'invalid_args', msg: 'bad' });
      const lost = offer.rented;
      const made = Array.from({ length: faults.copies }, () => make(id, call.body, faults, lost));
      const [{ id: contract, key }] = made as [Instance];
      const well = { success: true, new_contract: contract, instance_api_key: key };
      const then = faults.createThen.shift();
      if (then === 'reset') return void resetConnection(response.socket);
      if (then === 'hang') return;
      if (then === '500') return say(500, { success: false, error: 'server_error' });
      if (then === 'garbage') return say(200, '<html>gateway</html>');
      if (then === 'no-contract') return say(200, { success: true });
      if (then === 'error-with-contract') {
        Object.assign(made[0]?.row as object, {
          actual_status: 'stopped',
          cur_state: 'stopped',
          intended_status: 'stopped',
          next_state: 'stopped',
        });
        return say(400, { success: false, error: 'insufficient_bid', new_contract: contract });
      }
      return say(200, well);
    }

    if (endpoint === 'list') {
      const filters = JSON.parse(call.query.get('select_filters') ?? '{}');
      const limit = Number(call.query.get('limit') ?? PAGE_COUNT_MAX);
      if (!(limit > 0 && limit <= PAGE_COUNT_MAX))
        return say(400, { success: false, error: 'invalid_args', msg: 'limit' });
      if (faults.brokenPages && call.query.has('after_token')) return say(500, 'oops');
      const rows = [...instances.values()].filter((it) => now - it.madeAt >= faults.listLagMilliseconds);
      const found = rows.filter((it) => matches(it.label, filters.label));
      const start = Number(call.query.get('after_token') ?? 0);
      const page = found.slice(start, start + limit);
      const next = faults.brokenPages || start + limit < found.length ? String(start + limit) : null;
      const shown = faults.shortList ? page.slice(1) : page;
      return say(200, {
        success: true,
        instances: shown.map(rowOf),
        total_instances: rows.length,
        next_token: next,
        label_counts: {},
      });
    }

    if (own && own.notYet > 0 && (endpoint === 'show' || endpoint === 'destroy')) {
      own.notYet--;
      return say(404, { success: false, error: 'no_such_instance', msg: 'not yet' });
    }
    if (endpoint === 'show') return own ? say(200, { instances: rowOf(own) }) : say(200, { instances: null });
    if (endpoint === 'attach') {
      if (!own) return say(404, { success: false, error: 'no_such_instance' });
      own.keys.push(call.body.ssh_key);
      return say(200, { success: true });
    }
    const says = faults.destroySays.shift();
    if (says) return say(...says);
    if (!own) return say(404, { success: false, error: 'no_such_instance', msg: 'Instance not found.' });
    await remove(id);
    return say(200, { success: true });
  }

  const server = http.createServer(
    whenRead(async (request, response, sent) => {
      const { pathname, searchParams } = new URL(request.url ?? '/', 'http://fake');
      const endpoint = endpointOf(request.method ?? '', pathname);
      if (!endpoint || searchParams.has('api_key')) {
        response.writeHead(404);
        return void response.end('no such page');
      }
      const body = sent.length ? JSON.parse(sent.toString()) : undefined;
      const call = {
        endpoint,
        method: request.method ?? '',
        path: pathname,
        query: searchParams,
        headers: request.headers,
        body,
      };
      fake.calls.push(call);
      await answer(call, response);
    }),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const fake: FakeVast = {
    url,
    calls: [],
    count: (endpoint) => fake.calls.filter((it) => it.endpoint === endpoint).length,
    faults: noFaults(),
    instances,
    offer(over = {}) {
      const id = over.id ?? ++nextId;
      const ends = Date.now() / 1000 + 7 * 86_400;
      offers.set(id, {
        id,
        dph: '0.36',
        ends,
        rented: false,
        gpu_name: 'RTX 4090',
        gpu_ram: 24_564,
        num_gpus: 1,
        disk_space: 100,
        ...over,
      });
      return id;
    },
    plant: (label, row = {}) => {
      const instance = make(0, { label }, { ...noFaults(), stuck: { actual_status: 'loading', ...row } });
      return instance.id;
    },
    remove,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await Promise.all([...instances.keys()].map(remove));
    },
  };
  if (!shared) t.after(() => fake.close());
  return fake;
}

function endpointOf(method: string, path: string): VastEndpoint | undefined {
  const routes: [VastEndpoint, string, RegExp][] = [
    ['search', 'POST', /^\/api\/v0\/bundles\/$/],
    ['create', 'PUT', /^\/api\/v0\/asks\/\d+\/$/],
    ['show', 'GET', /^\/api\/v0\/instances\/\d+\/$/],
    ['list', 'GET', /^\/api\/v1\/instances\/$/],
    ['attach', 'POST', /^\/api\/v0\/instances\/\d+\/ssh\/$/],
    ['account', 'GET', /^\/api\/v0\/users\/current$/],
    ['destroy', 'DELETE', /^\/api\/v0\/instances\/\d+\/$/],
  ];
  return routes.find(([, verb, at]) => verb === method && at.test(path))?.[0];
}

function matches(label: string, filter: { eq?: string; in?: string[] } | undefined): boolean {
  if (!filter) return true;
  return filter.in ? filter.in.includes(label) : label === filter.eq;
}

/** Starts the machine: its namespaces, its start script, and its SSH server. */
async function boot(instance: Instance): Promise<void> {
  const env = {
    PATH: process.env.PATH,
    HOME: '/run/root',
    SHELL: '/bin/sh',
    CONTAINER_ID: String(instance.id),
    CONTAINER_API_KEY: instance.key,
  };
  const inside = `mount -t tmpfs none /tmp && mount -t tmpfs none /run && mkdir /run/root && exec sleep infinity`;
  const init = spawn('unshare', [...UNSHARE, '/bin/sh', '-c', inside], {
    stdio: 'ignore',
    env: { PATH: process.env.PATH },
  });
  const gone = new Promise<void>((resolve) => init.once('close', () => resolve()));
  const first = await until('the machine has its first process', async () => Number(childrenOf(init)) || undefined);
  const children = new Set<ChildProcess>();
  const enter = (argv: string[], terminal = false) => {
    const child = spawn('nsenter', ['-t', String(first), '-m', '-p', ...argv], {
      env: terminal ? { ...env, TERM: 'xterm' } : env,
      cwd: '/',
    });
    children.add(child);
    child.once('close', () => children.delete(child));
    child.stdin.on('error', () => {}); // The client has gone away.
    return child;
  };
  await until('the machine has its own directories', () => {
    const probe = enter(['test', '-d', '/run/root']);
    return new Promise<true | undefined>((resolve) => probe.once('close', (code) => resolve(code === 0 || undefined)));
  });

  const hostKey = sshKeyFromSeed(randomBytes(32), 'fake').privateKey;
  const server = new Server({ hostKeys: [hostKey] }, (client) => {
    client.on('error', () => {});
    client.on('authentication', (context) => {
      if (context.method !== 'publickey' || context.username !== 'root') return context.reject(['publickey']);
      const known = instance.keys
        .map((it) => utils.parseKey(it))
        .find((it) => !(it instanceof Error) && it.getPublicSSH().equals(context.key.data));
      const good =
        known &&
        !(known instanceof Error) &&
        (!context.signature || known.verify(context.blob as Buffer, context.signature, context.hashAlgo) === true);
      if (good) context.accept();
      else context.reject(['publickey']);
    });
    client.on('session', (accept) => {
      const session = accept();
      let terminal = false;
      session.on('pty', (ok) => {
        terminal = true;
        ok?.();
      });
      session.on('window-change', (ok) => ok?.());
      session.on('exec', (ok, _no, { command }) => {
        const channel = ok();
        const child = enter(['/bin/sh', '-c', command], terminal);
        channel.pipe(child.stdin);
        child.stdout.pipe(channel, { end: false });
        child.stderr.pipe(channel.stderr, { end: false });
        child.once('exit', (code, signal) => {
          if (instance.cutsLines) return client.end(); // The command ran, but its result is not sent.
          if (code !== null) channel.exit(code);
          else channel.exit((signal ?? 'SIGKILL').slice(3), false, '');
        });
        child.once('close', () => channel.end());
        channel.on('error', () => {});
      });
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  instance.port = (server.address() as AddressInfo).port;
  const connections = new Set<{ end(): void }>();
  server.on('connection', (client) => {
    connections.add(client);
    client.once('close', () => connections.delete(client));
  });
  instance.end = async () => {
    for (const it of connections) it.end();
    server.close();
    if (init.pid && init.exitCode === null && init.signalCode === null) process.kill(init.pid, 'SIGKILL'); // Everything inside ends with it.
    await gone;
    for (const it of children) it.kill('SIGKILL');
  };
  if (instance.order.onstart) {
    const start = enter(['/bin/sh', '-c', instance.order.onstart]);
    start.stdin.end();
    await new Promise((resolve) => start.once('exit', resolve));
  }
}

const UNSHARE = ['--mount', '--pid', '--fork', '--kill-child', '--mount-proc'];

function childrenOf({ pid }: ChildProcess): string {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  } catch {
    return '';
  }
}
