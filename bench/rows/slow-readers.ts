import { once } from 'node:events';
import http from 'node:http';
import { startBare } from '../bare.ts';
import type { Bench } from '../bench.ts';
import { chatBody } from '../loads.ts';
import { anonymousMegabytes, sleep } from '../process.ts';
import { openRouterKeys, openWallets, startPurser } from '../purser.ts';
import { figure, type Line } from '../table.ts';
import { startUpstream } from '../upstream.ts';

const READERS = 64;
const STILL_MILLISECONDS = 3000;
const BODY = JSON.stringify({ ...JSON.parse(chatBody('long')), stream: true });

/** Measures the private memory that a stream takes whose client reads nothing after its head, beside the bare proxy. */
export async function slowReaders(bench: Bench): Promise<Line[]> {
  await using open = new AsyncDisposableStack();
  const upstream = open.adopt(await startUpstream(bench.directory), (it) => it.stop());
  const installation = await bench.fresh(upstream);
  // Killed: it would read the streams of clients that have gone to their end, and they have none.
  const purser = open.adopt(await startPurser(installation), (it) => it.stop('SIGKILL'));
  const proxy = open.adopt(await startBare(bench.directory, upstream.port), (it) => it.stop());
  const keys = await openRouterKeys(installation, await openWallets(installation, READERS));
  const bare = await kilobytesOf(proxy.pid, proxy.port, keys);
  const own = await kilobytesOf(purser.child.pid, purser.port, keys);
  return [
    {
      what: `${READERS} endless streams whose clients do not read: private memory for each`,
      goal: 'bounded',
      measured: `${figure(own)} KB`,
      beside: `bare ${figure(bare)} KB`,
    },
  ];
}

/** Opens a stream with each key, reads nothing of it, and returns the memory that each takes once nothing moves. */
async function kilobytesOf(pid: number, port: number, keys: readonly string[]): Promise<number> {
  const before = anonymousMegabytes(pid);
  const streams = await Promise.all(
    keys.map(async (key) => {
      const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
      const path = '/v1/router/chat/completions';
      const request = http.request({ port, host: '127.0.0.1', path, method: 'POST', headers, agent: false }).end(BODY);
      const [response] = (await once(request, 'response')) as [http.IncomingMessage];
      return response;
    }),
  );
  await sleep(STILL_MILLISECONDS);
  const after = anonymousMegabytes(pid);
  for (const it of streams) it.destroy();
  return ((after - before) * 1000) / keys.length;
}
