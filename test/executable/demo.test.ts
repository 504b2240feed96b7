import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmodSync, mkdtempSync, readdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { Agent } from 'undici';
import { until } from '../compute/conformance.ts';
import { leftOf } from '../demo/left.ts';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { ask, EXECUTABLE, installation, within } from '../helper/executable.ts';

type DemoOptions = { command?: readonly string[]; env?: Record<string, string> };

/** The demo in a place of its own: all that it makes is made there. */
function place(t: TestContext, { command, env }: DemoOptions = {}) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-executable-demo-'));
  chmodSync(directory, 0o777); // Whoever runs it.
  const purser = installation(t, {
    directory,
    settings: null,
    globals: [],
    env: { TMPDIR: directory, ...env },
    ...(command ? { command } : {}),
  });
  function start(...args: string[]) {
    const { child, output, ended } = purser.launch('demo', ...args);
    /** Resolves as soon as it has printed this. */
    const printed = (text: string | RegExp) =>
      within(
        new Promise<string>((resolve, reject) => {
          const check = () => output.stdout.match(text) && resolve(output.stdout);
          child.stdout?.on('data', check);
          check();
          void ended.then(() => reject(new Error(`the demo ended without ${text}: ${output.stdout}${output.stderr}`)));
        }),
        () => `the demo prints ${text}: ${output.stdout}${output.stderr}`,
      );
    return { child, output, ended: within(ended, () => `the demo ends: ${output.stdout}`), printed };
  }
  return { directory, purser, start };
}

const RENTED = [
  /✓ status: running\n {2}✓ charged USD: 0\.014166667\n {2}✓ seconds until its deadline: 600\n/,
  /✓ standard output: 42\n/,
  /✓ it reads the same: true\n/,
  /✓ refused with: extension_not_supported\n/,
  /✓ charged USD in all: 0\.09\n {2}✓ seconds its deadline moved: 300\n/,
  /✓ because: wallet_closed\n/,
  /✓ faults in the books: 0\n\nEvery figure is what arithmetic says\.\n$/,
];

test('the demo shows a life with leases, counts every figure, and leaves neither a process nor a file', async (t) => {
  const { directory, purser } = place(t, {
    env: { PURSER_LISTEN: '192.0.2.1:1', PURSER_PUBLIC_URL: 'http://a.example' },
  });
  const { code, stdout, stderr } = await purser.cli('demo', '--once');
  assert.deepEqual([code, stderr], [0, '']);
  for (const it of RENTED) assert.match(stdout, it);
  assert.doesNotMatch(stdout, /✗/);
  if (hasComponent(t, 'openssh-client', () => hasProgram('ssh')))
    assert.match(stdout, /✓ it printed: reached, in home\n/);
  assert.deepEqual(leftOf(directory), []);
  assert.deepEqual(JSON.parse((await purser.cli('--json', 'demo', '--once')).stdout), { ok: true, wrong: 0 });
  assert.deepEqual(leftOf(directory), []);
});

test('the demo needs no privilege', async (t) => {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0)) return;
  if (!hasComponent(t, 'setpriv', () => hasProgram('setpriv'))) return;
  for (const user of ['nobody', '54321']) {
    const command = ['setpriv', `--reuid=${user}`, '--regid=nogroup', '--clear-groups', EXECUTABLE];
    const { directory, purser } = place(t, { command });
    const { code, stdout, stderr } = await purser.cli('demo', '--once');
    assert.deepEqual([code, stderr], [0, ''], stdout);
    assert.match(stdout, /✓ it reads the same: true\n/);
    assert.deepEqual(leftOf(directory), []);
  }
});

for (const [what, signal, moment] of [
  ['Ctrl-C', 'SIGINT', 'Purser is serving'],
  ['Ctrl-C', 'SIGINT', 'It runs a command'],
  ['Ctrl-C', 'SIGINT', 'Plain ssh'],
  ['its terminal’s end', 'SIGHUP', 'It runs a command'],
] as const)
  test(`${what} after ${JSON.stringify(moment)} leaves neither a process nor a file, and is no success`, async (t) => {
    const { directory, start } = place(t);
    const demo = start('--once');
    await demo.printed(moment);
    demo.child.kill(signal);
    const ended = await demo.ended;
    assert.deepEqual([ended.signal, demo.output.stderr], [null, '']);
    // Where it had come to its end before it heard of it, every figure was looked at.
    assert.equal(ended.code, /^Every figure is what/m.test(demo.output.stdout) ? 0 : 1, demo.output.stdout);
    assert.deepEqual(leftOf(directory), []);
  });

/** A demo that keeps serving, and its wallet. */
async function startServing(t: TestContext) {
  const canary = `canary-${randomBytes(8).toString('hex')}`;
  const { directory, start } = place(t, { env: { PURSER_MASTER_KEY: canary, CANARY: canary } });
  const demo = start();
  const said = await demo.printed(/wallet token {2}\S+\n[\s\S]*OpenAI SDK/);
  const [, url] = /base URL\s+(\S+)/.exec(said) as unknown as [string, string];
  const [, token] = /wallet token\s+(\S+)/.exec(said) as unknown as [string, string];
  const agent = new Agent();
  t.after(() => agent.destroy());
  const compute = async (what: string, body: object) =>
    (await ask(agent, url, 'POST', `/v1/compute/${what}`, { token, key: randomBytes(8).toString('hex'), body })).body;
  /** A lease with processes in it that try to stay. */
  async function rent(provider: string, spec: object): Promise<string> {
    const { id } = await compute('create', { provider, spec: { ...spec, max_seconds: 600 } });
    const command = 'setsid sleep 5151 >/dev/null 2>&1 & nohup sleep 5151 >/dev/null 2>&1 & true';
    assert.equal((await compute('exec', { id, command })).exit_code, 0);
    return id;
  }
  return { directory, demo, said, canary, compute, rent };
}

test('a demo that goes on serving rents out all three slots, and takes them with it when it ends', async (t) => {
  const { directory, demo, canary, compute, rent } = await startServing(t);
  const one = await rent('provider_one', { cpus: 1, memory_gib: 1 });
  await rent('provider_two', { chip: 'demo-chip' });
  await rent('provider_three', { offer_id: 'small', disk_gb: 1 });
  const list = 'env; ls -l /proc/self/fd /proc/$PPID/fd';
  const { stdout } = await compute('exec', { id: one, command: list });
  assert.match(stdout, /^HOME=/m);
  assert.ok(!stdout.includes(canary), 'nothing of the environment of Purser');
  const files = [...stdout.matchAll(/-> (\/.*)/g)].map(([, name]) => name as string);
  assert.deepEqual(
    files.filter((it) => it.startsWith(directory)),
    [],
    'no file of Purser is open in it',
  );
  demo.child.kill('SIGTERM');
  assert.deepEqual(await demo.ended, { code: 0, signal: null });
  assert.equal(demo.output.stderr, '');
  assert.deepEqual(leftOf(directory), []);
});

test('the leases of a demo that was killed end with it', async (t) => {
  const { directory, demo, rent } = await startServing(t);
  await rent('provider_two', { chip: 'demo-chip' });
  await rent('provider_three', { offer_id: 'small', disk_gb: 1 });
  demo.child.kill('SIGKILL');
  await demo.ended;
  const [data = ''] = readdirSync(directory);
  await until('no process of it is left', async () => leftOf(directory).length === 1);
  assert.deepEqual(readdirSync(join(directory, data, 'leases')), []);
});

test('what the demo prints for renting by curl can be pasted into a shell', async (t) => {
  if (!hasComponent(t, 'curl', () => hasProgram('curl'))) return;
  const { said } = await startServing(t);
  const [pasted] = /^ {2}rent\(\)[\s\S]*?(?=\n\n)/m.exec(said) as RegExpExecArray;
  const lines = pasted.split('\n');
  const create = lines.findIndex((line) => line.includes('rent create'));
  const shell = (...more: string[]) =>
    JSON.parse(execFileSync('sh', ['-c', [...lines.slice(0, create), ...more].join('\n')], { encoding: 'utf8' }));
  const made = shell(lines[create] as string);
  assert.equal(made.status, 'running');
  const [exec, stop] = lines.slice(create + 1).map((line) => line.replace('res_…', made.id)) as [string, string];
  assert.match(shell(exec).stdout, /\/home\n$/);
  assert.equal(shell(stop).status, 'stopped');
});
