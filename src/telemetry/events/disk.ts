import type { Sinks } from '../sinks.ts';

/** The events of disk space. */
export const diskEvents = ({ log, metrics }: Sinks) => ({
  diskLow(reason: string) {
    metrics.failures.inc({ where: 'disk' });
    log.warn({ event: 'disk.low', reason }, 'no new work is started until there is disk space');
  },
  diskEnough(freeBytes: number) {
    log.info({ event: 'disk.enough', free_bytes: freeBytes }, 'there is disk space again');
  },
  reserveMade(bytes: number) {
    log.info({ event: 'disk.reserve_made', bytes }, 'disk space for settlements is reserved');
  },
  reserveUsed() {
    log.warn({ event: 'disk.reserve_used' }, 'the disk is full; requests in flight are settled from the reserve');
  },
});
