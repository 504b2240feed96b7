import { join } from 'node:path';
import type { Bench } from '../bench.ts';
import { chatLoad } from '../loads.ts';
import { openWallets, type Server, startPurser } from '../purser.ts';
import { interleave, times } from '../rounds.ts';
import { cpuOf, figure, type Line } from '../table.ts';

const WALLETS = 1000;
const unledgered: Server = ({ directory }) => [
  process.execPath,
  join(import.meta.dirname, '..', 'unledgered.ts'),
  directory,
];

/** Measures the cost of the ledger: the same chat against a Purser that writes nothing (bench/unledgered.ts says what it omits). */
export async function chatAgainstNoLedger(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const bare = await bench.fresh();
  const filling = await startPurser(bare); // Wallets are opened first: without a ledger that is impossible.
  const bareTokens = await openWallets(bare, WALLETS).finally(() => filling.stop());
  const without = open.adopt(await startPurser(bare, unledgered), (it) => it.stop());

  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const tokens = await openWallets(installation, WALLETS);

  const targets = { purser: chatLoad(purser, tokens), without: chatLoad(without, bareTokens) };
  const result = await interleave(targets, { ...bench, rounds: bench.rounds * 2 });
  return [
    {
      what: 'the same × purser without its ledger',
      goal: '≥ 0.5',
      measured: times(result.purser, result.without, 'perSecond'),
      beside: `with ${figure(result.purser.perSecond)}/s, ${cpuOf(result.purser)}; without ${figure(result.without.perSecond)}/s, ${cpuOf(result.without)}`,
    },
  ];
}
