import { dayOf, type Period, periodAt } from '../base/calendar.ts';
import { Refusal } from '../base/refusal.ts';

const HOUR = 3600;
const DAY = 86_400;

export type TimeSpan = { since: number; until: number };
type Range = { text: string; spanAt: (now: number, zone: string) => TimeSpan };
/** A time that was chosen: a name of `RANGES`, which is empty for two days, and how it is written. */
type ChosenSpan = TimeSpan & { range: string; text: string };

const last = (text: string, seconds: number): Range => ({
  text,
  spanAt: (now) => ({ since: now - seconds, until: now + 1 }),
});
const current = (text: string, every: Period): Range => ({
  text,
  spanAt: (now, zone) => ({ since: periodAt(every, zone, now).start, until: now + 1 }),
});
const previous = (text: string, every: Period): Range => ({
  text,
  spanAt(now, zone) {
    const until = periodAt(every, zone, now).start;
    return { since: periodAt(every, zone, until - 1).start, until };
  },
});

/** The times that can be chosen by name. */
export const RANGES: Readonly<Record<string, Range>> = {
  '1h': last('the last hour', HOUR),
  today: current('today', 'day'),
  yesterday: previous('yesterday', 'day'),
  '1d': last('the last 24 hours', DAY),
  '7d': last('the last 7 days', 7 * DAY),
  '30d': last('the last 30 days', 30 * DAY),
  '90d': last('the last 90 days', 90 * DAY),
  month: current('this month', 'month'),
  'last-month': previous('last month', 'month'),
};

/** Returns the time of a name of `RANGES`. */
export function spanNamed(range: string, zone: string, now: number): ChosenSpan {
  const { text, spanAt } = RANGES[range] as Range;
  return { ...spanAt(now, zone), range, text };
}

/**
 * Returns the time that the query of a page chooses: `from` and `to`, the last day included, or else the name `range`. Undefined
 * where it chooses none. Throws `invalid_request`.
 */
export function spanIn(query: URLSearchParams, zone: string, now: number): ChosenSpan | undefined {
  const [from, to, range] = ['from', 'to', 'range'].map((name) => query.get(name)?.trim() || undefined);
  if (from === undefined && to === undefined)
    return range !== undefined && Object.hasOwn(RANGES, range) ? spanNamed(range, zone, now) : undefined;
  const today = periodAt('day', zone, now);
  const [first, end] = [from === undefined ? undefined : dayOf(from, zone), to === undefined ? today : dayOf(to, zone)];
  if ((from !== undefined && !first) || !end)
    throw new Refusal('invalid_request', 'Write the first and the last day as 2026-03-31, from 2000 to 2099.');
  const since = (first ?? end).start;
  if (since >= end.next) throw new Refusal('invalid_request', 'The first day is after the last one.');
  return { since, until: end.next, range: '', text: `${(first ?? end).date} to ${end.date}` };
}
