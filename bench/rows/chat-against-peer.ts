import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { CONNECTIONS, chatBody, chatLoad } from '../loads.ts';
import { startPortkey } from '../portkey.ts';
import { openWallets, startPurser } from '../purser.ts';
import { type Figures, interleave, ratio } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = 1000;

/** Compares metered chat (durable hold and settlement, authentication on) with a gateway that meters nothing. */
export async function chatAgainstPeer(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const { upstream } = bench;
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const tokens = await openWallets(installation, WALLETS);
  const peer = open.adopt(await startPortkey(bench.directory, upstream.port), (it) => it?.stop());

  const plain = { path: '/v1/chat/completions', body: chatBody(), connections: CONNECTIONS };
  const targets: Record<'direct' | 'purser', Load> = {
    direct: { ...plain, pid: upstream.pid, port: upstream.port },
    purser: chatLoad(purser, tokens),
  };
  const what = 'metered chat, 64 connections: requests/s';
  if (!peer) {
    const { direct, purser: own } = await interleave(targets, bench);
    return [
      {
        what: `${what} × portkey`,
        goal: '≥ 5',
        measured: 'peer not available',
        beside: besides({ direct, purser: own }),
      },
    ];
  }
  const portkey: Load = { ...plain, pid: peer.pid, port: peer.port, headers: peer.headers, tokens: ['unchecked'] };
  const result = await interleave({ ...targets, portkey }, bench);
  const p99 = `portkey ${figure(result.portkey.p99)} ms, purser ${figure(result.purser.p99)} ms, direct ${figure(result.direct.p99)} ms`;
  return [
    {
      what: `${what} × portkey`,
      goal: '≥ 5',
      measured: figure(ratio(result.purser, result.portkey, 'perSecond')),
      beside: besides(result),
    },
    {
      what: 'the same: its p99 × portkey',
      goal: '≤ 0.5',
      measured: figure(ratio(result.purser, result.portkey, 'p99')),
      beside: p99,
    },
  ];
}

function besides(results: Record<string, Figures>): string {
  return Object.entries(results)
    .map(([name, it]) => `${name} ${figure(it.perSecond)}/s, ${figure(it.cpu)} µs CPU`)
    .join('; ');
}
