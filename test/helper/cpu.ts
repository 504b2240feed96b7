import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

/** Returns the CPU time of this thread in milliseconds, which does not count other processes. */
export function threadMilliseconds(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
}

/** The kernel counts the processor time of a process in these (proc_pid_stat(5)). */
const TICKS_PER_SECOND = 100;

/** Returns the CPU time of a process and of its children that have ended, in milliseconds; 0 when it is gone. */
export function processMilliseconds(pid: number): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /, '')
      .split(' ');
    const ticks = fields.slice(11, 15).reduce((sum, it) => sum + Number(it), 0); // utime, stime, cutime, cstime
    return (ticks * 1000) / TICKS_PER_SECOND;
  } catch {
    return 0;
  }
}

/** Some kernels count processor time in ticks of 10 ms: work of less than a few ticks is repeated. */
const MEASURED_MILLISECONDS_MIN = 40;

/** Returns the CPU time of some work in milliseconds: the least of several runs, as caches and collections only add to it. */
export function cpuOf(work: () => unknown, times = 3): number {
  let least = Number.POSITIVE_INFINITY;
  for (let i = 0; i < times; i++) {
    const before = threadMilliseconds();
    let count = 0;
    let taken = 0;
    for (; taken < MEASURED_MILLISECONDS_MIN; taken = threadMilliseconds() - before, count++) work();
    least = Math.min(least, taken / count);
  }
  return least;
}

/** The possible error of one measurement, in milliseconds. */
const NOISE = 20;

/**
 * Returns whether work that takes `short` ms at an eighth of a length and `long` ms at the whole grows in proportion: by a
 * factor of 8, and not of 64. A bound of three times the factor holds on a slow machine and on a busy one, whose threads share
 * a core's units.
 */
export const isInProportion = (short: number, long: number): boolean => long <= 24 * short + NOISE;

/** Returns whether some work takes no longer than the noise of one measurement, whatever a kernel's ticks hide of it. */
function isNoise(work: () => unknown): boolean {
  const before = threadMilliseconds();
  work();
  return threadMilliseconds() - before <= NOISE / 2;
}

/** Asserts that some work on an input grows in proportion to its length. `length` is the longest input that can occur. */
export function assertLinear(name: string, length: number, work: (length: number) => () => unknown): void {
  const whole = work(length);
  if (isNoise(whole)) return; // It is in proportion, however short the work at an eighth is.
  const short = cpuOf(work(Math.ceil(length / 8)));
  const long = cpuOf(whole);
  assert(
    isInProportion(short, long),
    `${name}: ${short.toFixed(1)} ms at an eighth, ${long.toFixed(1)} ms at the whole`,
  );
}

/**
 * Asserts that some work takes at most `factor` times as long as the same work on an honest input of the same length, measured
 * beside it: for work that grows with the length, by a constant that an input may raise.
 */
export function assertWithin(name: string, factor: number, work: () => unknown, honest: () => unknown): void {
  const usual = cpuOf(honest);
  const worst = cpuOf(work);
  assert(
    worst <= factor * usual + NOISE,
    `${name}: ${worst.toFixed(1)} ms, where an honest input takes ${usual.toFixed(1)} ms`,
  );
}
