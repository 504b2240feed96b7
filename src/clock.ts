import type { Log } from './log.ts';

/** A wall clock that runs ahead by more than this is not believed at once (design, section 6). */
const FORWARD_JUMP_SECONDS = 5 * 60;
/** So long a jump has to last before it is taken for the time. */
const QUARANTINE_SECONDS = 5 * 60;
/** A wall clock that is set back by more than this stops new holds until it has come to the same time again. */
const BACKWARD_JUMP_SECONDS = 60;

export type Clock = {
  /** Unix seconds, whole, never going back. */
  now(): number;
  /** Why nothing new may be held at the moment, or undefined. */
  holdsBlocked(): string | undefined;
  /** Whether expiry and destroying wait because the wall clock has just leapt forward. */
  expiryBlocked(): boolean;
};

export type TimeSource = {
  /** Milliseconds of the wall clock since 1970. */
  wall(): number;
  /** Milliseconds that only ever grow. */
  monotonic(): number;
};

export const systemTime: TimeSource = { wall: () => Date.now(), monotonic: () => performance.now() };

/**
 * The time rule of design section 6. `now` is the larger of the last journal time and the wall clock at the start, plus
 * monotonic time since; the wall clock moves it forward only. A leap forward is held in quarantine: until it has lasted
 * five minutes, `now` goes on as if it had not happened, nothing new is held and nothing expires. After a leap back
 * `now` goes on too, and stays ahead of the wall clock; nothing new is held until the wall clock has been there before.
 */
export function createClock(time: TimeSource, lastJournalAt: number, log: Pick<Log, 'warn'>): Clock {
  let anchor = { at: Math.max(lastJournalAt, time.wall() / 1000), monotonic: time.monotonic() };
  let leaptAt: number | undefined; // monotonic milliseconds
  let behindUntil: number | undefined; // the time that the wall clock showed before it was set back
  let behindSeconds = 0; // by how much the wall clock is behind for good

  function read(): number {
    const monotonic = time.monotonic();
    const wall = time.wall() / 1000;
    const at = anchor.at + Math.max(0, monotonic - anchor.monotonic) / 1000;
    const drift = wall - at;

    if (drift > FORWARD_JUMP_SECONDS) {
      if (leaptAt === undefined) {
        leaptAt = monotonic;
        log.warn({ event: 'clock.forward', seconds: Math.round(drift) }, 'the wall clock leapt forward; holds wait');
      }
      if (monotonic - leaptAt < QUARANTINE_SECONDS * 1000) return at;
    }
    leaptAt = undefined;
    const behind = Math.max(0, -drift);
    if (behind <= behindSeconds + BACKWARD_JUMP_SECONDS) {
      behindUntil = undefined;
      behindSeconds = Math.min(behindSeconds, behind);
    } else if (behindUntil === undefined) {
      behindUntil = at;
      log.warn({ event: 'clock.backward', seconds: Math.round(behind) }, 'the wall clock is behind; holds wait');
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
      if (leaptAt !== undefined) return 'the clock of this machine has just leapt forward by more than five minutes';
      if (behindUntil !== undefined) return 'the clock of this machine is behind the time of the last journal entry';
      return undefined;
    },
    expiryBlocked() {
      read();
      return leaptAt !== undefined;
    },
  };
}
