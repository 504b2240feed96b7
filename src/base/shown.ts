/** The display of states and lengths of time, at the terminal and on the page. */

/** The meaning of a state, which is shown as a colour. */
export type StateTone = 'good' | 'info' | 'warn' | 'bad' | 'quiet';

const TONES: Record<string, StateTone> = {
  active: 'good',
  running: 'good',
  charged: 'good',
  delivered: 'good',
  reserved: 'info',
  provisioning: 'info',
  waiting: 'info',
  closing: 'warn',
  stopping: 'warn',
  expired: 'warn',
  frozen: 'warn',
  suspended: 'warn',
  uncertain: 'bad',
  unknown: 'bad',
  unreachable: 'bad',
  failed: 'bad',
  given_up: 'bad',
  closed: 'quiet',
  stopped: 'quiet',
  settled: 'quiet',
  released: 'quiet',
};

/** Returns the tone of the name of a state; undefined for another word. */
export const toneOf = (state: string): StateTone | undefined => TONES[state];

const UNITS: [seconds: number, unit: string][] = [
  [86_400, 'd'],
  [3600, 'h'],
  [60, 'min'],
  [1, 's'],
];

/** Formats a length of time in seconds with at most `unitsMax` units: "2 d 3 h", "4 min". */
export function duration(seconds: number, unitsMax = 2): string {
  const parts: string[] = [];
  let rest = Math.max(0, Math.round(seconds));
  for (const [length, unit] of UNITS) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count || parts.length) parts.push(count ? `${count} ${unit}` : '');
    if (parts.length === unitsMax) break;
  }
  return parts.filter(Boolean).join(' ') || '0 s';
}

/** Formats a time against now, both in Unix seconds, with at most `unitsMax` units: "3 min ago", "in 23 h". */
export const relative = (at: number, now: number, unitsMax = 2): string =>
  at <= now ? `${duration(now - at, unitsMax)} ago` : `in ${duration(at - now, unitsMax)}`;
