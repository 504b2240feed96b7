/**
 * Resolves as `promise` does. After `milliseconds` it throws an Error saying that `what` took too long. It stops nothing:
 * calls that can be stopped have a time limit of their own.
 */
export async function inTime<T>(promise: Promise<T>, milliseconds: number, what: string): Promise<T> {
  const over = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => over.reject(new Error(`${what} took longer than ${milliseconds / 1000} s`)),
    milliseconds,
  );
  try {
    return await Promise.race([promise, over.promise]);
  } finally {
    clearTimeout(timer);
  }
}
