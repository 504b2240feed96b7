import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../../test/helper/free-port.ts';
import { sleep } from '../process.ts';
import { type Installation, install, metricOf, openWallets, startPurser } from '../purser.ts';
import type { Machines, Subject } from './subjects.ts';

const POLL_MILLISECONDS = 50;
const BUDGET_CENTS = 100_000;

/** The folder from which E2B's SDK is installed by test/setup. */
const SDK = join(import.meta.dirname, '../../test/e2b/sdk');
const TAR = 'application/x-tar';
const TEMPLATE = 'bench';
type Sandbox = { commands: { run(command: string): Promise<unknown> }; kill(): Promise<unknown> };

/** A Purser that rents machines of one backend. */
export type Rented = Required<Machines> & {
  /** Makes a machine, of another size than the subject's if one is given. */
  create(spec?: object): Promise<string>;
  /** Returns the arguments of OpenSSH's clients for a lease, and its address there. */
  access(id: string): Promise<{ options: string[]; port: number; address: string }>;
  /** Unpacks an archive in a directory. */
  uploadTree(id: string, path: string, archive: Buffer): Promise<unknown>;
  downloadTree(id: string, path: string): Promise<Buffer>;
  openSandbox(): Promise<Sandbox | undefined>;
};

/** Starts Purser with this backend, and returns it as something that rents machines over HTTP. */
export async function openPurser(
  { slot, settings, spec, warm }: Subject,
  stack: AsyncDisposableStack,
): Promise<Rented> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-bench-'));
  stack.defer(() => rmSync(directory, { recursive: true, force: true }));
  const installation = await install(join(directory, 'data'), await freePort());
  const templates = { [TEMPLATE]: { provider: slot, spec } };
  configure(installation, {
    compute: { [slot]: settings, templates },
    ssh: { listen: `127.0.0.1:${await freePort()}` },
  });
  const purser = await startPurser(installation);
  stack.defer(() => purser.stop());
  const ready = /^purser_warm_machines\{.*\} ([1-9]\d*)$/m;
  while (warm && (await metricOf(installation, ready)) !== warm.count) await sleep(POLL_MILLISECONDS);
  const [token] = (await openWallets(installation, 1, BUDGET_CENTS)) as [string];

  async function ask<T>(name: string, body: object): Promise<T> {
    const response = await fetch(`http://127.0.0.1:${installation.port}/v1/compute/${name}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        ...(name === 'create' ? { 'idempotency-key': randomUUID() } : {}),
      },
      body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(`${name}: ${response.status} ${JSON.stringify(answer)}`);
    return answer as T;
  }
  type Lease = { id: string; status: string };
  async function reaches(lease: Lease, status: string): Promise<void> {
    for (let it = lease; it.status !== status; it = await ask<Lease>('status', { id: lease.id })) {
      assert.ok(!['failed', 'unknown'].includes(it.status), JSON.stringify(it));
      await sleep(POLL_MILLISECONDS);
    }
  }
  async function access(id: string): ReturnType<Rented['access']> {
    const { port, ...at } = await ask<{ host: string; port: number; username: string; private_key: string }>('ssh', {
      id,
    });
    const key = join(directory, `${id}.key`);
    writeFileSync(key, at.private_key, { mode: 0o600 });
    const options = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null'].flatMap((it) => ['-o', it]);
    return { options: ['-F', 'none', '-q', '-i', key, ...options], port, address: `${at.username}@${at.host}` };
  }
  /** Makes a call whose request or answer is an archive. */
  async function transfer(name: string, headers: Record<string, string>, body: Buffer | string): Promise<Buffer> {
    const url = `http://127.0.0.1:${installation.port}/v1/compute/${name}`;
    const response = await fetch(url, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, ...headers },
      body,
    });
    const answer = Buffer.from(await response.arrayBuffer());
    if (!response.ok) throw new Error(`${name}: ${response.status} ${answer}`);
    return answer;
  }
  return {
    async create(size: object = spec) {
      const lease = await ask<Lease>('create', { provider: slot, spec: { ...size, max_seconds: 3600 } });
      await reaches(lease, 'running');
      return lease.id;
    },
    async exec(id) {
      const { exit_code: code } = await ask<{ exit_code: number }>('exec', { id, command: 'true' });
      assert.equal(code, 0);
    },
    upload: (id, content) => ask('upload', { id, path: 'file', content_base64: content.toString('base64') }),
    access,
    async ssh(id) {
      const { options, port, address } = await access(id);
      const child = spawn('ssh', [...options, '-p', String(port), address, 'true'], { stdio: 'ignore' });
      const [code] = await once(child, 'exit');
      assert.equal(code, 0);
    },
    uploadTree: (id, path, archive) =>
      transfer(`upload?${new URLSearchParams({ id, path })}`, { 'content-type': TAR }, archive),
    downloadTree: (id, path) =>
      transfer('download', { 'content-type': 'application/json', accept: TAR }, JSON.stringify({ id, path })),
    stop: async (id) => reaches(await ask<Lease>('stop', { id }), 'stopped'),
    async openSandbox() {
      if (!existsSync(join(SDK, 'node_modules'))) return undefined;
      const { Sandbox } = createRequire(join(SDK, 'package.json'))('e2b');
      const api = `http://127.0.0.1:${installation.port}/v1/e2b`;
      return Sandbox.create(TEMPLATE, { apiKey: token, apiUrl: api, sandboxUrl: `${api}/envd`, timeoutMs: 3_600_000 });
    },
  };
}

function configure({ directory }: Installation, settings: object): void {
  const file = join(directory, 'purser.yaml');
  const text = JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...settings }, (_, it) =>
    typeof it === 'bigint' ? String(it) : it,
  );
  writeFileSync(file, text);
}
