import { join } from 'node:path';
import type { Bench } from '../bench.ts';
import { run } from '../process.ts';
import { EXECUTABLE } from '../purser.ts';
import { median, range } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const ROUNDS = 3;
const SCAN = join(import.meta.dirname, '..', 'plain-scan.ts');

/** Measures the whole command on the filled database, including its start, in turn with a plain scan of the same file. */
export async function ledgerVerify(bench: Bench): Promise<Line[]> {
  const { installation } = await bench.filled();
  const { directory } = installation;
  const taken: Taken[] = [];
  const ratios: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const verify = await timed(EXECUTABLE, '--data', directory, '--json', 'ledger', 'verify');
    const scan = await timed(process.execPath, SCAN, join(directory, 'purser.db'));
    taken.push(verify);
    ratios.push(verify.cpuSeconds / scan.cpuSeconds);
  }
  const { entries, ok } = JSON.parse(taken[0]?.output as string) as { entries: number; ok: boolean };
  const seconds = median(taken.map((it) => it.seconds));
  return [
    {
      what: 'ledger verify: CPU × a plain scan of the same file',
      goal: '≤ 6',
      measured: `${figure(median(ratios))} (${range(ratios)})`,
      beside: `${entries.toLocaleString('en-US')} entries in ${figure(seconds)} s: ${figure(entries / seconds)}/s, ${ok ? 'every balance agrees' : 'FAULTS'}`,
    },
  ];
}

type Taken = { output: string; seconds: number; cpuSeconds: number };

/** Runs a program to its end. The shell knows what processor time it took. */
async function timed(...command: string[]): Promise<Taken> {
  const from = performance.now();
  const whole = await run('sh', ['-c', '"$@" && times', 'sh', ...command]);
  const seconds = (performance.now() - from) / 1000;
  const times = whole.trimEnd().split('\n').at(-1) as string; // Of the children: "0m8.120000s 0m0.340000s".
  const cpuSeconds = [...times.matchAll(/(\d+)m([\d.]+)s/g)].reduce(
    (sum, [, m, s]) => sum + Number(m) * 60 + Number(s),
    0,
  );
  return { output: whole.slice(0, whole.lastIndexOf('}') + 1), seconds, cpuSeconds };
}
