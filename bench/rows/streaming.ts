import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { CONNECTIONS, chatBody } from '../loads.ts';
import { openRouterKeys, openWallets, startPurser } from '../purser.ts';
import { type Figures, interleave, median, quietTime, rangeOf, times } from '../rounds.ts';
import { cpuOf, figure, type Line } from '../table.ts';
import { startUpstream, type Upstream } from '../upstream.ts';

/** Number of tokens in the mock's streams without pauses (bench/mock-upstream.ts). */
const TOKENS = 512;
const PAUSE_MILLISECONDS = 20;
const PACED_TOKENS = 16;

/** Measures what Purser costs a stream beside the bare proxy: tokens per second, the first token, and jitter. */
export async function streaming(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const paced = open.adopt(await startUpstream(bench.directory, 0, PAUSE_MILLISECONDS), (it) => it.stop());
  const isPaced = { ...bench, rounds: bench.rounds * 2 };
  const flowing = open.adopt(await startUpstream(bench.directory), (it) => it.stop());
  return [...(await measure(bench, flowing, rates)), ...(await measure(isPaced, paced, jitter))];
}

type Results = Record<'direct' | 'bare' | 'purser', Figures>;

async function measure(
  bench: Bench,
  upstream: Upstream,
  linesOf: (result: Results, connections: number) => Line[],
): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh(upstream);
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const proxy = open.adopt(await startBare(bench.directory, upstream.port), (it) => it.stop());
  const keys = await openRouterKeys(installation, await openWallets(installation, CONNECTIONS));
  const body = JSON.stringify({ ...JSON.parse(chatBody()), stream: true });
  const lines: Line[] = [];
  for (const connections of [1, CONNECTIONS]) {
    const load: Load = {
      pid: purser.child.pid,
      port: purser.port,
      path: '/v1/router/chat/completions',
      body,
      connections,
      tokens: keys.slice(0, connections),
      isKeyless: true,
      // Paced streams that began together would all pause and all send at the same moments.
      ...(linesOf === rates ? {} : { spreadMilliseconds: PAUSE_MILLISECONDS * PACED_TOKENS }),
    };
    const direct: Load = { ...load, pid: upstream.pid, port: upstream.port, path: '/v1/chat/completions' };
    const bare: Load = { ...load, pid: proxy.pid, port: proxy.port };
    lines.push(...linesOf(await interleave({ direct, bare, purser: load }, bench), connections));
  }
  return lines;
}

const counted = (connections: number) => (connections === 1 ? '1 connection' : `${connections} connections`);

function rates({ direct, bare, purser }: Results, connections: number): Line[] {
  const perSecond = (it: Figures) => `${figure(it.perSecond * TOKENS)}/s`;
  return [
    {
      what: `stream, ${counted(connections)}, tokens/s × bare proxy`,
      goal: connections === 1 ? '≥ 0.8' : '≥ 0.9',
      measured: times(purser, bare, 'perSecond'),
      beside: `direct ${perSecond(direct)}, ${times(direct, bare, 'perSecond')} × bare; bare ${perSecond(bare)}, purser ${perSecond(purser)}; a stream: bare ${cpuOf(bare)}, purser ${cpuOf(purser)}`,
    },
  ];
}

/** The upstream pauses between its chunks, so that nothing waits for the CPU alone. */
function jitter({ direct, bare, purser }: Results, connections: number): Line[] {
  const first = (it: Figures) => quietTime(it, 'firstByte');
  const gap = (it: Figures, name: 'gap50' | 'gap99') => figure(median(it.rounds.map((round) => round[name] as number)));
  return [
    {
      what: `a chunk each ${PAUSE_MILLISECONDS} ms, ${counted(connections)}: first token after the bare proxy's, p50`,
      goal: '≤ 1.5 ms',
      measured: `${figure(first(purser) - first(bare))} ms`,
      beside: `direct ${figure(first(direct))} ms, bare ${figure(first(bare))} ms, purser ${figure(first(purser))} ms; rounds of bare ${rangeOf(bare, 'firstByte')} ms, of purser ${rangeOf(purser, 'firstByte')} ms`,
    },
    {
      what: 'the same: between two chunks, p99',
      goal: '',
      measured: `${gap(purser, 'gap99')} ms`,
      beside: `p50 ${gap(purser, 'gap50')} ms; direct ${gap(direct, 'gap50')} and ${gap(direct, 'gap99')} ms, bare ${gap(bare, 'gap50')} and ${gap(bare, 'gap99')} ms`,
    },
  ];
}
