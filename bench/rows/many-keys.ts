import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { chatLoad } from '../loads.ts';
import { openRouterKeys, openWallets, startPurser } from '../purser.ts';
import { interleave, times } from '../rounds.ts';
import { cpuOf, figure, type Line } from '../table.ts';

const KEYS = 1000;
/** Times that all of them ask at the same moment, in one round. */
const TIMES = 3;

/** Lets a thousand gateway keys, each of a wallet of its own, ask at the same moment on connections of their own. */
export async function manyKeys(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const proxy = open.adopt(await startBare(bench.directory, bench.upstream.port), (it) => it.stop());
  const keys = await openRouterKeys(installation, await openWallets(installation, KEYS));
  const own: Load = {
    ...chatLoad(purser, keys, KEYS),
    path: '/v1/router/chat/completions',
    isKeyless: true,
    lockstep: true,
    count: TIMES,
  };
  const result = await interleave({ bare: { ...own, pid: proxy.pid, port: proxy.port }, purser: own }, bench);
  const { bare, purser: it } = result;
  return [
    {
      what: `${KEYS.toLocaleString('en-US')} gateway keys ask at the same moment: requests/s × bare proxy`,
      goal: '',
      measured: times(it, bare, 'perSecond'),
      beside: `bare ${figure(bare.perSecond)}/s, p99 ${figure(bare.p99)} ms, ${cpuOf(bare)}; purser ${figure(it.perSecond)}/s, ${figure(it.p99)} ms, ${cpuOf(it)}`,
    },
  ];
}
