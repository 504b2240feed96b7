import type { Bench } from '../bench.ts';
import { chatLoad, walletLoad } from '../loads.ts';
import { openWallets, startPurser } from '../purser.ts';
import { interleave, times } from '../rounds.ts';
import { cpuOf, figure, type Line } from '../table.ts';

const WALLETS = 1000;

/** Compares chat and wallet creation on a filled database with an empty one, in the same rounds. */
export async function slowDown(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const { installation: old, tokens: oldTokens, megabytes } = await bench.filled();
  const filled = open.adopt(await startPurser(old), (it) => it.stop());
  const young = await bench.fresh();
  const empty = open.adopt(await startPurser(young), (it) => it.stop());
  const tokens = await openWallets(young, WALLETS);

  const loads = {
    chatEmpty: chatLoad(empty, tokens),
    chatFilled: chatLoad(filled, oldTokens),
    walletsEmpty: walletLoad(empty, young),
    walletsFilled: walletLoad(filled, old),
  };
  // Shorter rounds, but many: one of them differs from the next by more than what is measured.
  const result = await interleave(loads, { ...bench, seconds: bench.seconds / 2, rounds: bench.rounds * 4 });
  const rates = (one: keyof typeof loads, other: keyof typeof loads) =>
    `empty ${figure(result[other].perSecond)}/s, ${cpuOf(result[other])}; filled ${figure(result[one].perSecond)}/s, ${cpuOf(result[one])}`;
  const size = `${bench.wallets.toLocaleString('en-US')} wallets, ${bench.entries.toLocaleString('en-US')} entries`;
  return [
    {
      what: `chat with ${size}: requests/s × empty`,
      goal: '≥ 0.85',
      measured: times(result.chatFilled, result.chatEmpty, 'perSecond'),
      beside: `${rates('chatFilled', 'chatEmpty')}; a file of ${megabytes} MB`,
    },
    {
      what: 'the same, wallet creation',
      goal: '≥ 0.8',
      measured: times(result.walletsFilled, result.walletsEmpty, 'perSecond'),
      beside: rates('walletsFilled', 'walletsEmpty'),
    },
  ];
}
