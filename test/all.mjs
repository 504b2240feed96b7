// `npm test`: runs every test file. The fast ones share processes (test/groups.mjs), each of the others has one of its own.
// Node starts files by their names; here those that take longest start first, so that none of them is left to run alone at
// the end.
import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { run } from 'node:test';
import { spec } from 'node:test/reporters';
import { allFiles, grouped, isFast } from './groups.mjs';
import closing from './helper/closing-reporter.mjs';

/**
 * These wait for the clocks of real engines: of two cores they use a third of one at most (measured: Slurm 16 %, rent 19 %,
 * the deaths 33 %). Those of a line run one after the other, the lines beside each other and beside all others, so that the
 * processors have work meanwhile.
 */
const WAITING = [
  ['test/compute/kubernetes.test.ts', 'test/executable/kubernetes.test.ts'],
  ['test/lease/kubernetes-death.test.ts', 'test/compute/slurm.test.ts', 'test/executable/rent.test.ts'],
];
/** The slowest of those that keep a processor busy, as the end of a run names them. */
const FIRST = [
  'test/agents/agents.test.ts',
  'test/executable/abuse.test.ts',
  'test/compute/lxd.test.ts',
  'test/ui/looks.test.ts',
  'test/executable/kill.test.ts',
  'test/power/power-cut.test.ts',
  'test/executable/doctor.test.ts',
  'test/compute/ssh.test.ts',
  'test/executable/kill-leases.test.ts',
  'test/executable/image.test.ts',
  'test/compute/container-remote.test.ts',
];

const all = allFiles();
const waiting = WAITING.flat();
for (const file of [...waiting, ...FIRST]) assert(all.includes(file), `${file} is missing`);
const alone = all.filter((it) => !isFast(it) && !waiting.includes(it));
/** Far above what any file takes: one that hangs fails by its name. */
const FILE_MILLISECONDS_MAX = 30 * 60 * 1000;
const runFiles = (files, concurrency) =>
  run({ files, concurrency, timeout: FILE_MILLISECONDS_MAX, execArgv: ['--import=./test/helper/loading.mjs'] });

const COUNT = /^(tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) ([\d.]+)$/;

/** The events of several runs as if they were one: those of each come when the ones before it are over, and the counts are added up. */
async function* joined(first, ...others) {
  const meanwhile = others.map((it) => Array.fromAsync(it));
  async function* inTurn() {
    yield* first;
    for (const events of meanwhile) yield* await events;
  }
  const counts = new Map();
  const summaries = [];
  for await (const event of inTurn()) {
    const { type, data } = event;
    const [, name, count] = (type === 'test:diagnostic' && !data.file && COUNT.exec(data.message)) || [];
    if (name) counts.set(name, [...(counts.get(name) ?? []), Number(count)]);
    else if (type === 'test:summary' && !data.file) summaries.push(data);
    else yield event;
  }
  for (const [name, each] of counts) {
    const message = `${name} ${name === 'duration_ms' ? Math.max(...each) : each.reduce((sum, it) => sum + it)}`;
    yield { type: 'test:diagnostic', data: { nesting: 0, message, level: 'info' } };
  }
  const success = summaries.every((it) => it.success);
  if (!success) process.exitCode = 1;
  const duration_ms = Math.max(...summaries.map((it) => it.duration_ms));
  yield { type: 'test:summary', data: { ...summaries[0], success, duration_ms } };
}

// Four for two cores: with three files at a time, these were idle for a quarter of the time.
const busy = runFiles([...new Set([...FIRST, ...grouped(all.filter(isFast)), ...alone])], 4);
const stream = Readable.from(joined(busy, ...WAITING.map((files) => runFiles(files, 1))));
stream.compose(spec).pipe(process.stdout);
stream.compose(closing).pipe(process.stdout);
