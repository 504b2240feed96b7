import { randomInt } from 'node:crypto';

/** The seed of this run: printed in the titles, and taken from PURSER_TEST_SEED to walk the same way again. */
export const SEED = Number(process.env.PURSER_TEST_SEED ?? randomInt(2 ** 31));
/** A longer walk, for a night: PURSER_TEST_STEPS. */
export const steps = (usual: number) => Number(process.env.PURSER_TEST_STEPS ?? usual);

export type Random = {
  /** A whole number from `least` to `most`. */
  whole(min: number, max: number): number;
  pick<T>(from: readonly T[]): T;
  /** One of the names, by weight. */
  weighted<K extends string>(weights: Record<K, number>): K;
};

/** Mulberry32: small, good enough to walk by, and the same on every machine. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  function next(): number {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  }
  const random: Random = {
    whole: (min, max) => min + Math.floor(next() * (max - min + 1)),
    pick: (from) => from[random.whole(0, from.length - 1)] as never,
    weighted(weights) {
      const names = Object.keys(weights) as (keyof typeof weights)[];
      let left = next() * names.reduce((total, name) => total + weights[name], 0);
      for (const name of names) {
        left -= weights[name];
        if (left < 0) return name;
      }
      return names[0] as never;
    },
  };
  return random;
}
