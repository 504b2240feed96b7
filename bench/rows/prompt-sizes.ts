import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { agentBody, chatLoad } from '../loads.ts';
import { openRouterKeys, openWallets, startPurser } from '../purser.ts';
import { interleave, ratio } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const CONNECTIONS = 8;
const TOKENS = [1000, 10_000, 100_000, 1_000_000];

/** Measures what a prompt costs by its size, beside the bare proxy: with an Idempotency-Key, and without. */
export async function promptSizes(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const proxy = open.adopt(await startBare(bench.directory, bench.upstream.port), (it) => it.stop());
  const wallets = await openWallets(installation, CONNECTIONS);
  const keys = await openRouterKeys(installation, wallets);
  const lines: Line[] = [];
  for (const tokens of TOKENS) {
    const keyed: Load = { ...chatLoad(purser, wallets, CONNECTIONS), body: agentBody(tokens) };
    const keyless: Load = { ...keyed, path: '/v1/router/chat/completions', tokens: keys, isKeyless: true };
    const bare: Load = { ...keyed, pid: proxy.pid, port: proxy.port };
    const result = await interleave({ bare, keyed, keyless }, bench);
    const size = `${tokens.toLocaleString('en-US')} tokens`;
    for (const name of ['keyed', 'keyless'] as const)
      lines.push({
        what: `prompt of ${size}, ${name}: CPU × bare proxy`,
        goal: tokens > 1000 ? '≤ 1.5' : '',
        measured: figure(ratio(result[name], result.bare, 'cpu')),
        beside: `main thread ${figure(ratio(result[name], result.bare, 'mainCpu'))}, requests/s ${figure(ratio(result[name], result.bare, 'perSecond'))}; bare ${figure(result.bare.cpu)} µs, purser ${figure(result[name].cpu)} µs`,
      });
  }
  return lines;
}
