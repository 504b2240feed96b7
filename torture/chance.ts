import { randomFrom } from '../test/helper/random.ts';

/** A random source that follows from a seed. */
export type Chance = {
  /** Returns a number in [0, 1). */
  next(): number;
  /** Returns true with this probability. */
  of(probability: number): boolean;
  between(min: number, max: number): number;
  whole(min: number, max: number): number;
  pick<T>(items: readonly T[]): T;
  /** Picks a name with the probability of its weight. */
  weighed<K extends string>(weights: Readonly<Record<K, number>>): K;
  /** Returns an independent source: how often this one is used does not affect it. */
  apart(name: string): Chance;
};

export function chanceFrom(seed: number): Chance {
  const next = randomFrom(seed);
  const chance: Chance = {
    next,
    of: (probability) => next() < probability,
    between: (min, max) => min + next() * (max - min),
    whole: (min, max) => Math.floor(min + next() * (max - min + 1)),
    pick: <T>(items: readonly T[]) => items[Math.floor(next() * items.length)] as T,
    weighed<K extends string>(weights: Readonly<Record<K, number>>) {
      const all = Object.entries<number>(weights);
      let left = next() * all.reduce((sum, [, weight]) => sum + weight, 0);
      for (const [name, weight] of all) {
        left -= weight;
        if (left < 0) return name as K;
      }
      return all[0]?.[0] as K;
    },
    apart: (name) => chanceFrom([...name].reduce((hash, it) => Math.imul(hash ^ it.charCodeAt(0), 0x01000193), seed)),
  };
  return chance;
}
