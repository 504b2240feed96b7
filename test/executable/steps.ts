import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { EXECUTABLE, run, type Said } from '../helper/executable.ts';
import { length } from '../helper/random.ts';

/** What changes a disk. A death before one of these is a death after the one before it. */
const CHANGES = [
  'pwrite64',
  'write',
  'fsync',
  'fdatasync',
  'ftruncate',
  'rename',
  'link',
  'unlink',
  'copy_file_range',
] as const;
/** Of a call that is made very often, so many moments are tried, evenly spread. */
const MOMENTS_MAX = length(1, 5);

export type Moment = { call: string; count: number };

/** Whether a command ended by the kill that was meant for it: strace ends as what it traced. */
export const isKilled = ({ code, signal }: Said) => signal === 'SIGKILL' || code === 137;

/** Does something at every moment that dies or not. Throws what goes wrong afterwards, with the moment; answers how many died. */
export async function atEveryMoment(
  moments: readonly Moment[],
  attempt: (moment: Moment) => Promise<Said>,
): Promise<number> {
  let died = 0;
  for (const moment of moments) {
    try {
      if (isKilled(await attempt(moment))) died++;
    } catch (error) {
      throw new Error(`killed before ${moment.call} ${moment.count}`, { cause: error });
    }
  }
  assert(died > moments.length / 2, `${died} of ${moments.length} died: the moments are not where they were`);
  return died;
}

/** Runs a command to its end under strace, and answers when it could die: before which call of its kind. */
export async function momentsOf(args: readonly string[], env = {}, program = EXECUTABLE): Promise<Moment[]> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-strace-'));
  try {
    const trace = join(directory, 'trace');
    const strace = ['strace', '-f', '-qq', '--seccomp-bpf', '-o', trace, '-e', `trace=${CHANGES.join(',')}`];
    const { code, stderr } = await run(args, { command: [...strace, program], env });
    assert.equal(code, 0, stderr);
    // The kernel's counter of strace is each thread's own.
    const counts = new Map<string, number>();
    for (const [, thread, call] of readFileSync(trace, 'utf8').matchAll(/^(\d+) +(\w+)\(/gm)) {
      const name = `${thread} ${call}`;
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return CHANGES.flatMap((call) => {
      const max = Math.max(0, ...[...counts].filter(([name]) => name.endsWith(` ${call}`)).map(([, count]) => count));
      const step = Math.max(1, max / MOMENTS_MAX);
      return Array.from({ length: Math.ceil(max / step) }, (_, i) => ({ call, count: Math.floor(i * step) + 1 }));
    });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Runs a command that dies by kill -9 at a moment. Another run may not come that far: then it ends by itself. */
export function dieAt({ call, count }: Moment, args: readonly string[], env = {}, program = EXECUTABLE): Promise<Said> {
  const inject = ['-e', `trace=${call}`, '-e', `inject=${call}:signal=SIGKILL:when=${count}`];
  return run(args, {
    command: ['strace', '-f', '-qq', '-o', '/dev/null', ...inject, program],
    env,
  });
}
