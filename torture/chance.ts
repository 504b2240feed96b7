import { randomFrom } from '../test/executable/random.ts';

/** Chance that follows from a seed. */
export type Chance = {
  /** In [0, 1). */
  next(): number;
  /** True so often. */
  of(probability: number): boolean;
  between(least: number, most: number): number;
  whole(least: number, most: number): number;
  pick<T>(items: readonly T[]): T;
  /** One of the names, each as often as its weight says. */
  weighed<K extends string>(weights: Readonly<Record<K, number>>): K;
  /** A generator of its own, which is not disturbed by how often this one is asked. */
  apart(name: string): Chance;
};

export function chanceFrom(seed: number): Chance {
  const next = randomFrom(seed);
  const chance: Chance = {
    next,
    of: (probability) => next() < probability,
    between: (least, most) => least + next() * (most - least),
    whole: (least, most) => Math.floor(least + next() * (most - least + 1)),
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
