import { formatUsd } from '../../base/money.ts';
import type { Keep } from '../../ledger/keep.ts';
import type { Resource } from '../../ledger/resource.ts';
import type { Sinks } from '../sinks.ts';

/** The events of leases, their machines and backends. */
export function leaseEvents(sinks: Sinks) {
  const { log, metrics } = sinks;
  const countLease = ({ slot, backend }: Pick<Resource, 'slot' | 'backend'>, event: string) =>
    metrics.leases.inc({ slot, backend, event });

  return {
    backendCalled(slot: string, backend: string, call: string, code: string, seconds: number) {
      metrics.backendCalls.inc({ slot, backend, call, code });
      metrics.backendSeconds.observe({ slot, backend, call }, seconds);
    },
    leaseReady(it: Resource) {
      countLease(it, 'ready');
      log.info(
        {
          event: 'lease.ready',
          resource: it.id,
          wallet: it.walletId,
          slot: it.slot,
          backend: it.backend,
          ref: it.ref,
          expires_at: it.expiresAt,
          charge_usd: formatUsd(it.charged),
        },
        'lease ready',
      );
    },
    leaseAdopted(it: Resource) {
      countLease(it, 'adopted');
      log.warn(
        { event: 'lease.adopted', resource: it.id, wallet: it.walletId, slot: it.slot, ref: it.ref },
        'a machine of an unknown create was found and adopted',
      );
    },
    keepBegun(it: Keep) {
      log.info(
        {
          event: 'lease.keep_begun',
          resource: it.resourceId,
          wallet: it.walletId,
          keep: it.id,
          extend_seconds: it.extendSeconds,
          max_seconds: it.maxSeconds,
          request_id: it.requestId,
        },
        'a lease is extended while its machine is busy',
      );
    },
    keepEnded(it: Keep) {
      metrics.keepsEnded.inc({ reason: it.endReason ?? 'none' });
      log.info(
        {
          event: 'lease.keep_ended',
          resource: it.resourceId,
          wallet: it.walletId,
          keep: it.id,
          bought_seconds: it.boughtSeconds,
          reason: it.endReason,
          message: it.endMessage,
        },
        'a lease is no longer extended by itself',
      );
    },
    leaseEnded(it: Resource) {
      sinks.spans?.leaseEnded(it);
      countLease(it, 'ended');
      log.info(
        {
          event: 'lease.ended',
          resource: it.id,
          wallet: it.walletId,
          slot: it.slot,
          ref: it.ref,
          reason: it.endReason,
        },
        'lease ended',
      );
    },
    leaseAbandoned(it: Resource, reason: string) {
      countLease(it, 'abandoned');
      log.error(
        { event: 'lease.abandoned', resource: it.id, wallet: it.walletId, backend: it.backend, ref: it.ref, reason },
        'the operator abandoned a lease: nobody confirmed that its machine is gone',
      );
    },
    orphan(backend: string, ref: string, tag: string) {
      countLease({ slot: 'none', backend }, 'orphan');
      log.error({ event: 'lease.orphan', backend, ref, tag }, 'an orphaned machine was destroyed');
    },
    orphanSeen(backend: string, ref: string, tag: string) {
      countLease({ slot: 'none', backend }, 'orphan_seen');
      log.warn({ event: 'lease.orphan_seen', backend, ref, tag }, 'an orphaned machine was left alone');
    },
    leaseHeldBack(it: Resource, reason: string) {
      countLease(it, 'held_back');
      log.warn(
        { event: 'lease.held_back', resource: it.id, wallet: it.walletId, slot: it.slot, ref: it.ref, reason },
        'a lease has to end, but its machine was left alone: it may belong to another installation',
      );
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
    /** Counts every failure, and logs those that are news. */
    leaseTrouble(it: Resource, error: string, attempts: number, isNews: boolean) {
      metrics.failures.inc({ where: 'lease' });
      if (!isNews) return;
      log.error(
        {
          event: 'lease.trouble',
          resource: it.id,
          wallet: it.walletId,
          slot: it.slot,
          ref: it.ref,
          status: it.status,
          attempts,
          error,
        },
        'a step of a lease failed; it and others like it are retried, and logged rarely',
      );
    },
    leaseTroubleOver(place: string, seconds: number) {
      log.info({ event: 'lease.trouble_over', place, seconds }, 'no lease there fails any more');
    },
  };
}
