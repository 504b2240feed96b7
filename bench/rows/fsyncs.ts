import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Bench } from '../bench.ts';
import { generateGood } from '../generate.ts';
import { chatLoad } from '../loads.ts';
import { kill, track } from '../process.ts';
import { openWallets, purserServe, type Server, startPurser } from '../purser.ts';
import { warmUp } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = 1000;

/**
 * Counts the process's fsync and fdatasync calls while it serves chats, beside Purser's own count of commits. Calls are
 * logged to a file instead of summed by `-c`, so that start and stop are not counted.
 */
export async function fsyncs(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const hasStrace = spawnSync('strace', ['--version'], { stdio: 'ignore' }).status === 0;
  const trace = join(bench.directory, 'fsyncs.trace');
  // With --seccomp-bpf only the two calls stop the process; all others run at full speed.
  const traced: Server = (it) => [
    'strace',
    '-f',
    '--seccomp-bpf',
    '-e',
    'trace=fsync,fdatasync',
    '-o',
    trace,
    ...purserServe(it),
  ];

  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation, hasStrace ? traced : purserServe), (it) => it.stop());
  if (hasStrace) {
    const { pid } = purser.child;
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number);
    for (const child of children) {
      const tracked = track(child);
      open.defer(async () => {
        kill(child, 'SIGTERM');
        await purser.child.ended; // strace ends with what it traces.
        tracked.forget();
      });
    }
  }
  const load = chatLoad(purser, await openWallets(installation, WALLETS));
  await warmUp(load, bench);
  const count = async () => ({ commits: await purser.commits(), calls: hasStrace ? linesOf(trace) : Number.NaN });
  const before = await count();
  const { count: operations } = await generateGood({ ...load, seconds: bench.seconds });
  const after = await count();

  const commits = (after.commits - before.commits) / operations;
  const calls = (after.calls - before.calls) / operations;
  return [
    {
      what: 'fsyncs per paid operation, 64 connections',
      goal: '≤ 0.1',
      measured: hasStrace ? figure(calls) : 'no strace',
      beside: `commits by the metrics: ${figure(commits)} an operation (${figure(2 / commits)} writes in one)`,
    },
  ];
}

/** Counts the calls in a trace. A call that another thread interrupts takes two lines: "unfinished" and "resumed". */
const linesOf = (file: string) => readFileSync(file, 'utf8').match(/f(data)?sync\(/g)?.length ?? 0;
