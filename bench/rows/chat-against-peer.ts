import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { CONNECTIONS, chatBody, chatLoad } from '../loads.ts';
import { startPortkey } from '../portkey.ts';
import { openWallets, startPurser } from '../purser.ts';
import { type Figures, interleave, ratio } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = 1000;

/**
 * Compares metered chat (durable hold and settlement, authentication on) with the bare proxy, and with a gateway that meters
 * nothing.
 */
export async function chatAgainstPeer(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const { upstream } = bench;
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const tokens = await openWallets(installation, WALLETS);
  const proxy = open.adopt(await startBare(bench.directory, upstream.port), (it) => it.stop());
  const peer = open.adopt(await startPortkey(bench.directory, upstream.port), (it) => it?.stop());

  const plain = { path: '/v1/chat/completions', body: chatBody(), connections: CONNECTIONS };
  const targets: Record<string, Load> & Record<'bare' | 'purser', Load> = {
    direct: { ...plain, pid: upstream.pid, port: upstream.port },
    bare: { ...plain, pid: proxy.pid, port: proxy.port },
    purser: chatLoad(purser, tokens),
  };
  if (peer)
    targets.portkey = { ...plain, pid: peer.pid, port: peer.port, headers: peer.headers, tokens: ['unchecked'] };
  const result = await interleave(targets, { ...bench, rounds: bench.rounds * 2 });
  const { purser: own, bare, portkey } = result as Record<'purser' | 'bare', Figures> & { portkey?: Figures };
  const each = (of: (it: Figures) => string) =>
    Object.entries(result)
      .map(([name, it]) => `${name} ${of(it)}`)
      .join('; ');
  const times = (other: Figures | undefined, name: 'perSecond' | 'p99' | 'mainCpu' | 'cpu') =>
    other ? figure(ratio(own, other, name)) : 'peer not available';
  const share = portkey && ratio(bare, portkey, 'perSecond');
  return [
    {
      what: `metered chat, ${CONNECTIONS} connections: requests/s × bare proxy`,
      goal: '≥ 0.5',
      measured: times(bare, 'perSecond'),
      beside: each((it) => `${figure(it.perSecond)}/s`),
    },
    {
      what: 'the same: p99 × bare proxy',
      goal: '≤ 2',
      measured: times(bare, 'p99'),
      beside: each((it) => `${figure(it.p99)} ms`),
    },
    {
      what: 'the same: CPU of the main thread × bare proxy',
      goal: '≤ 1.6',
      measured: times(bare, 'mainCpu'),
      beside: `${each((it) => `${figure(it.mainCpu)} µs`)}; of the process ${times(bare, 'cpu')}: ${each((it) => `${figure(it.cpu)} µs`)}`,
    },
    {
      what: 'the same: requests/s × portkey',
      goal: '≥ 5.2 where bare makes 10',
      measured: times(portkey, 'perSecond'),
      beside: share === undefined ? '' : `bare makes ${figure(share)}`,
    },
    { what: 'the same: p99 × portkey', goal: '≤ 0.5', measured: times(portkey, 'p99') },
  ];
}
