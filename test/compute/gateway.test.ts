import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after, type TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { openHouse } from '../helper/house.ts';
import { until } from './conformance.ts';
import { type Engine, IMAGE, openDocker } from './engines/docker.ts';

let engine: Engine | undefined;
after(() => engine?.stop());

/** A house with one running lease, and what plain OpenSSH needs to reach it. */
async function openSsh(t: TestContext) {
  if (!hasComponent(t, 'openssh-client', () => hasProgram('ssh'))) return undefined;
  engine ??= await openDocker(t, { shared: true });
  if (!engine) return undefined;
  const prices = { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005' };
  const provider_one = {
    backend: 'container',
    socket: engine.socket,
    image: IMAGE,
    prices,
    limits: { cpus: 2, memory_gib: 1, max_seconds: 3600 },
  };
  const house = await openHouse(t, { settings: { compute: { provider_one } } });
  const { token } = await house.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const spec = { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 };
  const { id } = (
    await house.ask('POST', '/v1/compute/create', { token, key: 'k', body: { provider: 'provider_one', spec } })
  ).body;
  const access = (await house.ask('POST', '/v1/compute/ssh', { token, body: { id } })).body;
  const directory = mkdtempSync(join(tmpdir(), 'purser-ssh-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const key = join(directory, 'key');
  writeFileSync(key, access.private_key, { mode: 0o600 });
  writeFileSync(join(directory, 'known'), `[${access.host}]:${access.port} ${access.host_key}\n`);
  const options = [
    '-F',
    'none',
    '-i',
    key,
    '-o',
    'IdentitiesOnly=yes',
    '-o',
    'BatchMode=yes',
    '-o',
    'StrictHostKeyChecking=yes',
    '-o',
    `UserKnownHostsFile=${join(directory, 'known')}`,
  ];
  const target = `${access.username}@${access.host}`;
  const run = (program: string, args: string[], input?: string) =>
    new Promise<{ code: number | null; stdout: string; stderr: string }>((resolve) => {
      const child = spawn(program, [...options, ...args], { stdio: ['pipe', 'pipe', 'pipe'] });
      const output = { stdout: '', stderr: '' };
      child.stdout.on('data', (chunk) => {
        output.stdout += chunk;
      });
      child.stderr.on('data', (chunk) => {
        output.stderr += chunk;
      });
      child.on('close', (code) => resolve({ code, ...output }));
      child.stdin.end(input ?? '');
      t.after(() => child.kill('SIGKILL'));
    });
  const ssh = (command: string[], input?: string, more: string[] = []) =>
    run('ssh', [...more, '-p', String(access.port), target, ...command], input);
  return { house, token, id, access, directory, target, run, ssh };
}

test('plain ssh runs a command in the lease: streams apart, input in, exit code out', async (t) => {
  const it = await openSsh(t);
  if (!it) return;
  const said = await it.ssh(['read line; echo "got $line"; echo err >&2; exit 42'], 'hello\n');
  assert.deepEqual(said, { code: 42, stdout: 'got hello\n', stderr: 'err\n' });
  const shell = await it.ssh([], 'echo in a shell; exit 3\n');
  assert.deepEqual([shell.code, shell.stdout], [3, 'in a shell\n']);
  const terminal = await it.ssh(['tty'], '', ['-tt']);
  assert.match(terminal.stdout, /\/dev\/pts\/\d/);
});

test('a megabyte goes through, in and out', async (t) => {
  const it = await openSsh(t);
  if (!it) return;
  const text = randomBytes(500_000).toString('hex');
  const said = await it.ssh(['cat'], text);
  assert.equal(said.stdout, text);
  assert.equal(said.code, 0);
});

test('a key opens its own resource only, forwarding is refused, and everything ends with the lease', async (t) => {
  const it = await openSsh(t);
  if (!it) return;
  const { house, token, id, access } = it;
  const other = (
    await house.ask('POST', '/v1/compute/create', {
      token,
      key: 'k2',
      body: { provider: 'provider_one', spec: { cpus: 0.5, memory_gib: 0.25, max_seconds: 600 } },
    })
  ).body;
  const wrong = await it.run('ssh', ['-p', String(access.port), `${other.id}@${access.host}`, 'true']);
  assert.equal(wrong.code, 255);
  assert.match(wrong.stderr, /Permission denied/);
  const forwarded = await it.ssh([], '', ['-W', '127.0.0.1:22']);
  assert.notEqual(forwarded.code, 0);

  const long = it.ssh(['sleep 3333']);
  await until('the session runs', async () => {
    const { stdout } = (await house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'ps' } })).body;
    return stdout.includes('sleep 3333');
  });
  await house.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.notEqual((await long).code, 0);
  assert.match((await it.ssh(['true'])).stderr, /Permission denied/);
});
