import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { CONNECTIONS, chatBody, chatLoad } from '../loads.ts';
import { startPortkey } from '../portkey.ts';
import { openWallets, startPurser } from '../purser.ts';
import { type Figures, interleave, rangeOf, ratio, times } from '../rounds.ts';
import { figure, type Line } from '../table.ts';

const WALLETS = 1000;
/** Of what bare makes of Portkey's requests/s, the share that is enough. */
const ENOUGH = 1 / 3;

/**
 * Compares metered chat (durable hold and settlement, authentication on), of many wallets and of one, with the bare proxy, and
 * with a gateway that meters nothing.
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
  const targets: Record<string, Load> & Record<'bare' | 'many' | 'one', Load> = {
    direct: { ...plain, pid: upstream.pid, port: upstream.port },
    bare: { ...plain, pid: proxy.pid, port: proxy.port },
    many: chatLoad(purser, tokens),
    one: chatLoad(purser, tokens.slice(0, 1)),
  };
  if (peer)
    targets.portkey = { ...plain, pid: peer.pid, port: peer.port, headers: peer.headers, tokens: ['unchecked'] };
  const result = await interleave(targets, { ...bench, rounds: bench.rounds * 2 });
  const { bare, portkey } = result as { bare: Figures; portkey?: Figures };
  const all = (name: 'perSecond' | 'p99' | 'mainCpu' | 'cpu', unit: string) =>
    Object.entries(result)
      .map(([target, it]) => `${target} ${figure(it[name])}${unit} (${rangeOf(it, name)})`)
      .join('; ');
  const share = portkey && ratio(bare, portkey, 'perSecond');
  const lines = (['many', 'one'] as const).map((name) => {
    const own = result[name] as Figures;
    const what = `metered chat, ${CONNECTIONS} connections, ${name === 'one' ? 'one wallet' : `${WALLETS.toLocaleString('en-US')} wallets`}`;
    return [
      { what: `${what}: requests/s × bare proxy`, goal: '≥ 0.32', measured: times(own, bare, 'perSecond') },
      { what: '– p99 × bare proxy', goal: '≤ 3', measured: times(own, bare, 'p99') },
      { what: '– CPU of the thread that serves HTTP × bare', goal: '≤ 2.3', measured: times(own, bare, 'mainCpu') },
      { what: '– CPU of all threads × bare', goal: '≤ 3.8', measured: times(own, bare, 'cpu') },
      {
        what: '– requests/s × portkey',
        goal: share === undefined ? '' : `≥ ${figure(Math.min(2, share * ENOUGH))}: bare makes ${figure(share)}`,
        measured: portkey ? times(own, portkey, 'perSecond') : 'portkey not available',
      },
      ...(portkey ? [{ what: '– p99 × portkey', goal: '≤ 0.4', measured: times(own, portkey, 'p99') }] : []),
    ];
  });
  const besides = [all('perSecond', '/s'), all('p99', ' ms'), all('mainCpu', ' µs'), all('cpu', ' µs')];
  return lines.flatMap((of, i) => of.map((line, j) => ({ ...line, beside: i === 0 ? (besides[j] ?? '') : '' })));
}
