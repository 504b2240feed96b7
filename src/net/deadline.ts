const LATE = Symbol('late');

/**
 * The value of `promise`, or what `onLate` returns or throws once `milliseconds` have passed or `cut` is aborted. Nothing
 * is stopped by this: the work behind `promise` goes on.
 */
export async function deadline<T, L>(
  promise: Promise<T>,
  milliseconds: number,
  onLate: () => L,
  cut?: AbortSignal,
): Promise<T | L> {
  const over = Promise.withResolvers<typeof LATE>();
  const end = () => over.resolve(LATE);
  const timer = setTimeout(end, milliseconds);
  cut?.addEventListener('abort', end);
  if (cut?.aborted) end();
  try {
    const first = await Promise.race([over.promise, promise]);
    return first === LATE ? onLate() : first;
  } finally {
    clearTimeout(timer);
    cut?.removeEventListener('abort', end);
  }
}

/** The value of `promise`, or an Error saying that `what` took longer than its limit. */
export const inTime = <T>(promise: Promise<T>, milliseconds: number, what: string): Promise<T> =>
  deadline(promise, milliseconds, () => {
    throw new Error(`${what} took longer than ${milliseconds / 1000} s`);
  });
