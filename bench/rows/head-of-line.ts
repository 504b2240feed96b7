import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import { generateGood, type Load, type Measured } from '../generate.ts';
import { agentBody, chatLoad } from '../loads.ts';
import { openWallets, startPurser } from '../purser.ts';
import { median, quietTime, range, warmUp } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const CONNECTIONS = 8;
const LARGE_CLIENTS = 2;
const LARGE_TOKENS = 900_000; // About 4 MB.

/** Measures how long small requests wait beside two clients that send bodies of 4 MB one after the other. */
export async function headOfLine(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const proxy = open.adopt(await startBare(bench.directory, bench.upstream.port), (it) => it.stop());
  const tokens = await openWallets(installation, CONNECTIONS + LARGE_CLIENTS);
  const small = chatLoad(purser, tokens.slice(LARGE_CLIENTS), CONNECTIONS);
  const large: Load = {
    ...small,
    body: agentBody(LARGE_TOKENS),
    connections: LARGE_CLIENTS,
    tokens: tokens.slice(0, LARGE_CLIENTS),
  };
  const at = { purser: {}, bare: { pid: proxy.pid, port: proxy.port } };
  const times: Record<keyof typeof at, { alone: Measured[]; beside: Measured[]; large: Measured[] }> = {
    purser: { alone: [], beside: [], large: [] },
    bare: { alone: [], beside: [], large: [] },
  };
  const { seconds } = bench;
  for (const target of Object.values(at)) await warmUp({ ...small, ...target }, bench);
  for (let round = -1; round < bench.rounds * 2; round++)
    for (const name of ['purser', 'bare'] as const) {
      const alone = await generateGood({ ...small, ...at[name], seconds });
      const others = generateGood({ ...large, ...at[name], seconds: seconds + 1 }); // Begins before, and ends after.
      const [beside, them] = await Promise.all([generateGood({ ...small, ...at[name], seconds }), others]);
      if (round < 0) continue; // The first round warms up.
      times[name].alone.push(alone);
      times[name].beside.push(beside);
      times[name].large.push(them);
    }
  return (['purser', 'bare'] as const).map((name) => {
    const { alone, beside, large: them } = times[name];
    const p99 = (rounds: readonly Measured[]) => quietTime({ rounds }, 'p99');
    return {
      what: `small requests beside two clients of 4 MB, ${name}: p99 × alone`,
      goal: name === 'purser' ? '≤ 2.5' : '',
      measured: figure(p99(beside) / p99(alone)),
      beside: `alone ${figure(p99(alone))} ms (rounds ${range(alone.map((it) => it.p99))}), beside ${figure(p99(beside))} ms (${range(beside.map((it) => it.p99))}); ${figure(median(them.map((it) => it.perSecond)))} of 4 MB a second`,
    };
  });
}
