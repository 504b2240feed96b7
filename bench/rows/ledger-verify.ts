import type { Bench } from '../bench.ts';
import { command } from '../purser.ts';
import { figure, type Line } from '../table.ts';

/** Measures the whole command on the filled database, including its start. */
export async function ledgerVerify(bench: Bench): Promise<Line[]> {
  const { installation } = await bench.filled();
  const from = performance.now();
  const { entries, ok } = await command<{ entries: number; ok: boolean }>(installation, 'ledger', 'verify');
  const seconds = (performance.now() - from) / 1000;
  return [
    {
      what: 'ledger verify',
      goal: '≥ 200,000 entries/s',
      measured: `${figure(entries / seconds)}/s`,
      beside: `${entries.toLocaleString('en-US')} entries in ${figure(seconds)} s: ${ok ? 'every balance agrees' : 'FAULTS'}`,
    },
  ];
}
