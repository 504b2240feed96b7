import { describeReplicas, type Replicas } from '../../files/drbd.ts';
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
  committed(milliseconds: number) {
    metrics.commitSeconds.observe(milliseconds / 1000, '', '');
  },
  replicaMissing(replicas: Replicas) {
    log.warn({ event: 'storage.alone', reason: describeReplicas(replicas) }, 'no other copy of the disk is up to date');
  },
  replicaBack(replicas: Replicas) {
    log.info({ event: 'storage.replicated', reason: describeReplicas(replicas) }, 'a copy of the disk is up to date');
  },
  reserveMade(bytes: number) {
    log.info({ event: 'disk.reserve_made', bytes }, 'disk space for settlements is reserved');
  },
  reserveUsed() {
    log.warn({ event: 'disk.reserve_used' }, 'the disk is full; requests in flight are settled from the reserve');
  },
});
