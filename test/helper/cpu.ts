import assert from 'node:assert/strict';

/** Returns the CPU time of this thread in milliseconds: what other processes do beside it does not count. */
export function threadMilliseconds(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
}

/** Some kernels count processor time in ticks of 10 ms: less than a few of them is repeated. */
const MEASURED_MILLISECONDS_MIN = 40;

/** Returns the CPU time in milliseconds that some work takes: the least of several times, as caches and collections only add to it. */
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

/** What one measurement may be off by, in milliseconds. */
const NOISE = 20;

/**
 * Returns whether what takes `short` ms at an eighth of a length and `long` at the whole grows with it: eight times as long, and not
 * 64. Three times the one holds on a slow machine and on a busy one, whose threads share a core's units.
 */
export const isInProportion = (short: number, long: number): boolean => long <= 24 * short + NOISE;

/** Asserts that some work on an input grows with its length. `length` is the longest input that there may be. */
export function assertLinear(name: string, length: number, work: (length: number) => () => unknown): void {
  const short = cpuOf(work(Math.ceil(length / 8)));
  const long = cpuOf(work(length));
  assert(
    isInProportion(short, long),
    `${name}: ${short.toFixed(1)} ms at an eighth, ${long.toFixed(1)} ms at the whole`,
  );
}

/**
 * Asserts that some work takes at most `factor` times as long as the same on an honest input of the same length, measured beside it:
 * for what grows with the length, and has a constant that an input may raise.
 */
export function assertWithin(name: string, factor: number, work: () => unknown, honest: () => unknown): void {
  const usual = cpuOf(honest);
  const worst = cpuOf(work);
  assert(
    worst <= factor * usual + NOISE,
    `${name}: ${worst.toFixed(1)} ms, where an honest input takes ${usual.toFixed(1)} ms`,
  );
}
