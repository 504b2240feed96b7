import { systemTime } from '../src/base/clock.ts';
import { relative } from '../src/base/shown.ts';

/** Returns whether a member of a record is a time: Unix seconds, under a name that ends in `at`. */
export const isTime = (name: string, value: unknown): value is number =>
  /(^|_)at$/.test(name) && typeof value === 'number';

/** Formats Unix seconds as a readable UTC time; `-` when there is none. */
export function exact(at: number | null | undefined): string {
  return at == null ? '-' : new Date(at * 1000).toISOString().replace('T', ' ').replace('.000Z', 'Z');
}

/** Formats Unix seconds against the clock of this machine: "3 min ago", "in 23 h". */
export const fromNow = (at: number): string => relative(at, Math.floor(systemTime.wall() / 1000), 1);

export const exactAndAgo = (at: number) => `${exact(at)} (${fromNow(at)})`;
