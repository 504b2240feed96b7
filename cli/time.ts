import { systemTime } from '../src/base/clock.ts';
import { duration } from '../src/base/shown.ts';

/** Returns whether a member of a record is a time: Unix seconds, under a name that ends in `at`. */
export const isTime = (name: string, value: unknown): value is number =>
  /(^|_)at$/.test(name) && typeof value === 'number';

/** Formats Unix seconds as a readable UTC time; `-` when there is none. */
export function exact(at: number | null | undefined): string {
  return at == null ? '-' : new Date(at * 1000).toISOString().replace('T', ' ').replace('.000Z', 'Z');
}

const nowSeconds = () => Math.floor(systemTime.wall() / 1000);

/** Formats Unix seconds against now: "3 min ago", "in 23 h". */
export function relative(at: number, now = nowSeconds()): string {
  return at <= now ? `${duration(now - at, 1)} ago` : `in ${duration(at - now, 1)}`;
}

export const exactAndAgo = (at: number) => `${exact(at)} (${relative(at)})`;
