import { deadline } from '../../net/deadline.ts';

/** Offers and figures are requested often, and asking an engine takes a process or a connection. */
const KEPT_MILLISECONDS = 3000;
/** The default time that an answer waits for the engine; then an earlier answer counts, if it is not too old. */
const WAIT_MILLISECONDS = 2000;
const OLDEST_MILLISECONDS = 15_000;

/** Keeps an engine's answer for a few seconds. */
export type Recent<T> = {
  /** Asks the engine unless that was done just now. Undefined if it fails, or has not answered within `waitMilliseconds`. */
  get(waitMilliseconds?: number): Promise<T | undefined>;
  /** Returns the newest answer, however old it is; undefined where asking has failed. */
  last(): T | undefined;
  /** Forgets the answer, after a change that it does not show. */
  forget(): void;
};

/** Creates the cache. Concurrent callers share one question, and no other is asked while it hangs. */
export function createRecent<T>(ask: () => Promise<T>, keptMilliseconds = KEPT_MILLISECONDS): Recent<T> {
  let request: Promise<T | undefined> | undefined;
  let last: { answer: T | undefined; at: number } | undefined;
  const age = () => (last ? performance.now() - last.at : Number.POSITIVE_INFINITY);

  function begin(): Promise<T | undefined> {
    const mine = ask()
      .catch(() => undefined)
      .then((answer) => {
        if (request !== mine) return answer; // It was forgotten in the meantime.
        last = { answer, at: performance.now() };
        request = undefined;
        return answer;
      });
    return mine;
  }
  return {
    async get(waitMilliseconds = WAIT_MILLISECONDS) {
      if (age() < keptMilliseconds) return last?.answer;
      request ??= begin();
      return deadline(request, waitMilliseconds, () => (age() < OLDEST_MILLISECONDS ? last?.answer : undefined));
    },
    last: () => last?.answer,
    forget() {
      request = undefined;
      last = undefined;
    },
  };
}
