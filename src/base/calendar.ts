import { Temporal } from 'temporal-polyfill';

const HOUR = 3600;

export const PERIODS = ['day', 'week', 'month'] as const;
export type Period = (typeof PERIODS)[number];

/** A day, week or month of a time zone: its first local date, and where it and the next one begin, in Unix seconds. */
export type CalendarSpan = { date: string; start: number; next: number };

/**
 * Returns the period that `at` (Unix seconds) falls in. Weeks begin on Monday. A day begins at its first moment in the
 * zone, which is not midnight where the clocks skip that. Throws RangeError for an unknown zone.
 */
export function periodAt(every: Period, zone: string, at: number): CalendarSpan {
  const day = Temporal.Instant.fromEpochMilliseconds(at * 1000)
    .toZonedDateTimeISO(zone)
    .toPlainDate();
  const first = { day, week: day.subtract({ days: day.dayOfWeek - 1 }), month: day.with({ day: 1 }) }[every];
  const next = first.add({ [`${every}s`]: 1 });
  const startOf = (date: Temporal.PlainDate) => Math.floor(date.toZonedDateTime(zone).epochMilliseconds / 1000);
  return { date: first.toString(), start: startOf(first), next: startOf(next) };
}

/**
 * Returns the day of a date such as "2026-03-31" in a zone; undefined for no such date from 2000 to 2099: a picture of a thousand
 * years has a bar for each month, which would take half a second.
 */
export function dayOf(date: string, zone: string): CalendarSpan | undefined {
  if (!/^20\d\d-\d\d-\d\d$/.test(date)) return undefined;
  try {
    const start = Temporal.PlainDate.from(date, { overflow: 'reject' }).toZonedDateTime(zone).epochMilliseconds / 1000;
    return periodAt('day', zone, Math.floor(start));
  } catch {
    return undefined;
  }
}

/**
 * Returns where the hours or periods of a zone begin that lie between two times (Unix seconds), the one that contains `since`
 * first. An hour begins at a multiple of 3,600 seconds after its day does.
 */
export function startsBetween(every: 'hour' | Period, zone: string, since: number, until: number): number[] {
  const starts: number[] = [];
  for (let at = since; at < until; ) {
    const { start, next } = periodAt(every === 'hour' ? 'day' : every, zone, at);
    if (every !== 'hour') starts.push(start);
    else for (let hour = start; hour < Math.min(next, until); hour += HOUR) if (hour + HOUR > since) starts.push(hour);
    at = next;
  }
  return starts;
}

/** Returns whether a name is that of a time zone whose periods are known, such as "Europe/Berlin" or "UTC". */
export function isZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone: name });
    periodAt('day', name, 0); // Throws for ICU's old names, such as CST, which may mean several zones.
    return true;
  } catch {
    return false;
  }
}
