const LATE = Symbol('late');

/**
 * Resolves to the value of `promise`, or to the result of `onLate` once `milliseconds` have passed or `cut` is aborted;
 * `onLate` may throw instead. This stops nothing: the work behind `promise` continues.
 */
export async function deadline<T, L>(
  promise: Promise<T>,
  milliseconds: number,
  onLate: () => L,
  cut?: AbortSignal,
): Promise<T | L> {
  const limit = Promise.withResolvers<typeof LATE>();
  const end = () => limit.resolve(LATE);
  const timer = setTimeout(end, milliseconds);
  cut?.addEventListener('abort', end);
  if (cut?.aborted) end();
  try {
    const first = await Promise.race([limit.promise, promise]);
    return first === LATE ? onLate() : first;
  } finally {
    clearTimeout(timer);
    cut?.removeEventListener('abort', end);
  }
}

/** Resolves to the value of `promise`. Throws an Error when `what` takes longer than its limit. */
export const inTime = <T>(promise: Promise<T>, milliseconds: number, what: string): Promise<T> =>
  deadline(promise, milliseconds, () => {
    throw new Error(`${what} took longer than ${milliseconds / 1000} s`);
  });

/**
 * Returns a function that waits for promises, for none longer than until `end` is settled: then it resolves to undefined. Promise.race
 * would keep something of each wait until the end, its value as well: all of an upload.
 */
export function noLongerThan(end: Promise<unknown>): <T>(wanted: Promise<T>) => Promise<T | undefined> {
  const waits = new Set<() => void>();
  let hasEnded = false;
  const release = () => {
    hasEnded = true;
    for (const leave of waits) leave();
  };
  end.then(release, release);
  return <T>(wanted: Promise<T>) =>
    new Promise<T | undefined>((resolve, reject) => {
      const leave = () => resolve(undefined);
      if (hasEnded) leave();
      else waits.add(leave);
      void wanted.then(resolve, reject).finally(() => waits.delete(leave));
    });
}
