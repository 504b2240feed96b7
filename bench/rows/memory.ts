import type { Bench } from '../bench.ts';
import { generateGood } from '../generate.ts';
import { chatLoad } from '../loads.ts';
import { anonymousMegabytes, sleep } from '../process.ts';
import { openWallets, startPurser } from '../purser.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = 1000;
/** Time after which an idle Purser has given back what it does not need: twice that between its checks, and some (docs/decisions/0062). */
const REST_MILLISECONDS = 65_000;

/** Measures RssAnon, the private memory. The rest of the resident memory is the executable and SQLite's file. */
export async function memory(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  await sleep(REST_MILLISECONDS);
  const idle = anonymousMegabytes(purser.child.pid);

  const load = chatLoad(purser, await openWallets(installation, WALLETS));
  let max = 0;
  const watch = setInterval(() => {
    max = Math.max(max, anonymousMegabytes(purser.child.pid));
  }, 100);
  await generateGood({ ...load, count: bench.operations }).finally(() => clearInterval(watch));
  await sleep(REST_MILLISECONDS);
  const after = anonymousMegabytes(purser.child.pid);
  return [
    { what: 'private memory, idle', goal: '≤ 45 MB', measured: `${figure(idle)} MB` },
    {
      what: `the same after ${bench.operations.toLocaleString('en-US')} operations`,
      goal: '≤ 120 MB',
      measured: `${figure(after)} MB`,
      beside: `${figure(max)} MB at most while they ran`,
    },
  ];
}
