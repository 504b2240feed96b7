// `npm run bench -- backends`: what leases take on every backend that this machine has, beside the engine itself. Prints the
// table of docs/backends.md.
import { cpus, loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { median } from '../rounds.ts';
import { figure } from '../table.ts';
import { openPurser, type Rented } from './rented.ts';
import { type Machines, type Starter, SUBJECTS, type Subject } from './subjects.ts';
import { measureTrees } from './trees.ts';

const MIB = 1024 ** 2;
const WARM_COUNT = 5;
const SDK_ROW = "`commands.run('true')` by E2B's SDK";

const HELP = `npm run bench -- backends [flags]
  --only a,b,…  these backends
  --trees WORD  trees of files in place of leases, beside tar over the same road: the rows with this word (upload, sftp, MB; all)
  --rounds N    leases of each, in turn with the bare engine; medians are reported (5)`;

/** The steps of a lease, in the order of the table, each with its milliseconds in every round. */
const STEPS = {
  create: 'create to running',
  first: 'first exec',
  ready: "create to the first exec's answer",
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
    options: {
      only: { type: 'string' },
      rounds: { type: 'string', default: '5' },
      trees: { type: 'string' },
      help: { type: 'boolean' },
    },
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
    measured[name] = await (values.trees === undefined
      ? measure(subject, Number(values.rounds), stack)
      : measureTrees(subject, { rounds: Number(values.rounds), word: values.trees }, stack));
    process.stderr.write(`${name} took ${Math.round((performance.now() - from) / 1000)} s\n`);
  }
  const [cpu] = cpus();
  console.log(
    `${new Date().toISOString().slice(0, 10)}, ${cpus().length} × ${cpu?.model.trim()}, Node ${process.version}, ${values.rounds} rounds, medians. Load average ${before} before, ${load()} after.\n`,
  );
  console.log(tableOf(measured));
}

/** A step, and what it took with Purser beside the bare engine. */
export type Row = [what: string, cell: string];

/** Formats one column for each backend; their rows are the same. */
function tableOf(measured: Record<string, Row[]>): string {
  const [names, columns] = [Object.keys(measured), Object.values(measured)];
  const rows = (columns[0] ?? []).map(([what], i) => [what, ...columns.map((it) => it[i]?.[1] ?? '')]);
  return [['', ...names], ['---', ...names.map(() => '---')], ...rows].map((it) => `| ${it.join(' | ')} |`).join('\n');
}

/** Rents machines from Purser and from the bare engine in turn, then as many at once as there is room for. */
async function measure(subject: Subject, rounds: number, stack: AsyncDisposableStack): Promise<Row[]> {
  const purser = await openPurser(subject, stack);
  const targets: [Machines, Taken][] = [
    [purser, {}],
    [subject.bare, {}],
  ];
  for (const [target] of targets) await target.stop(await target.create()); // Warms up.
  const { warm } = subject;
  const { exec, stop } = purser;
  if (warm) targets.push([{ create: () => purser.create(warm.cold), exec, stop }, {}]);
  for (let round = 0; round < rounds; round++)
    for (const [target, taken] of round % 2 ? targets.toReversed() : targets) await live(target, taken);
  const [ours, theirs, cold] = targets.map(([, taken]) => taken) as [Taken, Taken, Taken?];
  const rows = (Object.keys(STEPS) as Step[]).map((step) => row(STEPS[step], ours[step], theirs[step]));
  if (cold) rows.push(row(`${STEPS.ready}, of a size that is not kept`, cold.ready, theirs.ready));

  const atOnce = async (target: Machines) => {
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
async function timeSdk(purser: Rented, bare: Machines, rounds: number): Promise<[number[], number[]] | []> {
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
async function live(target: Machines, taken: Taken): Promise<void> {
  async function timed<T>(step: Step, run: () => Promise<T>): Promise<T> {
    const from = performance.now();
    const result = await run();
    taken[step] = [...(taken[step] ?? []), performance.now() - from];
    return result;
  }
  const id = await timed('ready', async () => {
    const made = await timed('create', () => target.create());
    await timed('first', () => target.exec(made));
    return made;
  });
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
  const spread = (all: readonly number[]) =>
    what.startsWith(STEPS.ready) ? ` (${figure(Math.min(...all))}–${figure(Math.max(...all))})` : '';
  const text = (all: readonly number[] | undefined) => (all ? `${figure(median(all))}${spread(all)}` : '–');
  const ratio = what === SDK_ROW && ours && theirs ? ` (${figure(median(ours) / median(theirs))} ×)` : '';
  return [what, `${before}${text(ours)} / ${text(theirs)}${ratio}`];
}
