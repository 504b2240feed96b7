import { Temporal } from 'temporal-polyfill';

export const PERIODS = ['day', 'week', 'month'] as const;
export type Period = (typeof PERIODS)[number];

/** A day, week or month of a time zone: its first local date, and where it and the next one begin, in Unix seconds. */
type CalendarSpan = { date: string; start: number; next: number };

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
