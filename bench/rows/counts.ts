import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Bench } from '../bench.ts';
import type { ChatCounts } from '../chat-counts.ts';
import { generateGood } from '../generate.ts';
import { chatLoad } from '../loads.ts';
import { kill, run, sleep } from '../process.ts';
import { openWallets, type Server, startPurser } from '../purser.ts';
import { warmUp } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = [1000, 1];
const ofBench = (script: string) => join(import.meta.dirname, '..', script);
const sampled: Server = ({ directory }) => [process.execPath, ofBench('sampled.ts'), directory];

/** Counts what a chat costs that a busy machine does not change: bytes of log, statements, and bytes allocated. */
export async function counts(bench: Bench): Promise<Line[]> {
  const ofWriter: Record<string, ChatCounts> = JSON.parse(await run(process.execPath, [ofBench('chat-counts.ts')]));
  const goals = { '64 connections': [10, 8], 'one connection': [45, undefined] } as const;
  const lines = Object.entries(goals).flatMap(([connections, [logGoal, statementsGoal]]) => {
    const each = (of: (it: ChatCounts) => number) =>
      WALLETS.map((wallets) => figure(of(ofWriter[`${connections}, ${wallets}`] as ChatCounts))).join(', ');
    return [
      {
        what: `log of a chat, ${connections}, 1,000 wallets and one`,
        goal: `≤ ${logGoal} KB`,
        measured: `${each((it) => it.logBytes / 1000)} KB`,
        beside: `chats a commit: ${each((it) => it.chatsPerCommit)}`,
      },
      {
        what: `statements of the writer a chat that touch a table, ${connections}`,
        goal: statementsGoal ? `≤ ${statementsGoal}` : '',
        measured: each((it) => it.statements),
      },
    ];
  });
  const allocated: number[] = [];
  for (const wallets of WALLETS) allocated.push((await allocatedBytes(bench, wallets)) / 1000);
  return [
    ...lines,
    {
      what: 'allocated on the main thread a chat, 64 connections, 1,000 wallets and one',
      goal: '≤ 45 KB',
      measured: `${allocated.map(figure).join(', ')} KB`,
      beside: 'from source, by V8’s samples',
    },
  ];
}

async function allocatedBytes(bench: Bench, wallets: number): Promise<number> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation, sampled), (it) => it.stop());
  const load = chatLoad(purser, await openWallets(installation, wallets));
  await warmUp(load, bench);
  kill(purser.child.pid, 'SIGUSR2');
  const { count } = await generateGood({ ...load, seconds: bench.seconds * 2 });
  kill(purser.child.pid, 'SIGUSR2');
  while (purser.child.process.exitCode === null) {
    const bytes = /^allocated (\d+)$/m.exec(readFileSync(installation.log, 'utf8'))?.[1];
    if (bytes) return Number(bytes) / count;
    await sleep(100);
  }
  throw new Error(`the server ended without its count: ${readFileSync(installation.log, 'utf8').slice(-2000)}`);
}
