import { join } from 'node:path';
import { run, threadMicroseconds } from './process.ts';
import { isForWrk, sendWithWrk, wrkVersion } from './wrk.ts';

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
  /** Sends no Idempotency-Key. */
  isKeyless?: boolean;
  /** Prefix of every Idempotency-Key: unique to this run. */
  run: string;
  /** The connections begin one after the other, spread over this time. */
  spreadMilliseconds?: number;
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
  /** Median time to the first byte of the answer; of a stream, to its first event. NaN where wrk sends. */
  firstByte: number;
  /** Between two reads of one answer: median and 99th percentile. Undefined if every answer came in one piece. */
  gap50?: number;
  gap99?: number;
  statuses: Record<string, number>;
  errors: number;
  lastRefusal?: string;
};

export type Measured = LoadResult & {
  /** Microseconds of the server's CPU time per request: all threads, and the main thread. */
  cpu: number;
  mainCpu: number;
};
export type Load = Omit<LoadOrder, 'run'> & { /** Whose processor time is counted. */ pid: number };

/** The `count` of a load that ends when its connections break. */
export const UNTIL_BROKEN = Number.MAX_SAFE_INTEGER;

let runs = 0;

async function sendWithNode(order: LoadOrder): Promise<LoadResult> {
  const output = await run(process.execPath, [join(import.meta.dirname, 'load.ts')], { input: JSON.stringify(order) });
  return JSON.parse(output) as LoadResult;
}

/** Puts one load on a server, from a separate process. */
export async function generate({ pid, ...load }: Load): Promise<Measured> {
  const order: LoadOrder = { ...load, run: `${process.pid.toString(36)}.${(runs++).toString(36)}.` };
  const before = threadMicroseconds(pid);
  const result = await (wrkVersion && isForWrk(order) ? sendWithWrk(order) : sendWithNode(order));
  const after = threadMicroseconds(pid);
  return {
    ...result,
    cpu: (after.all - before.all) / result.count,
    mainCpu: (after.main - before.main) / result.count,
  };
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
