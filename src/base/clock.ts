import { readFileSync } from 'node:fs';
import { uptime } from 'node:os';
import type { Log } from './log.ts';

/**
 * A forward jump of the wall clock by more than this is quarantined (design, section 6). Time services correct less, and a clock
 * without one drifts less in weeks. At a start it bounds both directions.
 */
const FORWARD_JUMP_SECONDS = 5 * 60;
/** Seconds that a forward jump must last before it is accepted as the time. */
const QUARANTINE_SECONDS = 5 * 60;
/** A backward jump of the wall clock by more than this blocks new holds until it has caught up. */
const BACKWARD_JUMP_SECONDS = 60;
/**
 * The longest downtime across a boot of the machine that is believed without a time service: it cannot be distinguished from a
 * clock that is ahead by as much. Longer than a weekend or a week of holidays.
 */
const DOWNTIME_SECONDS_MAX = 7 * 86_400;

/** A boot of the machine: its id where the kernel shows it, and the seconds since, suspension included. */
export type Boot = { id: string | null; seconds: number };

/** The time at which the books were last served: the wall clock, in Unix seconds, and the boot of the machine. */
export type Sighting = { at: number; boot: Boot | null };

/** The times that the books contain when they are opened. */
export type KnownTime = {
  /** The newest time in the books, in Unix seconds; 0 in empty ones. */
  at: number;
  sighting?: Sighting | undefined;
};

/** A difference between the wall clock and the books at a start that the downtime does not explain. */
export type Leap = { direction: 'ahead' | 'behind'; seconds: number };

export type Clock = {
  /** Returns whole Unix seconds; never goes back. */
  now(): number;
  /** Returns the part of the present second that is over, from 0 to 1. */
  fraction(): number;
  /** Returns why new holds are blocked at the moment, or undefined. */
  holdsBlocked(): string | undefined;
  /** Returns whether expiry and destruction wait because the wall clock has just jumped forward, or is in doubt. */
  expiryBlocked(): boolean;
  /** Returns the leap for which the clock has been in doubt since the start; undefined when it is believed. */
  doubt(): Leap | undefined;
  /** Ends the doubt: the wall clock is the time. */
  believe(): void;
};

export type TimeSource = {
  /** Milliseconds of the wall clock since 1970. */
  wall(): number;
  /** Milliseconds of a clock that only moves forward. */
  monotonic(): number;
  /** The boot of the machine; undefined where it is not known. */
  boot?(): Boot;
};

export const systemTime: TimeSource = {
  wall: () => Date.now(),
  monotonic: () => performance.now(),
  boot: () => ({ id: readBootId(), seconds: uptime() }),
};

/** Returns the kernel's id of this boot, or null where systemd's `ProcSubset=pid` hides it. */
function readBootId(): string | null {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    return null;
  }
}

/**
 * Returns the leap between the books and a wall clock (Unix seconds), or undefined where the downtime explains it. Within one boot
 * of the machine its length is known. Across boots every downtime up to a week is believed. Books without a sighting do not record
 * when they were last served: those of a new or restored database.
 */
export function findLeap(wall: number, { at, sighting }: KnownTime, boot: Boot | undefined): Leap | undefined {
  if (at === 0) return undefined;
  if (at - wall > FORWARD_JUMP_SECONDS) return { direction: 'behind', seconds: Math.round(at - wall) };
  if (!sighting) return undefined;
  const expected = expectedTime(sighting, boot);
  const ahead = wall - Math.max(at, expected ?? 0);
  const isExplained = ahead <= (expected === undefined ? DOWNTIME_SECONDS_MAX : FORWARD_JUMP_SECONDS);
  return isExplained ? undefined : { direction: 'ahead', seconds: Math.round(ahead) };
}

/** Returns the expected time (Unix seconds) if the machine has not been booted since the sighting; else undefined. */
function expectedTime(sighting: Sighting, boot: Boot | undefined): number | undefined {
  if (!boot || !sighting.boot || boot.id !== sighting.boot.id || boot.seconds < sighting.boot.seconds) return undefined;
  return sighting.at + boot.seconds - sighting.boot.seconds;
}

/** Describes the leap, and what ends the doubt. */
export function describeLeap({ direction, seconds }: Leap): string {
  const [unit, length] = seconds >= 2 * 86_400 ? ['days', 86_400] : seconds >= 7200 ? ['hours', 3600] : ['minutes', 60];
  const many = `${Math.round(seconds / (length as number))} ${unit}`;
  const leap =
    direction === 'ahead'
      ? `${many} ahead of the time that these books expect`
      : `${many} behind the newest time in these books`;
  return `the clock of this machine is ${leap}, and no time service vouches for it: nothing expires and nothing new is held until it is synchronized, set right, or accepted with \`purser serve --accept-clock\``;
}

const JUMPED_FORWARD = 'the clock of this machine has just jumped forward by more than five minutes';
const BEHIND =
  'the clock of this machine is more than a minute behind the time that these books expect: set it right, or wait until it has caught up';

/** Returns the time at which the clock starts, in Unix seconds. */
function startingTime(time: TimeSource, known: KnownTime, doubt: Leap | undefined): number {
  const wall = time.wall() / 1000;
  if (doubt?.direction === 'behind') return wall;
  if (!doubt) return Math.max(known.at, wall);
  return Math.max(known.at, (known.sighting && expectedTime(known.sighting, time.boot?.())) ?? 0);
}

/**
 * Creates the clock by the time rule of design, section 6. `now` is the later of the newest time in the books and the wall clock at
 * the start, plus monotonic time since; the wall clock only moves it forward. A forward jump is quarantined: until it has lasted
 * five minutes, `now` continues as if it had not happened, and there are no new holds and no expiry. After a backward jump `now`
 * continues too, ahead of the wall clock, and there are no new holds until the wall clock has caught up.
 *
 * A leap since the books were last served puts the clock in doubt, until it is believed or the clock has been set right. While in
 * doubt there are no new holds and no expiry, and `now` is the earlier of the two times, so that no record lies in the future.
 */
export function createClock(time: TimeSource, known: KnownTime, log: Pick<Log, 'warn' | 'info'>): Clock {
  const seconds = () => time.wall() / 1000;
  let doubt = findLeap(seconds(), known, time.boot?.());
  let anchor = { at: startingTime(time, known, doubt), monotonic: time.monotonic() };
  let jumpedAt: number | undefined; // Monotonic milliseconds.
  let behindUntil: number | undefined; // The wall-clock time at which the clock was set back.
  let behindSeconds = 0; // The lag of the wall clock that has been accepted as permanent.

  /** Returns the time while the clock is in doubt; ends the doubt once the wall clock has been set right. */
  function readDoubted(at: number): number {
    const wall = seconds();
    doubt = findLeap(wall, known, time.boot?.());
    if (!doubt) {
      log.info({ event: 'clock.set_right' }, 'the wall clock was set right; holds and expiry go on');
      anchor = { at: Math.max(at, wall, known.at), monotonic: time.monotonic() };
      return anchor.at;
    }
    if (doubt.direction === 'ahead' || wall <= at) return at;
    anchor = { at: wall, monotonic: time.monotonic() };
    return wall;
  }

  function read(): number {
    const monotonic = time.monotonic();
    const wall = seconds();
    const at = anchor.at + Math.max(0, monotonic - anchor.monotonic) / 1000;
    if (doubt) return readDoubted(at);
    const drift = wall - at;

    if (drift > FORWARD_JUMP_SECONDS) {
      if (jumpedAt === undefined) {
        jumpedAt = monotonic;
        log.warn(
          { event: 'clock.forward', seconds: Math.round(drift) },
          'the wall clock jumped forward; new holds wait',
        );
      }
      if (monotonic - jumpedAt < QUARANTINE_SECONDS * 1000) return at;
    }
    jumpedAt = undefined;
    const behind = Math.max(0, -drift);
    if (behind <= behindSeconds + BACKWARD_JUMP_SECONDS) {
      behindUntil = undefined;
      behindSeconds = Math.min(behindSeconds, behind);
    } else if (behindUntil === undefined) {
      behindUntil = at;
      log.warn({ event: 'clock.backward', seconds: Math.round(behind) }, 'the wall clock is behind; new holds wait');
    } else if (wall >= behindUntil) {
      behindUntil = undefined;
      behindSeconds = behind;
    }
    if (drift <= 0) return at;
    anchor = { at: wall, monotonic };
    return wall;
  }

  return {
    now: () => Math.floor(read()),
    fraction: () => read() % 1,
    holdsBlocked() {
      read();
      if (doubt) return describeLeap(doubt);
      if (jumpedAt !== undefined) return JUMPED_FORWARD;
      return behindUntil === undefined ? undefined : BEHIND;
    },
    expiryBlocked() {
      read();
      return jumpedAt !== undefined || doubt !== undefined;
    },
    doubt() {
      read();
      return doubt;
    },
    believe() {
      anchor = { at: Math.max(read(), seconds()), monotonic: time.monotonic() };
      doubt = undefined;
    },
  };
}
