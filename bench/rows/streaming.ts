import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { CONNECTIONS, chatBody } from '../loads.ts';
import { openRouterKeys, openWallets, startPurser } from '../purser.ts';
import { interleave, median, ratio } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

/** Number of tokens in the mock's streams (bench/mock-upstream.ts). */
const TOKENS = 64;

/** Measures what Purser costs a stream: time to the first byte, and tokens per second. */
export async function streaming(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
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
    };
    const bare: Load = { ...load, pid: bench.upstream.pid, port: bench.upstream.port, path: '/v1/chat/completions' };
    const { direct, through } = await interleave({ direct: bare, through: load }, bench);
    const added = median(through.rounds.map((it, round) => it.firstByte - (direct.rounds[round]?.firstByte as number)));
    lines.push(
      {
        what: `stream, ${connections} connections, added to the first byte, p50`,
        goal: '',
        measured: `${figure(added)} ms`,
        beside: `direct ${figure(direct.firstByte)} ms, purser ${figure(through.firstByte)} ms`,
      },
      {
        what: 'the same, tokens/s × direct',
        goal: '',
        measured: figure(ratio(through, direct, 'perSecond')),
        beside: `direct ${figure(direct.perSecond * TOKENS)}/s, purser ${figure(through.perSecond * TOKENS)}/s, ${figure(through.cpu)} µs CPU a stream`,
      },
    );
  }
  return lines;
}
