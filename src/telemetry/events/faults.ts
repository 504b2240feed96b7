import type { FaultSite } from '../../base/fault.ts';
import type { Sinks } from '../sinks.ts';

/** The events of failures. */
export function faultEvents({ log, metrics }: Sinks) {
  /** The faults so far, and the last of them. */
  let faultCount = 0;
  let lastFault: { where: FaultSite; milliseconds: number } | undefined;

  function failed(where: string, error: unknown, facts: Record<string, unknown> = {}) {
    metrics.failures.inc({ where });
    log.error({ event: `${where}.failed`, ...facts, err: error }, 'failed');
  }

  return {
    failed,
    /** An unexpected error has ended one request, connection or timer callback, and nothing else. */
    faulted(where: FaultSite, error: unknown, facts: Record<string, unknown> = {}) {
      metrics.faults.inc({ where });
      faultCount++;
      lastFault = { where, milliseconds: performance.now() };
      failed(where, error, facts);
    },
    /** Returns the number of faults since the start; of the last one, its place and how long ago it was. */
    faults: () => ({
      count: faultCount,
      last: lastFault && {
        where: lastFault.where,
        secondsAgo: Math.floor((performance.now() - lastFault.milliseconds) / 1000),
      },
    }),
  };
}
