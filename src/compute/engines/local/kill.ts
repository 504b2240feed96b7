import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';

/** Finds processes of this machine by their environment (proc(5)). */

/** The search path for programs of this machine, whatever Purser's own environment has. */
export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

const END_MILLISECONDS = 10_000;
const LOOK_MILLISECONDS = 20;
/** A pass may miss a process that has just been forked: its environment is empty for a moment. */
const LOOK_COUNT = 2;

/** Kills the processes that have one of these variables (`NAME=VALUE`), until there are none. Throws if some stay. */
export async function killAll(variables: readonly string[]): Promise<void> {
  const started = performance.now();
  for (let empty = 0; empty < LOOK_COUNT; ) {
    const pids = await processesWith(variables);
    empty = pids.length ? 0 : empty + 1;
    if (pids.length && performance.now() - started > END_MILLISECONDS)
      throw new Error(`these processes do not die: ${pids.join(', ')}`);
    for (const pid of pids)
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // It has just ended.
    await sleep(LOOK_MILLISECONDS);
  }
}

async function processesWith(variables: readonly string[]): Promise<number[]> {
  const pids = (await readdir('/proc')).filter((it) => /^\d+$/.test(it));
  const matches = await Promise.all(
    pids.map(async (pid) => {
      const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => ''); // It has ended, or belongs to another user.
      return environment.split('\0').some((it) => variables.includes(it)) ? [Number(pid)] : [];
    }),
  );
  return matches.flat();
}
