/** The bytes that a snapshot may hold unpaid beyond its files: attributes, and parts of extents that later ones have covered. */
const UNCOUNTED_BYTES = 64 * 1024 ** 2;
/** A size that was found by trying is above the true one by at most this factor. */
const FACTOR = 9 / 8;

/**
 * Returns the bytes that a snapshot holds: `counted`, those of its files, where not many more are held; otherwise the smallest size
 * found to hold it, or Infinity above `bytesMax`. `fits` returns whether a size holds it.
 */
export async function bytesHeld(
  counted: number,
  bytesMax: number,
  fits: (bytes: number) => Promise<boolean>,
): Promise<number> {
  let below = counted + UNCOUNTED_BYTES;
  if (await fits(below)) return counted;
  if (below >= bytesMax || !(await fits(bytesMax))) return Number.POSITIVE_INFINITY;
  let held = bytesMax;
  while (held > below * FACTOR) {
    const between = Math.round(Math.sqrt(below * held));
    if (await fits(between)) held = between;
    else below = between;
  }
  return held;
}
