import { join } from 'node:path';
import { cpuSeconds, run } from './process.ts';

/** The load generator's order. It ends after `seconds`, or after `count` requests. */
export type LoadOrder = {
  port: number;
  path: string;
  body: string;
  connections: number;
  seconds?: number;
  count?: number;
  /** Distributed over the connections. Each connection uses its own in turn. */
  tokens?: readonly string[];
  headers?: Record<string, string>;
  /** Prefix of every Idempotency-Key: unique to this run. */
  run: string;
  /** All connections send at the same moment, `count` times. */
  lockstep?: boolean;
  /** In lockstep: all of them use the same key. */
  sameKey?: boolean;
};

/** Latencies are in milliseconds. `errors` counts connections that broke. */
export type LoadResult = {
  count: number;
  perSecond: number;
  p50: number;
  p99: number;
  /** Median time to the first byte of the answer. */
  firstByte: number;
  statuses: Record<string, number>;
  errors: number;
  lastRefusal?: string;
};

export type Measured = LoadResult & { /** Microseconds of the server's processor time per request. */ cpu: number };
export type Load = Omit<LoadOrder, 'run'> & { /** Whose processor time is counted. */ pid: number };

let runs = 0;

/** Puts one load on a server, from a separate process. */
export async function generate({ pid, ...load }: Load): Promise<Measured> {
  const order: LoadOrder = { ...load, run: `${process.pid.toString(36)}.${(runs++).toString(36)}.` };
  const before = cpuSeconds(pid);
  const output = await run(process.execPath, [join(import.meta.dirname, 'load.ts')], { input: JSON.stringify(order) });
  const result = JSON.parse(output) as LoadResult;
  return { ...result, cpu: ((cpuSeconds(pid) - before) / result.count) * 1e6 };
}

/** Does the same, and throws unless every request succeeded: otherwise the figures would be those of refusals. */
export async function generateGood(load: Load): Promise<Measured> {
  const result = await generate(load);
  const good = (result.statuses[200] ?? 0) + (result.statuses[201] ?? 0);
  if (result.errors || good !== result.count)
    throw new Error(
      `not every request was served: ${JSON.stringify(result.statuses)}, ${result.errors} broken: ${result.lastRefusal}`,
    );
  return result;
}
