import { Refusal, type RefusalData, refusedFrom } from './refusal.ts';

/** The most callers remembered; beyond it the least recently active are forgotten first. */
const CALLER_COUNT_MAX = 100_000;
const MINUTE_MILLISECONDS = 60_000;
/** Tolerance for fractional intervals, so that a client returning exactly at Retry-After is admitted. */
const ROUNDING_MILLISECONDS = 1e-3;

/** A rate limit per caller (GCRA): a bucket of one minute's worth that refills steadily. 0 per minute means no limit. */
export type Limit = {
  /** Takes one from the caller's bucket. Throws `rate_limited` with the seconds until the next is available. */
  take(caller: string): void;
  /** Takes one if the caller's bucket has one. Returns whether it did. */
  tryTake(caller: string): boolean;
  /** Throws like `take` when the caller's bucket is empty, but takes nothing. */
  check(caller: string): void;
  /** Counts something that has already happened, even with an empty bucket; the debt delays later calls. */
  count(caller: string): void;
  /** Returns what is left in the caller's bucket; undefined without a limit. */
  remainingOf(caller: string): Remaining | undefined;
};
type Remaining = { limit: number; remaining: number; fullInSeconds: number };

/** Returns the refusal of a limit as data, for a write to throw among its checks; undefined while there is none. */
export function refusalOfLimit(limit: Limit, caller: string): RefusalData | undefined {
  try {
    limit.check(caller);
    return undefined;
  } catch (error) {
    return refusedFrom(error);
  }
}

/** Creates a limit. `milliseconds` is a monotonic clock; `what` names the counted things in the refusal. */
export function createLimit(perMinute: number, milliseconds: () => number, what = 'requests'): Limit {
  if (perMinute === 0) return { take() {}, tryTake: () => true, check() {}, count() {}, remainingOf: () => undefined };
  const interval = MINUTE_MILLISECONDS / perMinute;
  // The time at which each caller's bucket will be full again. A refused call leaves it unchanged, so rounding errors do not add up.
  const fullAt = new Map<string, number>();
  const owed = (caller: string) => Math.max(0, (fullAt.get(caller) ?? 0) - milliseconds());
  function set(caller: string, milliseconds: number) {
    fullAt.delete(caller); // Deleting first keeps the map in order of last use.
    fullAt.set(caller, milliseconds);
    if (fullAt.size > CALLER_COUNT_MAX) fullAt.delete(fullAt.keys().next().value as string);
  }
  const add = (caller: string) => set(caller, Math.max(fullAt.get(caller) ?? 0, milliseconds()) + interval);
  /** Returns the milliseconds until the caller may take one; 0 if that is now. */
  function waitOf(caller: string): number {
    const wait = owed(caller) + interval - MINUTE_MILLISECONDS;
    return wait <= ROUNDING_MILLISECONDS ? 0 : wait;
  }
  function check(caller: string) {
    const wait = waitOf(caller);
    if (wait === 0) return;
    set(caller, fullAt.get(caller) as number);
    const seconds = Math.ceil((wait - ROUNDING_MILLISECONDS) / 1000);
    throw new Refusal('rate_limited', `More than ${perMinute} ${what} in a minute. Retry in ${seconds} s.`, {
      retryAfterSeconds: seconds,
    });
  }
  return {
    check,
    count: add,
    take(caller) {
      check(caller);
      add(caller);
    },
    tryTake(caller) {
      const isFree = waitOf(caller) === 0;
      if (isFree) add(caller);
      return isFree;
    },
    remainingOf(caller) {
      const wait = owed(caller);
      const remaining = Math.max(0, Math.floor((MINUTE_MILLISECONDS - wait) / interval + ROUNDING_MILLISECONDS));
      return { limit: perMinute, remaining, fullInSeconds: Math.ceil(wait / 1000) };
    },
  };
}
