import { formatUsd, type Nanos } from '../../base/money.ts';
import type { Operation, Outcome } from '../../ledger/operation.ts';
import type { Sinks } from '../sinks.ts';

const NANOS_PER_USD = 1e9;

/** The events of paid operations. */
export function operationEvents(sinks: Sinks) {
  const { log, metrics } = sinks;
  const countCharge = ({ kind, subject }: Operation, nanos: Nanos) =>
    metrics.charged.add(Number(nanos) / NANOS_PER_USD, kind, subject);

  return {
    held(operation: Operation, traceparent?: string | string[]) {
      sinks.spans?.held(operation, traceparent);
      log.debug(
        {
          event: 'operation.held',
          operation: operation.id,
          wallet: operation.walletId,
          hold_usd: formatUsd(operation.hold),
          request_id: operation.requestId,
        },
        'held',
      );
    },
    settled(operation: Operation, outcome: Outcome<unknown>, moved: boolean) {
      const facts = {
        operation: operation.id,
        wallet: operation.walletId,
        subject: operation.subject,
        request_id: operation.requestId,
      };
      if (moved) sinks.spans?.settled(operation, outcome);
      if (!moved) {
        metrics.failures.inc({ where: 'late_evidence' });
        log.error(
          { event: 'operation.late', ...facts, outcome: outcome.kind },
          'an answer arrived after the operation had been resolved',
        );
      } else if (outcome.kind === 'done') {
        metrics.operations.add(1, operation.kind, outcome.isCancelled ? 'cancelled' : 'charged');
        countCharge(operation, outcome.charge);
        const sums = { hold_usd: formatUsd(operation.hold), charge_usd: formatUsd(outcome.charge) };
        if (outcome.isCancelled)
          log.info(
            { event: 'operation.cancelled', ...facts, ...sums },
            'its clients had gone; it was stopped, and charged',
          );
        else log.info({ event: 'operation.charged', ...facts, ...sums }, 'charged');
      } else if (outcome.kind === 'refused') {
        metrics.operations.add(1, operation.kind, outcome.isCancelled ? 'cancelled' : 'released');
        log.info({ event: 'operation.released', ...facts, code: outcome.code, reason: outcome.reason }, 'released');
      } else {
        metrics.operations.add(1, operation.kind, 'uncertain');
        log.warn(
          { event: 'operation.uncertain', ...facts, hold_usd: formatUsd(operation.hold), reason: outcome.reason },
          'the outcome is unknown; the hold stays',
        );
      }
    },
    uncertain(operation: Operation) {
      metrics.operations.add(1, operation.kind, 'uncertain');
      log.warn(
        {
          event: 'operation.uncertain',
          operation: operation.id,
          wallet: operation.walletId,
          hold_usd: formatUsd(operation.hold),
          reason: operation.reason,
        },
        'the outcome is unknown; the hold stays',
      );
    },
    /** A request has waited for money that others in flight held. */
    fundsWaited(end: string, seconds: number) {
      metrics.fundsWaitSeconds.observe({ end }, seconds);
    },
    decided(operation: Operation) {
      metrics.operations.add(1, operation.kind, operation.outcome ?? 'none');
      sinks.spans?.decided(operation);
      if (operation.outcome === 'charged') countCharge(operation, operation.charge as Nanos);
      log.info(
        {
          event: 'operation.decided',
          operation: operation.id,
          wallet: operation.walletId,
          by: operation.settledBy,
          outcome: operation.outcome,
          charge_usd: formatUsd(operation.charge as Nanos),
          reason: operation.reason,
        },
        'an uncertain operation was resolved',
      );
    },
    takenOver(operation: Operation, requestId: string, traceparent?: string | string[]) {
      sinks.spans?.held(operation, traceparent);
      log.info(
        {
          event: 'operation.taken_over',
          operation: operation.id,
          wallet: operation.walletId,
          hold_usd: formatUsd(operation.hold),
          request_id: requestId,
        },
        'a retry without a key asks again on the hold of an attempt without an answer',
      );
    },
    boundExceeded(operation: Operation, usage: string) {
      metrics.boundExceeded.inc();
      log.error(
        {
          event: 'operation.bound_exceeded',
          operation: operation.id,
          subject: operation.subject,
          usage,
          hold_usd: formatUsd(operation.hold),
        },
        'the usage was above the bound; it was charged, up to the hold. Run `purser models check` to see what to set',
      );
    },
    estimated(operation: Operation, usage: string) {
      metrics.estimated.inc();
      log.warn(
        {
          event: 'operation.estimated',
          operation: operation.id,
          subject: operation.subject,
          usage,
          hold_usd: formatUsd(operation.hold),
        },
        'no readable usage; charged the bound of the prompt and what was delivered',
      );
    },
  };
}
