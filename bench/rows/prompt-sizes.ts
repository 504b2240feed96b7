import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { agentBody, chatLoad, editingBody } from '../loads.ts';
import { openRouterKeys, openWallets, startPurser } from '../purser.ts';
import { interleave, times } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const CONNECTIONS = 8;
const PROMPTS = [
  { what: '4.6 KB', goal: '', body: agentBody(1000) },
  { what: '46 KB of few long texts', goal: '≤ 2.2', body: agentBody(10_000) },
  { what: '46 KB of 25 tool calls', goal: '≤ 3', body: editingBody(25, 1500) },
  { what: '460 KB', goal: '≤ 1.2', body: agentBody(100_000) },
  { what: '4.5 MB', goal: '≤ 1.6', body: agentBody(1_000_000) },
];

/** Measures what a prompt costs by its size, beside the bare proxy: with an Idempotency-Key, and without. */
export async function promptSizes(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const proxy = open.adopt(await startBare(bench.directory, bench.upstream.port), (it) => it.stop());
  const wallets = await openWallets(installation, CONNECTIONS);
  const keys = await openRouterKeys(installation, wallets);
  const lines: Line[] = [];
  for (const { what, goal, body } of PROMPTS) {
    const keyed: Load = { ...chatLoad(purser, wallets, CONNECTIONS), body };
    const keyless: Load = { ...keyed, path: '/v1/router/chat/completions', tokens: keys, isKeyless: true };
    const bare: Load = { ...keyed, pid: proxy.pid, port: proxy.port };
    const result = await interleave({ bare, keyed, keyless }, bench);
    for (const name of ['keyed', 'keyless'] as const)
      lines.push({
        what: `prompt of ${what}, ${name}: CPU × bare proxy`,
        goal,
        measured: times(result[name], result.bare, 'cpu'),
        beside: `main thread ${times(result[name], result.bare, 'mainCpu')}, requests/s ${times(result[name], result.bare, 'perSecond')}; bare ${figure(result.bare.cpu)} µs, purser ${figure(result[name].cpu)} µs`,
      });
  }
  return lines;
}
