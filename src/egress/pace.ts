const MINUTE_MILLISECONDS = 60_000;

/** Creates a function that returns whether one more may begin: `perMinute` at once, and as many in each minute after. */
export function createPace(perMinute: number, milliseconds = () => performance.now()): () => boolean {
  const interval = MINUTE_MILLISECONDS / perMinute;
  let fullAt = 0;
  return () => {
    const now = milliseconds();
    const next = Math.max(fullAt, now) + interval;
    // The sum of many intervals is not exact.
    if (next - now > MINUTE_MILLISECONDS + interval / 2) return false;
    fullAt = next;
    return true;
  };
}
