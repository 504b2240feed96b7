import type { FaultPlace } from '../../fault.ts';
import type { Sinks } from '../sinks.ts';

/** The events of failures. */
export function faultEvents({ log, metrics }: Sinks) {
  /** The faults so far, and the last of them. */
  let faultCount = 0;
  let lastFault: { where: FaultPlace; milliseconds: number } | undefined;

  function failed(where: string, error: unknown, facts: Record<string, unknown> = {}) {
    metrics.failures.inc({ where });
    log.error({ event: `${where}.failed`, ...facts, err: error }, 'failed');
  }

  return {
    failed,
    /** An error that nobody foresaw has ended one request, connection or turn of a timer, and nothing else. */
    faulted(where: FaultPlace, error: unknown, facts: Record<string, unknown> = {}) {
      metrics.faults.inc({ where });
      faultCount++;
      lastFault = { where, milliseconds: performance.now() };
      failed(where, error, facts);
    },
    /** Returns how many there were since the start, and of the last one its place and how long ago it was. */
    faults: () => ({
      count: faultCount,
      last: lastFault && {
        where: lastFault.where,
        secondsAgo: Math.floor((performance.now() - lastFault.milliseconds) / 1000),
      },
    }),
  };
}
