import { freePort } from '../../test/helper/free-port.ts';
import type { Bench } from '../bench.ts';
import type { Load } from '../generate.ts';
import { chatBody, chatLoad } from '../loads.ts';
import { startPortkey } from '../portkey.ts';
import { openWallets, startPurser } from '../purser.ts';
import { type Figures, interleave, quietTime } from '../rounds.ts';
import { figure, type Line } from '../table.ts';
import { startUpstream } from '../upstream.ts';

const CONNECTIONS = 8;
const OVERLOADED = 503;

/** Measures how much longer a request takes whose first model server answers 503 or is not there, beside Portkey. */
export async function failOver(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const overloaded = open.adopt(await startUpstream(bench.directory, 0, 0, OVERLOADED), (it) => it.stop());
  const broken = { overloaded: overloaded.port, missing: await freePort() };
  const installation = await bench.fresh(bench.upstream, broken);
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const tokens = await openWallets(installation, CONNECTIONS);
  const peer = open.adopt(await startPortkey(bench.directory, bench.upstream.port), (it) => it?.stop());

  const own = chatLoad(purser, tokens, CONNECTIONS);
  const targets: Record<string, Load> = { purser: own };
  const portkey = peer && { ...own, pid: peer.pid, port: peer.port, tokens: ['unchecked'] };
  if (portkey) targets.portkey = { ...portkey, headers: peer.headers };
  for (const [name, port] of Object.entries(broken)) {
    targets[`purser ${name}`] = { ...own, body: chatBody(name) };
    if (portkey) targets[`portkey ${name}`] = { ...portkey, headers: peer.headersAfter(port) };
  }
  // More targets than elsewhere, and what is measured is the difference of two times.
  const result = await interleave(targets, { ...bench, seconds: bench.seconds / 2, rounds: bench.rounds * 3 });
  const added = (of: string, name: string) =>
    quietTime(result[`${of} ${name}`] as Figures, 'p50') - quietTime(result[of] as Figures, 'p50');
  return Object.keys(broken).map((name) => ({
    what: `fail-over, the first model server ${name === 'missing' ? 'is not there' : `answers ${OVERLOADED}`}: added at p50`,
    goal: '',
    measured: `${figure(added('purser', name))} ms`,
    beside: portkey ? `portkey ${figure(added('portkey', name))} ms` : 'portkey not available',
  }));
}
