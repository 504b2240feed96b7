import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext } from 'node:test';
import ssh2 from 'ssh2';
import { hostKey } from '../../src/access/ssh-keys.ts';
import { files } from '../../src/files/data-directory.ts';
import { type GatewayLimits, openSshServer } from '../../src/ssh/server.ts';
import { type Engine, IMAGE, openDocker } from '../compute/engines/docker.ts';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { openUpstream } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

let engine: Engine | undefined;
type Owner = Awaited<ReturnType<typeof openLandlord>>;
let landlord: Owner | undefined;
after(async () => {
  await landlord?.stop();
  await engine?.stop();
});

const SPEC = { cpus: 1, memory_gib: 0.25, max_seconds: 600 };

export type Ran = { code: number | null; stdout: string; stderr: string };
export type Running = Promise<Ran> & { child: ChildProcess };

/** A server that sells leases, whichever way it runs. */
export type Landlord = Pick<TestServer, 'ask' | 'openWallet'> & { readonly log: readonly string[] };

/** `dist/purser` with an upstream. `stop` has to be called in the end: it has to stop well, and its books have to agree. */
async function openLandlord(compute: object, executable: string) {
  const undo: (() => unknown)[] = [];
  const later = { after: (done?: unknown) => void undo.unshift(done as () => unknown) };
  const upstream = await openUpstream(later);
  const settings = { listen: '127.0.0.1:0', ssh: { listen: '127.0.0.1:0' }, compute };
  const purser = installation(later, { settings, upstream, command: [executable] });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '100000c');
  const { key } = await purser.json('key', 'create', '--account', accounts[0].id, '--name', 'test');
  return {
    purser,
    server,
    upstream,
    ask: server.ask,
    get log() {
      return server.output.stderr.split('\n');
    },
    async openWallet(body: object = {}) {
      const wallet = { name: 'test', budget_cents: 500, expires_in_seconds: 7200, ...body };
      const answer = await server.ask('POST', '/v1/wallets', { token: key, key: randomUUID(), body: wallet });
      assert.equal(answer.status, 201, answer.text);
      return { id: answer.body.id as string, token: answer.body.agent_token as string };
    },
    async stop() {
      try {
        assert.deepEqual(await server.stop(), { code: 0, signal: null }, server.output.stderr.slice(-2000));
        assert((await purser.json('ledger', 'verify')).ok);
      } finally {
        for (const it of undo) await it();
      }
    },
  };
}

/** What is rented out, on one engine for the whole file. Undefined, and the test skipped, where it cannot be had. */
async function openCompute(t: TestContext) {
  if (!hasComponent(t, 'openssh-client')) return undefined;
  engine ??= await openDocker(t, { shared: true });
  if (!engine) return undefined;
  const prices = { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' };
  // On a busy machine the leases of tests before are still being stopped.
  const limits = { cpus: 16, memory_gib: 8, max_seconds: 3600 };
  return { provider_one: { backend: 'container', socket: engine.socket, image: IMAGE, prices, limits } };
}

const ORDER = { provider: 'provider_one', spec: SPEC };

/**
 * A running lease of `dist/purser`, and what plain OpenSSH needs to reach it. Unless it is another build of it, one server
 * for a whole file.
 */
export async function openLease(t: TestContext, executable = EXECUTABLE) {
  const compute = await openCompute(t);
  if (!compute) return undefined;
  if (executable === EXECUTABLE) landlord ??= await openLandlord(compute, EXECUTABLE);
  const own = executable === EXECUTABLE ? (landlord as Owner) : await openLandlord(compute, executable);
  const { server, purser, upstream, openWallet } = own;
  const lease = await reachLease(t, own, await openWallet(), ORDER);
  t.after(lease.stop);
  if (own !== landlord) t.after(own.stop);
  /** Bytes of memory that the server has resident now. */
  const resident = () => {
    const status = readFileSync(`/proc/${server.pid}/status`, 'utf8');
    return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1]) * 1024;
  };
  return { ...lease, server, purser, upstream, openWallet, resident };
}

/** The same of a server in this process, for what needs its clock or its limits in the test's hand. */
export async function openLeaseInside(t: TestContext) {
  const compute = await openCompute(t);
  if (!compute) return undefined;
  const purser = await openTestServer(t, { settings: { compute } });
  const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const lease = await reachLease(t, purser, wallet, ORDER);
  const pid = Number(readFileSync(join((engine as Engine).directory, 'pid'), 'utf8'));
  const signal = (name: 'SIGSTOP' | 'SIGCONT') => process.kill(pid, name);
  const { docker } = engine as Engine;
  return { ...lease, engine: { docker, pause: () => signal('SIGSTOP'), proceed: () => signal('SIGCONT') } };
}

/** Leases a machine, and answers what reaches it. */
export async function reachLease<L extends Landlord>(
  t: TestContext,
  purser: L,
  { token }: { token: string },
  order: object,
) {
  const created = await purser.ask('POST', '/v1/compute/create', { token, key: 'k', body: order });
  assert.equal(created.status, 200, created.text);
  const { id } = created.body;
  const access = (await purser.ask('POST', '/v1/compute/ssh', { token, body: { id } })).body;
  const directory = mkdtempSync(join(tmpdir(), 'purser-ssh-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const at = (name: string) => join(directory, name);
  writeFileSync(at('key'), access.private_key, { mode: 0o600 });
  /** What is known of the host key at this port. */
  const know = (port: number, key = access.host_key) =>
    writeFileSync(at('known'), `[${access.host}]:${port} ${key}\n`, { flag: 'a' });
  know(access.port);

  const settings = {
    IdentityFile: at('key'),
    IdentitiesOnly: 'yes',
    BatchMode: 'yes',
    StrictHostKeyChecking: 'yes',
    UserKnownHostsFile: at('known'),
    Port: access.port,
  };
  const options = ['-F', 'none', ...Object.entries(settings).flatMap(([name, value]) => ['-o', `${name}=${value}`])];

  /** Runs one of OpenSSH's clients. `-oName=value` wins over what is set here; without input it waits for some. */
  function run(program: string, args: string[], input: string | Buffer | null = '', env = {}): Running {
    const child = spawn(program, [...args.filter((it) => it.startsWith('-o')), ...options, ...args], {
      stdio: ['pipe', 'pipe', 'pipe'],
      cwd: directory,
      env: { ...process.env, ...env },
    });
    t.after(() => child.kill('SIGKILL'));
    child.stdin.on('error', () => {}); // It need not read what it is given.
    const output = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const)
      child[name].setEncoding('latin1').on('data', (text) => {
        output[name] += text;
      });
    if (input !== null) child.stdin.end(input);
    const ended = new Promise<Ran>((resolve) => child.on('close', (code) => resolve({ code, ...output })));
    return Object.assign(ended, { child });
  }
  const target = `${access.username}@${access.host}`;
  const ssh = (args: string[], command?: string, input?: string | Buffer | null) =>
    run('ssh', [...args, target, ...(command === undefined ? [] : [command])], input);
  /** Runs what has to succeed. */
  async function good(program: string, ...args: string[]): Promise<Ran> {
    const ran = await run(program, args);
    // Why a session was lost is told to the operator alone.
    const warnings = purser.log.filter((it) => /"level":[45]0/.test(it)).slice(-5);
    assert.equal(ran.code, 0, [`${program} ${args.join(' ')}: ${ran.stderr}`, ...warnings].join('\n'));
    return ran;
  }
  /** What a command says inside, by another road than the gateway. */
  async function inside(command: string): Promise<string> {
    const { body, status } = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal(body.exit_code, 0, `${command}: ${body.stderr}`);
    return body.stdout;
  }
  /** Waits until a process with these words runs inside, or none does. */
  const runs = (words: string, wanted: boolean) =>
    until(`${words} ${wanted ? 'runs' : 'does not run'} inside`, async () => {
      const list = await inside('ps -o args');
      return list.includes(words) === wanted || (wanted ? false : undefined);
    });
  /** Gives the room of the lease back: a machine with two processors has room for two of these. */
  const stop = () =>
    until('the lease is stopped', async () => {
      const { body } = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
      return body.status === 'stopped';
    });
  /** A batch of sftp. */
  async function sftp(lines: string[], ...args: string[]): Promise<Ran> {
    return run('sftp', ['-b', '-', ...args, target], `${lines.join('\n')}\n`);
  }
  return { landlord: purser, token, id, access, directory, at, know, target, run, ssh, good, inside, runs, stop, sftp };
}
export type Lease = NonNullable<Awaited<ReturnType<typeof openLease>>>;
export type LeaseInside = NonNullable<Awaited<ReturnType<typeof openLeaseInside>>>;
/** What both have. */
export type AnyLease = Pick<Lease, keyof Lease & keyof LeaseInside>;

/** Another gateway of the same server, with limits that a test can wait for. Answers its port. */
export async function openLimited(t: TestContext, it: LeaseInside, limits: Partial<GatewayLimits>): Promise<number> {
  const { privateKey } = hostKey(files(it.landlord.directory).sshHostKey);
  const gateway = await openSshServer(it.landlord.app, { host: '127.0.0.1', port: 0 }, privateKey, limits);
  t.after(() => gateway.close());
  it.know(gateway.address.port);
  return gateway.address.port;
}

/** A client that does what OpenSSH's never would. */
export async function openClient(t: TestContext, { access }: Pick<Lease, 'access'>): Promise<ssh2.Client> {
  const client = new ssh2.Client();
  t.after(() => client.destroy());
  client.on('error', () => {});
  const { host, port, username, private_key: privateKey } = access;
  const ready = new Promise<void>((resolve) => client.once('ready', resolve));
  client.connect({ host, port, username, privateKey });
  await ready;
  return client;
}
