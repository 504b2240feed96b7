import { formatUsd } from '../../base/money.ts';
import type { Keep } from '../../ledger/keep.ts';
import type { Resource } from '../../ledger/resource.ts';
import type { Snapshot } from '../../ledger/snapshot.ts';
import type { Sinks } from '../sinks.ts';

const factsOf = ({ id, walletId, slot, ref }: Resource) => ({ resource: id, wallet: walletId, slot, ref });
const factsOfSnapshot = ({ id, walletId, slot, backend }: Snapshot) => ({
  snapshot: id,
  wallet: walletId,
  slot,
  backend,
});
const factsOfKeep = ({ resourceId, walletId, id }: Keep) => ({ resource: resourceId, wallet: walletId, keep: id });

/** Counts an event of a lease, or of its snapshot. */
const counterOf =
  ({ metrics }: Sinks) =>
  ({ slot, backend }: Pick<Resource, 'slot' | 'backend'>, event: string) =>
    metrics.leases.inc({ slot, backend, event });

/** The events of leases, their machines and backends. */
export function leaseEvents(sinks: Sinks) {
  const { log, metrics } = sinks;
  const countLease = counterOf(sinks);

  return {
    ...orphanEvents(sinks),
    ...keepEvents(sinks),
    ...egressEvents(sinks),
    ...snapshotEvents(sinks),
    backendCalled(slot: string, backend: string, call: string, code: string, seconds: number) {
      metrics.backendCalls.inc({ slot, backend, call, code });
      metrics.backendSeconds.observe({ slot, backend, call }, seconds);
    },
    leaseReady(it: Resource) {
      countLease(it, 'ready');
      const more = { backend: it.backend, expires_at: it.expiresAt, charge_usd: formatUsd(it.charged) };
      log.info({ event: 'lease.ready', ...factsOf(it), ...more }, 'lease ready');
    },
    leasePaused(it: Resource) {
      countLease(it, 'paused');
      log.info({ event: 'lease.paused', ...factsOf(it), seconds_left: it.secondsLeft }, 'lease paused');
    },
    leaseResumed(it: Resource) {
      countLease(it, 'resumed');
      log.info({ event: 'lease.resumed', ...factsOf(it), expires_at: it.expiresAt }, 'lease runs again');
    },
    leaseWarm: (slot: string, backend: string) => countLease({ slot, backend }, 'warm'),
    leaseAdopted(it: Resource) {
      countLease(it, 'adopted');
      log.warn({ event: 'lease.adopted', ...factsOf(it) }, 'a machine of an unknown create was found and adopted');
    },
    leaseEnded(it: Resource) {
      sinks.spans?.leaseEnded(it);
      countLease(it, 'ended');
      log.info({ event: 'lease.ended', ...factsOf(it), reason: it.endReason }, 'lease ended');
    },
    leaseAbandoned(it: Resource, reason: string) {
      countLease(it, 'abandoned');
      log.error(
        { event: 'lease.abandoned', ...factsOf(it), backend: it.backend, reason },
        'the operator abandoned a lease: nobody confirmed that its machine is gone',
      );
    },
    leaseHeldBack(it: Resource, reason: string) {
      countLease(it, 'held_back');
      log.warn(
        { event: 'lease.held_back', ...factsOf(it), reason },
        'a lease has to end, but its machine was left alone: it may belong to another installation',
      );
    },
    /** Counts every failure, and logs those that are news. */
    leaseTrouble(it: Resource, error: string, attempts: number, isNews: boolean) {
      metrics.failures.inc({ where: 'lease' });
      if (!isNews) return;
      log.error(
        { event: 'lease.trouble', ...factsOf(it), status: it.status, attempts, error },
        'a step of a lease failed; it and others like it are retried, and logged rarely',
      );
    },
    leaseUnreachable(it: Resource, reason: string) {
      countLease(it, 'unreachable');
      log.error({ event: 'lease.unreachable', ...factsOf(it), backend: it.backend, reason }, 'a lease is out of reach');
    },
    leaseTroubleEnded(where: string, seconds: number) {
      log.info({ event: 'lease.trouble_over', place: where, seconds }, 'no lease there fails any more');
    },
  };
}

function snapshotEvents(sinks: Sinks) {
  const { log } = sinks;
  const countLease = counterOf(sinks);
  return {
    snapshotTaken(it: Snapshot) {
      countLease(it, 'snapshot_taken');
      log.info({ event: 'snapshot.taken', ...factsOfSnapshot(it), size_gib: (it.size ?? 0) / 100 }, 'snapshot taken');
    },
    snapshotEnded(it: Snapshot) {
      countLease(it, 'snapshot_ended');
      log.info({ event: 'snapshot.ended', ...factsOfSnapshot(it), reason: it.endReason }, 'snapshot gone');
    },
    /** Logs the first failure, and then ever more seldom. */
    snapshotTrouble(it: Snapshot, error: string, attempts: number) {
      if (Math.log2(attempts) % 1 === 0)
        log.warn({ event: 'snapshot.trouble', ...factsOfSnapshot(it), error, attempts }, 'a step of a snapshot failed');
    },
  };
}

/** The events of machines without a live lease, and of an installation that only reports them. */
const orphanEvents = ({ log, metrics }: Sinks) => ({
  orphan(backend: string, ref: string, tag: string) {
    metrics.leases.inc({ slot: 'none', backend, event: 'orphan' });
    log.error({ event: 'lease.orphan', backend, ref, tag }, 'an orphaned machine was destroyed');
  },
  orphanSeen(backend: string, ref: string, tag: string) {
    metrics.leases.inc({ slot: 'none', backend, event: 'orphan_seen' });
    log.warn({ event: 'lease.orphan_seen', backend, ref, tag }, 'an orphaned machine was left alone');
  },
  reportOnly(reason: string, leaseCount: number) {
    log.warn(
      { event: 'report_only', reason, leases: leaseCount },
      'orphans and existing leases are only reported; `purser resource reconcile` shows them, --apply ends this state',
    );
  },
  trusted(leaseCount: number) {
    log.warn(
      { event: 'report_only.over', leases: leaseCount },
      'the operator ended the report-only state: orphans and leases are ended again',
    );
  },
});

/** The events of what leases reach. */
const egressEvents = ({ log, metrics }: Sinks) => ({
  egressPassed(bytes: number) {
    metrics.egressBytes.inc(bytes);
  },
  /** Counts every refusal, and logs the first of each host. */
  egressRefused(resource: string, host: string, reason: string, isNews: boolean) {
    metrics.egressRefused.inc();
    if (isNews) log.warn({ event: 'egress.refused', resource, host, reason }, 'a lease was refused a connection');
  },
  egressNarrowed(it: Resource, entries: number) {
    log.info({ event: 'egress.narrowed', ...factsOf(it), entries }, 'an agent set what its lease may reach');
  },
});

/** The events of leases that are extended while their machines are busy. */
const keepEvents = ({ log, metrics }: Sinks) => ({
  keepBegun(it: Keep) {
    const limits = { extend_seconds: it.extendSeconds, max_seconds: it.maxSeconds, request_id: it.requestId };
    log.info(
      { event: 'lease.keep_begun', ...factsOfKeep(it), ...limits },
      'a lease is extended while its machine is busy',
    );
  },
  keepEnded(it: Keep) {
    metrics.keepsEnded.inc({ reason: it.endReason ?? 'none' });
    const end = { bought_seconds: it.boughtSeconds, reason: it.endReason, message: it.endMessage };
    log.info({ event: 'lease.keep_ended', ...factsOfKeep(it), ...end }, 'a lease is no longer extended by itself');
  },
});
