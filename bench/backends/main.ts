// `npm run bench -- backends`: what leases take on every backend that this machine has, beside the engine itself. Prints the
// table of docs/backends.md.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { freePort } from '../../test/helper/free-port.ts';
import { sleep } from '../process.ts';
import { type Installation, install, openWallets, startPurser } from '../purser.ts';
import { median } from '../rounds.ts';
import { figure } from '../table.ts';
import { type Bare, type Starter, SUBJECTS, type Subject } from './subjects.ts';

const MIB = 1024 ** 2;
const WARM_COUNT = 5;
const POLL_MILLISECONDS = 50;
const BUDGET_CENTS = 100_000;

/** The folder from which E2B's SDK is installed by test/setup. */
const SDK = join(import.meta.dirname, '../../test/e2b/sdk');
const SDK_ROW = "`commands.run('true')` by E2B's SDK";
const TEMPLATE = 'bench';
type Sandbox = { commands: { run(command: string): Promise<unknown> }; kill(): Promise<unknown> };
type Rented = Required<Bare> & { openSandbox(): Promise<Sandbox | undefined> };

const HELP = `npm run bench -- backends [flags]
  --only a,b,…  these backends
  --rounds N    leases of each, in turn with the bare engine; medians are reported (5)`;

/** The steps of a lease, in the order of the table, each with its milliseconds in every round. */
const STEPS = {
  create: 'create to running',
  first: 'first exec',
  warm: 'warm exec',
  one: 'upload of 1 MiB',
  eight: 'upload of 8 MiB',
  ssh: 'a command over `ssh`',
  stop: 'stop, until it is gone',
} as const;
type Step = keyof typeof STEPS;
type Taken = Partial<Record<Step, number[]>>;

export async function benchBackends(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: { only: { type: 'string' }, rounds: { type: 'string', default: '5' }, help: { type: 'boolean' } },
  });
  if (values.help) return console.log(HELP);
  const only = values.only?.split(',');
  const load = () => figure(loadavg()[0] as number);
  const before = load();
  const measured: Record<string, Row[]> = {};
  for (const [name, open] of Object.entries(SUBJECTS)) {
    if (only && !only.includes(name)) continue;
    const from = performance.now();
    await using stack = new AsyncDisposableStack();
    const t: Starter = {
      after: (end) => void stack.defer(async () => void (await (end as () => unknown)())),
      skip: (why) => void process.stderr.write(`${name}: ${why}\n`),
    };
    const subject = await open(t);
    if (!subject) continue;
    measured[name] = await measure(subject, Number(values.rounds), stack);
    process.stderr.write(`${name} took ${Math.round((performance.now() - from) / 1000)} s\n`);
  }
  const [cpu] = cpus();
  console.log(
    `${new Date().toISOString().slice(0, 10)}, ${cpus().length} × ${cpu?.model.trim()}, Node ${process.version}, ${values.rounds} rounds, medians. Load average ${before} before, ${load()} after.\n`,
  );
  console.log(tableOf(measured));
}

/** A step, and its milliseconds with Purser and on the bare engine. */
type Row = [what: string, cell: string];

/** Formats one column for each backend; their rows are the same. */
function tableOf(measured: Record<string, Row[]>): string {
  const [names, columns] = [Object.keys(measured), Object.values(measured)];
  const rows = (columns[0] ?? []).map(([what], i) => [what, ...columns.map((it) => it[i]?.[1] ?? '')]);
  return [['', ...names], ['---', ...names.map(() => '---')], ...rows].map((it) => `| ${it.join(' | ')} |`).join('\n');
}

/** Rents machines from Purser and from the bare engine in turn, then as many at once as there is room for. */
async function measure(subject: Subject, rounds: number, stack: AsyncDisposableStack): Promise<Row[]> {
  const purser = await openPurser(subject, stack);
  const targets: [Bare, Taken][] = [
    [purser, {}],
    [subject.bare, {}],
  ];
  for (const [target] of targets) await target.stop(await target.create()); // Warms up.
  for (let round = 0; round < rounds; round++)
    for (const [target, taken] of round % 2 ? targets.toReversed() : targets) await live(target, taken);
  const [[, ours], [, theirs]] = targets as [[Bare, Taken], [Bare, Taken]];
  const rows = (Object.keys(STEPS) as Step[]).map((step) => row(STEPS[step], ours[step], theirs[step]));

  const atOnce = async (target: Bare) => {
    const from = performance.now();
    const ids = await Promise.all(Array.from({ length: subject.room }, () => target.create()));
    const made = performance.now();
    await Promise.all(ids.map((id) => target.stop(id)));
    return [[made - from], [performance.now() - made]] as const;
  };
  const [made, ended] = await atOnce(purser);
  const [madeBare, endedBare] = await atOnce(subject.bare);
  return [
    ...rows,
    row(SDK_ROW, ...(await timeSdk(purser, subject.bare, rounds))),
    row('made at once', made, madeBare, `${subject.room}: `),
    row('ended at once', ended, endedBare, `${subject.room}: `),
  ];
}

/** Runs `true` by E2B's SDK in a sandbox, and by the bare engine, in turn. Returns the milliseconds of both; none without the SDK. */
async function timeSdk(purser: Rented, bare: Bare, rounds: number): Promise<[number[], number[]] | []> {
  const sandbox = await purser.openSandbox();
  if (!sandbox) return [];
  const id = await bare.create();
  const timed = async (run: () => Promise<unknown>): Promise<number> => {
    const from = performance.now();
    await run();
    return performance.now() - from;
  };
  const [ours, theirs]: [number[], number[]] = [[], []];
  const takeBoth = async () => {
    ours.push(await timed(() => sandbox.commands.run('true')));
    theirs.push(await timed(() => bare.exec(id)));
  };
  await takeBoth(); // Warms up.
  [ours.length, theirs.length] = [0, 0];
  for (let i = 0; i < rounds * WARM_COUNT; i++) await takeBoth();
  await Promise.all([sandbox.kill(), bare.stop(id)]);
  return [ours, theirs];
}

/** One machine from its order to its end. */
async function live(target: Bare, taken: Taken): Promise<void> {
  async function timed<T>(step: Step, run: () => Promise<T>): Promise<T> {
    const from = performance.now();
    const result = await run();
    taken[step] = [...(taken[step] ?? []), performance.now() - from];
    return result;
  }
  const id = await timed('create', () => target.create());
  await timed('first', () => target.exec(id));
  for (let i = 0; i < WARM_COUNT; i++) await timed('warm', () => target.exec(id));
  const { upload, ssh } = target;
  if (upload) {
    await timed('one', () => upload(id, Buffer.alloc(MIB, 'x')));
    await timed('eight', () => upload(id, Buffer.alloc(8 * MIB, 'x')));
  }
  if (ssh) await timed('ssh', () => ssh(id));
  await timed('stop', () => target.stop(id));
}

function row(what: string, ours?: readonly number[], theirs?: readonly number[], before = ''): Row {
  const text = (all: readonly number[] | undefined) => (all ? figure(median(all)) : '–');
  const ratio = what === SDK_ROW && ours && theirs ? ` (${figure(median(ours) / median(theirs))} ×)` : '';
  return [what, `${before}${text(ours)} / ${text(theirs)}${ratio}`];
}

/** Starts Purser with this backend, and returns it as something that rents machines over HTTP. */
async function openPurser({ slot, settings, spec }: Subject, stack: AsyncDisposableStack): Promise<Rented> {
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
  return {
    async create() {
      const lease = await ask<Lease>('create', { provider: slot, spec: { ...spec, max_seconds: 3600 } });
      await reaches(lease, 'running');
      return lease.id;
    },
    async exec(id) {
      const { exit_code: code } = await ask<{ exit_code: number }>('exec', { id, command: 'true' });
      assert.equal(code, 0);
    },
    upload: (id, content) => ask('upload', { id, path: 'file', content_base64: content.toString('base64') }),
    async ssh(id) {
      const at = await ask<{ host: string; port: number; username: string; private_key: string }>('ssh', { id });
      const key = join(directory, `${id}.key`);
      writeFileSync(key, at.private_key, { mode: 0o600 });
      const options = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null'].flatMap((it) => ['-o', it]);
      const argv = ['-F', 'none', '-q', '-i', key, '-p', String(at.port), ...options];
      const child = spawn('ssh', [...argv, `${at.username}@${at.host}`, 'true'], { stdio: 'ignore' });
      const [code] = await once(child, 'exit');
      assert.equal(code, 0);
    },
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
