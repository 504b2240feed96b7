import { Refusal } from '../refusal.ts';

/** So many callers are remembered; beyond it those that have been silent longest are forgotten first. */
const CALLER_COUNT_MAX = 100_000;
const MINUTE_MILLISECONDS = 60_000;
/** An interval need not be whole: whoever comes at the second that Retry-After named is let through all the same. */
const ROUNDING_MILLISECONDS = 1e-3;

/** A limit per caller: a bucket of one minute's worth that refills steadily. 0 a minute means no limit. */
export type Limit = {
  /** Takes one from the caller's bucket. Refuses with `rate_limited` and the seconds until there is one again. */
  take(caller: string): void;
  /** Refuses like `take` when the caller's bucket is empty, and takes nothing. */
  check(caller: string): void;
  /** Takes one that has happened already, however empty the bucket is: what is owed is waited for. */
  count(caller: string): void;
  /** What is left in the caller's bucket; undefined where there is no limit. */
  left(caller: string): Left | undefined;
};
export type Left = { limit: number; remaining: number; fullInSeconds: number };

/** `milliseconds` is a monotonic clock; `what` is counted, as the refusal names it. */
export function createLimit(perMinute: number, milliseconds: () => number, what = 'requests'): Limit {
  if (perMinute === 0) return { take() {}, check() {}, count() {}, left: () => undefined };
  const interval = MINUTE_MILLISECONDS / perMinute;
  // When each caller's bucket will be full again. What is refused leaves it as it was, so no rounding adds up.
  const fullAt = new Map<string, number>();
  const owed = (caller: string) => Math.max(0, (fullAt.get(caller) ?? 0) - milliseconds());
  function set(caller: string, milliseconds: number) {
    fullAt.delete(caller); // Deleted and set again, the map stays in the order of last use.
    fullAt.set(caller, milliseconds);
    if (fullAt.size > CALLER_COUNT_MAX) fullAt.delete(fullAt.keys().next().value as string);
  }
  const add = (caller: string) => set(caller, Math.max(fullAt.get(caller) ?? 0, milliseconds()) + interval);
  function check(caller: string) {
    const wait = owed(caller) + interval - MINUTE_MILLISECONDS;
    if (wait <= ROUNDING_MILLISECONDS) return;
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
    left(caller) {
      const wait = owed(caller);
      const remaining = Math.max(0, Math.floor((MINUTE_MILLISECONDS - wait) / interval + ROUNDING_MILLISECONDS));
      return { limit: perMinute, remaining, fullInSeconds: Math.ceil(wait / 1000) };
    },
  };
}
