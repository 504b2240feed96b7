/**
 * What `promise` answers, or an error that says how long `what` has taken already. Nothing is stopped by this: whoever
 * can be stopped has a limit of its own.
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
