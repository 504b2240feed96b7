import { type EventLoopUtilization, performance } from 'node:perf_hooks';

/** Time between two checks of whether a thread is idle. With a shorter one, each of several bursts in a row would begin cold. */
const CHECK_MILLISECONDS = 30_000;
/** Of the time since the last check, the share that makes a thread busy. Timers and probes take less. */
const BUSY_SHARE = 0.02;

/** The thread's own measure of its work, and its collector. The tests replace both. */
type Thread = {
  /** Returns the work of the event loop so far, or what came to it between two readings. */
  utilization(now?: EventLoopUtilization, before?: EventLoopUtilization): EventLoopUtilization;
  /** V8's collector, with `--expose-gc`: the executable has that flag, a run from source need not. */
  collect: typeof globalThis.gc;
};

/**
 * Gives memory back to the system, once, when the thread that calls this has been busy and is idle again: by itself V8 keeps much
 * of what a burst has taken (docs/decisions/0062). A collection takes about a millisecond for each MB that is in use, in which the thread does nothing
 * else; `collected` is told of each. Does nothing where V8 lets nobody call its collector.
 */
export function collectWhenIdle(
  collected: () => void = () => {},
  { utilization, collect }: Thread = thisThread(),
): Disposable {
  if (!collect) return { [Symbol.dispose]: () => {} };
  let last = utilization();
  let wasBusy = true; // With its start.
  const timer = setInterval(() => {
    const now = utilization();
    const isBusy = utilization(now, last).utilization >= BUSY_SHARE;
    last = now;
    if (wasBusy && !isBusy) {
      collect({ type: 'major', execution: 'sync', flavor: 'last-resort' });
      collected();
      last = utilization(); // Or a long collection would itself be work, and another one follow it.
    }
    wasBusy = isBusy;
  }, CHECK_MILLISECONDS);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

const thisThread = (): Thread => ({
  utilization: performance.eventLoopUtilization.bind(performance),
  collect: globalThis.gc,
});
