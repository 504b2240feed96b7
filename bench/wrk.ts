import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { LoadOrder, LoadResult } from './generate.ts';
import { run } from './process.ts';
import { KEY_LENGTH, requestOf } from './request.ts';

/** The version of wrk on this machine; undefined where it is missing. */
export const wrkVersion: string | undefined = /^wrk \S+/.exec(
  spawnSync('wrk', ['--version'], { encoding: 'utf8' }).stdout ?? '',
)?.[0];

/** Says whether wrk can send an order: whole seconds of single answers, one after the other on each connection. */
export const isForWrk = (order: Omit<LoadOrder, 'run'>): order is LoadOrder & { seconds: number } =>
  Number.isInteger(order.seconds) && order.count === undefined && !order.body.includes('"stream":true');

/**
 * Sends an order with wrk, on one thread. Its requests that are under way at the end are cut off and not counted. To the times
 * of slow answers wrk adds those of the requests that would have been sent meanwhile. It has no time of a first byte.
 */
export async function sendWithWrk(order: LoadOrder & { seconds: number }): Promise<LoadResult> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-wrk-'));
  try {
    const requests = (order.tokens ?? [undefined]).map((token) => requestOf(order, token));
    writeFileSync(join(directory, 'after-key'), requests[0]?.afterKey as string);
    for (const [i, { beforeKey }] of requests.entries())
      writeFileSync(join(directory, `before-key-${i + 1}`), beforeKey);
    const output = await run('wrk', [
      '--threads=1',
      `--connections=${order.connections}`,
      `--duration=${order.seconds}s`,
      '--timeout=60s',
      `--script=${join(import.meta.dirname, 'wrk.lua')}`,
      `http://127.0.0.1:${order.port}`,
      '--',
      ...[directory, order.run, `${KEY_LENGTH}`, `${requests.length}`],
    ]);
    const { count, seconds, p50, p99, refused, broken } = JSON.parse(output.trim().split('\n').at(-1) as string);
    return {
      count,
      perSecond: count / seconds,
      p50,
      p99,
      firstByte: Number.NaN,
      statuses: { 200: count - refused, ...(refused ? { 'another status': refused } : {}) },
      errors: broken,
    };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
