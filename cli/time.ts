import { systemTime } from '../src/clock.ts';

const SPANS: [unit: string, seconds: number][] = [
  ['d', 86_400],
  ['h', 3600],
  ['min', 60],
];

/** Returns whether a member of a record is a time: Unix seconds, under a name that ends in `at`. */
export const isTime = (name: string, value: unknown): value is number =>
  /(^|_)at$/.test(name) && typeof value === 'number';

/** A length of time in its largest unit: "3 min". */
export function span(seconds: number): string {
  const [unit, length] = SPANS.find(([, length]) => seconds >= length) ?? ['s', 1];
  return `${Math.floor(Math.max(0, seconds) / length)} ${unit}`;
}

/** Formats Unix seconds as a readable UTC time; `-` when there is none. */
export function exact(at: number | null | undefined): string {
  return at == null ? '-' : new Date(at * 1000).toISOString().replace('T', ' ').replace('.000Z', 'Z');
}

const nowSeconds = () => Math.floor(systemTime.wall() / 1000);

/** Formats Unix seconds against now: "3 min ago", "in 23 h". */
export function relative(at: number, now = nowSeconds()): string {
  return at <= now ? `${span(now - at)} ago` : `in ${span(at - now)}`;
}

export const exactAndAgo = (at: number) => `${exact(at)} (${relative(at)})`;
