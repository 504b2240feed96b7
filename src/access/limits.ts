import { Refusal } from '../refusal.ts';

/** So many callers are remembered; beyond it those that have been silent longest are forgotten first. */
const CALLER_COUNT_MAX = 100_000;
const MINUTE_MILLISECONDS = 60_000;

/** A limit per caller: a bucket of one minute's worth that refills steadily. 0 a minute means no limit. */
export type Limit = {
  /** Takes one from the caller's bucket. Refuses with `rate_limited` and the seconds until there is one again. */
  take(caller: string): void;
};

/** `milliseconds` is a monotonic clock. */
export function createLimit(perMinute: number, milliseconds: () => number): Limit {
  if (perMinute === 0) return { take() {} };
  const buckets = new Map<string, { left: number; at: number }>();
  return {
    take(caller) {
      const at = milliseconds();
      const before = buckets.get(caller);
      const refilled = before ? before.left + ((at - before.at) / MINUTE_MILLISECONDS) * perMinute : perMinute;
      const left = Math.min(perMinute, refilled);
      buckets.delete(caller); // Deleted and set again, the map stays in the order of last use.
      buckets.set(caller, { left: left >= 1 ? left - 1 : left, at });
      if (buckets.size > CALLER_COUNT_MAX) buckets.delete(buckets.keys().next().value as string);
      if (left >= 1) return;
      const wait = Math.ceil(((1 - left) / perMinute) * 60);
      throw new Refusal('rate_limited', `More than ${perMinute} requests in a minute. Retry in ${wait} s.`, {
        retryAfterSeconds: wait,
      });
    },
  };
}
