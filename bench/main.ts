// `npm run bench`: the numbers of design section 11, each as a ratio within one run on one machine. It asserts nothing,
// prints a table, and leaves only bench/peers/node_modules behind.
import { cpus, loadavg } from 'node:os';
import { type Bench, openBench } from './bench.ts';
import { readFlags } from './flags.ts';
import { addedLatency } from './rows/added-latency.ts';
import { chatAgainstNoLedger } from './rows/chat-against-no-ledger.ts';
import { chatAgainstPeer } from './rows/chat-against-peer.ts';
import { counts } from './rows/counts.ts';
import { failOver } from './rows/fail-over.ts';
import { fsyncs } from './rows/fsyncs.ts';
import { headOfLine } from './rows/head-of-line.ts';
import { ledgerVerify } from './rows/ledger-verify.ts';
import { manyKeys } from './rows/many-keys.ts';
import { memory } from './rows/memory.ts';
import { mirror } from './rows/mirror.ts';
import { poolHost } from './rows/pool-host.ts';
import { promptSizes } from './rows/prompt-sizes.ts';
import { races } from './rows/races.ts';
import { slowDown } from './rows/slow-down.ts';
import { slowReaders } from './rows/slow-readers.ts';
import { startToReady } from './rows/start-to-ready.ts';
import { streaming } from './rows/streaming.ts';
import { walletCreation } from './rows/wallet-creation.ts';
import { figure, type Line, printLines, printMarkdown } from './table.ts';
import { wrkVersion } from './wrk.ts';

/** The rows, in the order of printing: first what is counted, which no other work on the machine changes. */
const ROWS: Record<string, (bench: Bench) => Promise<Line[]>> = {
  s: counts,
  a: chatAgainstPeer,
  b: chatAgainstNoLedger,
  c: fsyncs,
  d: addedLatency,
  e: walletCreation,
  f: slowDown,
  g: startToReady,
  h: memory,
  i: ledgerVerify,
  j: races,
  k: streaming,
  l: poolHost,
  m: promptSizes,
  n: headOfLine,
  o: manyKeys,
  p: failOver,
  q: slowReaders,
  r: mirror,
};

const [, , first, ...others] = process.argv;
const isOfBackends = first === 'backends';
if (isOfBackends) {
  // It takes engines of the tests, and with them Node's runner, which prints a summary at the end of its process.
  const { benchBackends } = await import('./backends/main.ts');
  await benchBackends(others);
}
const flags = isOfBackends ? undefined : readFlags();
// Ending the process runs the handlers of 'exit', which stop what was started and remove what was written.
const table: Line[] = [];
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => {
    printLines(table); // What has been measured is not lost.
    process.exit(130);
  });

if (flags) {
  const from = performance.now();
  await using bench = await openBench(flags);
  const [cpu] = cpus();
  const load = () => figure(loadavg()[0] as number);
  const loadBefore = load();
  for (const [letter, row] of Object.entries(ROWS)) {
    if (flags.only && !flags.only.includes(letter)) continue;
    const at = performance.now();
    const lines = await row(bench).catch((error: Error) => [
      { what: 'failed', goal: '', measured: error.message.replace(/\s+/g, ' ').slice(0, 300) },
    ]);
    process.stderr.write(`${letter} took ${Math.round((performance.now() - at) / 1000)} s\n`);
    table.push(...lines.map((line, i) => ({ ...line, letter: i ? '' : letter })));
  }
  const minutes = Math.round((performance.now() - from) / 60_000);
  console.log(
    `${new Date().toISOString().slice(0, 10)}, ${cpus().length} × ${cpu?.model.trim()}, Node ${process.version}, ${flags.rounds} rounds of ${flags.seconds} s, medians with the least and the greatest. Load by ${wrkVersion ?? 'bench/load.ts'}, model server in ${bench.isCompiled ? 'C' : 'Node'}. Load average ${loadBefore} before, ${load()} after ${minutes} minutes.\n`,
  );
  (flags.markdown ? printMarkdown : printLines)(table);
}
