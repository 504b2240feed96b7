import { randomInt } from 'node:crypto';

/** Set by `npm run test:soak`: random tests draw their seed and run at their whole length. */
const IS_SOAK = process.env.PURSER_TEST_SOAK === '1';

/** The seed when none is drawn: `npm test` and `npm run test:engines` do the same in each run. */
const FIXED_SEED = 20261126;

/** The seed of this run, for the titles of random tests. PURSER_TEST_SEED gives one, to repeat a run. */
export const SEED = Number(process.env.PURSER_TEST_SEED ?? (IS_SOAK ? randomInt(2 ** 31) : FIXED_SEED));

/** The factor of all lengths, for example 10 for a whole night. */
const LENGTH = Number(process.env.PURSER_TEST_LENGTH ?? 1);

/** The length of a walk or a list: `gate` in `npm test`, `soak` in `npm run test:soak`, times PURSER_TEST_LENGTH. */
export const length = (gate: number, soak: number) => Math.max(1, Math.round((IS_SOAK ? soak : gate) * LENGTH));

export type Random = {
  /** A whole number from `min` to `max`. */
  whole(min: number, max: number): number;
  pick<T>(from: readonly T[]): T;
  /** One of the names, by weight. */
  weighted<K extends string>(weights: Record<K, number>): K;
};

/** Numbers in [0, 1) that follow from a seed (mulberry32): small, and the same on every machine. */
export function randomFrom(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Choices that follow from a seed. */
export function createRandom(seed: number): Random {
  const next = randomFrom(seed);
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
