import type { Bench } from '../bench.ts';
import { fdatasyncMilliseconds } from '../disk.ts';
import { walletLoad } from '../loads.ts';
import { startPurser } from '../purser.ts';
import { interleave, quietRate, quietTime, rangeOf } from '../rounds.ts';
import { cpuOf, figure, type Line } from '../table.ts';

/** Measures opening wallets over HTTP, each durable before its answer, beside the time of the disk alone. */
export async function walletCreation(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const before = fdatasyncMilliseconds(bench.directory);
  const { wallets } = await interleave(
    { wallets: walletLoad(purser, installation) },
    { ...bench, rounds: bench.rounds * 3 },
  );
  const after = fdatasyncMilliseconds(bench.directory);
  return [
    {
      what: 'wallet creation, 64 connections, durable',
      goal: '≥ 3,000/s where fdatasync takes 0.2 ms',
      measured: `${figure(quietRate(wallets))}/s`,
      beside: `rounds ${rangeOf(wallets, 'perSecond')}/s; fdatasync takes ${figure(before)} ms before, ${figure(after)} ms after; p99 ${figure(quietTime(wallets, 'p99'))} ms, ${cpuOf(wallets)}`,
    },
  ];
}
