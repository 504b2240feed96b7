import type { Reader } from '../db/handle.ts';
import { type Keep, keepOf } from '../ledger/keep.ts';
import { findResource, type Resource } from '../ledger/resource.ts';

/** A step is decided this long before the end of the paid time: the call to the backend takes a moment. */
const LEAD_SECONDS = 60;
/** The longest time over which processor time is measured before a step: older work is no reason to keep a machine. */
const WINDOW_SECONDS_MAX = 300;

/** Returns when the measurement for the next step begins, and when that step is decided, in Unix seconds. */
export function momentsOf(
  { extendSeconds }: Keep,
  { expiresAt }: Pick<Resource, 'expiresAt'>,
): { measureAt: number; decideAt: number } {
  const decideAt = expiresAt - LEAD_SECONDS;
  return { decideAt, measureAt: decideAt - Math.min(extendSeconds, WINDOW_SECONDS_MAX) };
}

/**
 * Returns whether what runs in a machine from `now` on, for at most `seconds`, falls into the processor time that decides on the next
 * step of its keep.
 */
export function isMeasured(
  read: Reader,
  resourceId: string,
  { now, seconds }: { now: number; seconds: number },
): boolean {
  const keep = keepOf(read, resourceId);
  const row = keep && keep.endedAt === null ? findResource(read, resourceId) : undefined;
  return keep !== undefined && row !== undefined && now + seconds >= momentsOf(keep, row).measureAt;
}
