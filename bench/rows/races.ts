import type { Bench } from '../bench.ts';
import { generate, generateGood } from '../generate.ts';
import { chatBody, chatLoad } from '../loads.ts';
import { openWallets, startPurser } from '../purser.ts';
import { figure, type Line } from '../table.ts';
import { startUpstream } from '../upstream.ts';

const CLIENTS = 64;
const SPENDERS = 1000;
const AFFORDABLE = 100; // The smallest possible budget, in requests of one cent.
const UPSTREAM_MILLISECONDS = 20; // Long enough for the holds of all clients to overlap.

export async function races(bench: Bench): Promise<Line[]> {
  return [await sameKey(bench), await oneWallet(bench)];
}

/** All clients send the same key and body at the same moment: one request may reach the upstream, and all get its answer. */
async function sameKey(bench: Bench): Promise<Line> {
  await using open = new AsyncDisposableStack();
  const installation = await bench.fresh();
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const load = {
    ...chatLoad(purser, await openWallets(installation, 1), CLIENTS),
    count: bench.races,
    lockstep: true,
    sameKey: true,
  };
  const before = await bench.upstream.count();
  const result = await generateGood(load);
  const calls = (await bench.upstream.count()) - before;
  return {
    what: `${CLIENTS} clients × ${bench.races.toLocaleString('en-US')} same-key races: second effects`,
    goal: '0',
    measured: `${calls - bench.races}`,
    beside: `${calls} calls upstream for ${result.count.toLocaleString('en-US')} requests, ${figure(result.perSecond)}/s`,
  };
}

/** Far more concurrent requests than a wallet can pay for. */
async function oneWallet(bench: Bench): Promise<Line> {
  await using open = new AsyncDisposableStack();
  const upstream = open.adopt(await startUpstream(bench.directory, UPSTREAM_MILLISECONDS), (it) => it.stop());
  const installation = await bench.fresh(upstream);
  const purser = open.adopt(await startPurser(installation), (it) => it.stop());
  const [token = ''] = await openWallets(installation, 1, AFFORDABLE);
  const { statuses } = await generate({
    ...chatLoad(purser, [token], SPENDERS),
    body: chatBody('one-cent'),
    count: 1,
    lockstep: true,
  });

  const budget = await fetch(`http://127.0.0.1:${purser.port}/v1/budget`, {
    headers: { authorization: `Bearer ${token}` },
  });
  const { used_usd: used } = (await budget.json()) as { used_usd: string };
  const cents = Math.max(await upstream.count(), Math.round(Number(used) * 100));
  return {
    what: `${SPENDERS.toLocaleString('en-US')} concurrent spenders, ${AFFORDABLE} cents: cents over budget`,
    goal: '0',
    measured: `${Math.max(0, cents - AFFORDABLE)}`,
    beside: `${statuses[200] ?? 0} served, ${statuses[402] ?? 0} refused with 402; ${used} USD charged`,
  };
}
