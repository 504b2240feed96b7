import assert from 'node:assert/strict';
import test from 'node:test';
import { dayOf, startsBetween } from '../../src/base/calendar.ts';

const at = (text: string) => Date.parse(text) / 1000;
const iso = (seconds: number) => new Date(seconds * 1000).toISOString().slice(0, 16);

test('a day with a change of the clock has 23 or 25 hours, and half an hour beside UTC moves each', () => {
  const hours = (date: string, zone: string) => {
    const { start, next } = dayOf(date, zone) as { start: number; next: number };
    return startsBetween('hour', zone, start, next);
  };
  assert.equal(hours('2026-03-29', 'Europe/Berlin').length, 23);
  assert.equal(hours('2026-10-25', 'Europe/Berlin').length, 25);
  assert.equal(iso(hours('2026-03-29', 'Asia/Kolkata')[1] as number), '2026-03-28T19:30');
});

test('the first period contains the first time, and the last begins before the end', () => {
  const starts = (every: 'hour' | 'day' | 'week' | 'month', from: string, to: string) =>
    startsBetween(every, 'UTC', at(from), at(to)).map(iso);
  assert.deepEqual(starts('hour', '2026-03-30T22:30Z', '2026-03-31T01:00Z'), [
    ...['2026-03-30T22:00', '2026-03-30T23:00', '2026-03-31T00:00'],
  ]);
  assert.deepEqual(starts('day', '2026-03-30T12:00Z', '2026-04-01T00:00Z'), ['2026-03-30T00:00', '2026-03-31T00:00']);
  assert.deepEqual(starts('week', '2026-03-25T12:00Z', '2026-04-01T00:00Z'), ['2026-03-23T00:00', '2026-03-30T00:00']);
  assert.deepEqual(starts('month', '2026-01-31T12:00Z', '2026-03-01T00:00Z'), ['2026-01-01T00:00', '2026-02-01T00:00']);
});

test('a date that no calendar has is no day', () => {
  for (const date of ['2026-02-30', '2026-13-01', '1999-12-31', '2100-01-01', '1970-01-01', '2026-3-1', 'today'])
    assert.equal(dayOf(date, 'UTC'), undefined, date);
  assert.equal(dayOf('2024-02-29', 'UTC')?.date, '2024-02-29');
  const [first, last] = [dayOf('2000-01-01', 'Europe/Berlin'), dayOf('2099-12-31', 'Europe/Berlin')];
  assert.equal(startsBetween('month', 'Europe/Berlin', first?.start as number, last?.next as number).length, 1200);
});
