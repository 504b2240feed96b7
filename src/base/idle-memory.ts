import { type EventLoopUtilization, performance } from 'node:perf_hooks';
import sea from 'node:sea';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** The interval between checks of whether a thread is idle. With a shorter one, each burst of several would start cold. */
const CHECK_MILLISECONDS = 30_000;
/** The share of the time since the last check from which a thread counts as busy. Timers and probes take less. */
const BUSY_SHARE = 0.02;

/** The thread's own measure of its work, and its collector. Tests replace both. */
type Thread = {
  /** Returns the work of the event loop so far, or the work between two readings. */
  utilization(now?: EventLoopUtilization, before?: EventLoopUtilization): EventLoopUtilization;
  /** V8's collector. A run from source leaves its memory to V8. */
  collect: typeof globalThis.gc;
};

/**
 * Returns memory to the system, once, when the calling thread has been busy and is idle again: V8 by itself keeps much of what a
 * burst has taken (docs/decisions/0062). A collection blocks the thread for about a millisecond per MB in use; `collected` is
 * called after each. Does nothing without a collector.
 */
export function collectWhenIdle(
  collected: () => void = () => {},
  { utilization, collect }: Thread = thisThread(),
): Disposable {
  if (!collect) return { [Symbol.dispose]: () => {} };
  let last = utilization();
  let wasBusy = true; // The start counts as work.
  const timer = setInterval(() => {
    const now = utilization();
    const isBusy = utilization(now, last).utilization >= BUSY_SHARE;
    last = now;
    if (wasBusy && !isBusy) {
      collect({ type: 'major', execution: 'sync', flavor: 'last-resort' });
      collected();
      last = utilization(); // Otherwise a long collection would count as work, and cause another.
    }
    wasBusy = isBusy;
  }, CHECK_MILLISECONDS);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

const thisThread = (): Thread => ({
  utilization: performance.eventLoopUtilization.bind(performance),
  collect: sea.isSea() ? collectAll : undefined,
});

/** Only a context that is made with this flag has the collector; a process that starts with it takes longer (heap-flags.ts). */
const collectAll = ((options: NodeJS.GCOptions) => {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as NodeJS.GCFunction)(options);
}) as NodeJS.GCFunction;
