import type { TestContext } from 'node:test';
import { runProgram } from '../../src/compute/engines/lxd/program.ts';
import { WATCHDOG_PATH } from '../../src/compute/kit/watchdog.ts';
import { until } from '../helper/waiting.ts';
import { type Lxd, lxdSubject } from './engines/lxd.ts';
import { COPYING_POOL, openCopyingLxd } from './engines/lxd-copying.ts';

const USER = 0;
export const LIMITS = { cpus: 2, memory_gib: 1, gpus: 0, disk_gb: 1, max_seconds: 3600 };

export const subjectOf = ({ socket }: Pick<Lxd, 'socket'>, change: object = {}) =>
  lxdSubject(socket, { pool: COPYING_POOL, limits: LIMITS, user: USER, snapshot_gib_day_usd: 0n, ...change });

export async function openWith(t: TestContext, change: object = {}) {
  const lxd = await openCopyingLxd(t);
  if (!lxd) return undefined;
  return {
    ...subjectOf(lxd, change),
    lxd,
    staysWhileNeeded: false,
    async stop(ref: string) {
      await runProgram(lxd.api, ref, USER, [WATCHDOG_PATH, 'stop'], 10_000);
    },
  };
}

export const MEBIBYTE = 1024 ** 2;
/** Makes files of one block that keep so many mebibytes each: btrfs keeps an extent whole while a part of it is needed. */
export const hide = (mebibytes: number, files = 1) =>
  `for i in $(seq ${files}); do fallocate -l ${mebibytes}M /tmp/hidden$i && truncate -s 4096 /tmp/hidden$i && echo $i; done`;

/** Waits until LXD does nothing in the background any more. */
export const untilIdle = (lxd: Lxd) =>
  until('LXD is idle', async () => {
    const operations = await lxd.api.ask<Record<string, unknown>>('GET', '/1.0/operations');
    return !Object.keys(operations ?? {}).includes('running');
  });
