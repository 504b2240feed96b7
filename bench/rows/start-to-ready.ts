import type { Bench } from '../bench.ts';
import { generate, UNTIL_BROKEN } from '../generate.ts';
import { chatLoad } from '../loads.ts';
import { sleep } from '../process.ts';
import { type Installation, startPurser } from '../purser.ts';
import { median, range } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const STARTS = 15;
const CRASHES = 3;
const LOAD_MILLISECONDS = 1000;

/** Measures the time from spawn to the first 200 on /readyz: empty, filled, and filled after kill -9 under load. */
export async function startToReady(bench: Bench): Promise<Line[]> {
  const empty = await starts(await bench.fresh());
  const { installation, tokens } = await bench.filled();
  const filled = await starts(installation);

  const afterCrash: number[] = [];
  let purser = await startPurser(installation);
  try {
    for (let i = 0; i < CRASHES; i++) {
      const load = generate({ ...chatLoad(purser, tokens), count: UNTIL_BROKEN }).catch(() => {});
      await sleep(LOAD_MILLISECONDS);
      await purser.stop('SIGKILL');
      await load;
      purser = await startPurser(installation);
      afterCrash.push(purser.readyMilliseconds);
    }
  } finally {
    await purser.stop();
  }
  const spread = (all: readonly number[]) => `${all.length} starts, ${range(all)} ms`;
  return [
    { what: 'start to ready, empty', goal: '≤ 200 ms', measured: `${figure(median(empty))} ms`, beside: spread(empty) },
    {
      what: `the same with ${bench.entries.toLocaleString('en-US')} entries`,
      goal: '',
      measured: `${figure(median(filled))} ms`,
      beside: spread(filled),
    },
    {
      what: 'the same after kill -9 under load',
      goal: '≤ 1,000 ms',
      measured: `${figure(median(afterCrash))} ms`,
      beside: spread(afterCrash),
    },
  ];
}

async function starts(installation: Installation): Promise<number[]> {
  const all: number[] = [];
  for (let i = 0; i < STARTS; i++) {
    const purser = await startPurser(installation);
    await purser.stop();
    all.push(purser.readyMilliseconds);
  }
  return all;
}
