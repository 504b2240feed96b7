import type { Log } from './log.ts';

/** A forward jump of the wall clock by more than this is quarantined (design, section 6). */
const FORWARD_JUMP_SECONDS = 5 * 60;
/** How long a forward jump must last before it is accepted as the time. */
const QUARANTINE_SECONDS = 5 * 60;
/** A backward jump of the wall clock by more than this blocks new holds until it has caught up. */
const BACKWARD_JUMP_SECONDS = 60;

export type Clock = {
  /** Returns whole Unix seconds; never goes back. */
  now(): number;
  /** Returns why new holds are blocked at the moment, or undefined. */
  holdsBlocked(): string | undefined;
  /** Returns whether expiry and destruction wait because the wall clock has just jumped forward. */
  expiryBlocked(): boolean;
};

export type TimeSource = {
  /** Milliseconds of the wall clock since 1970. */
  wall(): number;
  /** Milliseconds of a clock that only moves forward. */
  monotonic(): number;
};

export const systemTime: TimeSource = { wall: () => Date.now(), monotonic: () => performance.now() };

/**
 * Creates the clock by the time rule of design, section 6. `now` is the later of the last journal time and the wall
 * clock at the start, plus monotonic time since; the wall clock only moves it forward. A forward jump is quarantined:
 * until it has lasted five minutes, `now` continues as if it had not happened, and there are no new holds and no
 * expiry. After a backward jump `now` continues too, ahead of the wall clock, and there are no new holds until the wall
 * clock has caught up.
 */
export function createClock(time: TimeSource, lastJournalAt: number, log: Pick<Log, 'warn'>): Clock {
  let anchor = { at: Math.max(lastJournalAt, time.wall() / 1000), monotonic: time.monotonic() };
  let jumpedAt: number | undefined; // Monotonic milliseconds.
  let behindUntil: number | undefined; // The wall-clock time at which the clock was set back.
  let behindSeconds = 0; // The lag of the wall clock that has been accepted as permanent.

  function read(): number {
    const monotonic = time.monotonic();
    const wall = time.wall() / 1000;
    const at = anchor.at + Math.max(0, monotonic - anchor.monotonic) / 1000;
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
    holdsBlocked() {
      read();
      if (jumpedAt !== undefined) return 'the clock of this machine has just jumped forward by more than five minutes';
      if (behindUntil !== undefined) return 'the clock of this machine is behind the time of the last journal entry';
      return undefined;
    },
    expiryBlocked() {
      read();
      return jumpedAt !== undefined;
    },
  };
}
