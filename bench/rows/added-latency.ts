import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { chatLoad } from '../loads.ts';
import { openWallets, startPurser } from '../purser.ts';
import { interleave, quietTime, rangeOf } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

/** Measures how much longer a single caller waits than at the bare upstream. */
export async function addedLatency(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const load = chatLoad(purser, await openWallets(installation, 1), 1);
  const bare: Load = { ...load, pid: bench.upstream.pid, port: bench.upstream.port };
  const result = await interleave({ direct: bare, purser: load }, { ...bench, rounds: bench.rounds * 3 });

  const { direct, purser: own } = result;
  const added = (name: 'p50' | 'p99') => quietTime(own, name) - quietTime(direct, name);
  const beside = (name: 'p50' | 'p99') =>
    `direct ${figure(quietTime(direct, name))} ms (rounds ${rangeOf(direct, name)}), purser ${figure(quietTime(own, name))} ms (${rangeOf(own, name)})`;
  return [
    {
      what: 'added latency, 1 connection, p50',
      goal: '≤ 1.5 ms',
      measured: `${figure(added('p50'))} ms`,
      beside: beside('p50'),
    },
    { what: 'the same, p99', goal: '', measured: `${figure(added('p99'))} ms`, beside: beside('p99') },
  ];
}
