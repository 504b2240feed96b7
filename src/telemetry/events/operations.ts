import { formatUsd, type Nanos } from '../../base/money.ts';
import type { Operation, Outcome } from '../../ledger/operation.ts';
import type { Sinks } from '../sinks.ts';

const NANOS_PER_USD = 1e9;

const heldOf = ({ id, walletId, hold }: Operation) => ({
  operation: id,
  wallet: walletId,
  hold_usd: formatUsd(hold),
});

/** The events of paid operations. */
export function operationEvents(sinks: Sinks) {
  const { log, metrics } = sinks;
  const countCharge = ({ kind, subject }: Operation, nanos: Nanos) =>
    metrics.charged.add(Number(nanos) / NANOS_PER_USD, kind, subject);

  return {
    held(operation: Operation, traceparent?: string | string[]) {
      sinks.spans?.held(operation, traceparent);
      log.debug({ event: 'operation.held', ...heldOf(operation), request_id: operation.requestId }, 'held');
    },
    settled(operation: Operation, outcome: Outcome<unknown>, moved: boolean) {
      if (!moved) return lateEvidence(sinks, operation, outcome);
      sinks.spans?.settled(operation, outcome);
      const isCancelled = 'isCancelled' in outcome && outcome.isCancelled;
      const end = { done: 'charged', refused: 'released', unknown: 'uncertain' }[outcome.kind];
      metrics.operations.add(1, operation.kind, isCancelled ? 'cancelled' : end);
      if (outcome.kind === 'done') countCharge(operation, outcome.charge);
      logOutcome(sinks, operation, outcome);
    },
    uncertain(operation: Operation) {
      metrics.operations.add(1, operation.kind, 'uncertain');
      log.warn(
        { event: 'operation.uncertain', ...heldOf(operation), reason: operation.reason },
        'the outcome is unknown; the hold stays',
      );
    },
    /** Counts a request that has waited for money that others in flight held. */
    fundsWaited(end: string, seconds: number) {
      metrics.fundsWaitSeconds.observe({ end }, seconds);
    },
    decided(operation: Operation) {
      const { id, walletId, outcome, settledBy, reason } = operation;
      metrics.operations.add(1, operation.kind, outcome ?? 'none');
      sinks.spans?.decided(operation);
      const charge = operation.charge as Nanos;
      if (outcome === 'charged') countCharge(operation, charge);
      const facts = { operation: id, wallet: walletId, by: settledBy, outcome, charge_usd: formatUsd(charge), reason };
      log.info({ event: 'operation.decided', ...facts }, 'an uncertain operation was resolved');
    },
    takenOver(operation: Operation, requestId: string, traceparent?: string | string[]) {
      sinks.spans?.held(operation, traceparent);
      log.info(
        { event: 'operation.taken_over', ...heldOf(operation), request_id: requestId },
        'a retry without a key asks again on the hold of an attempt without an answer',
      );
    },
    boundExceeded(operation: Operation, usage: string) {
      metrics.boundExceeded.inc();
      log.error(
        { event: 'operation.bound_exceeded', ...heldOf(operation), subject: operation.subject, usage },
        'the usage was above the bound; it was charged, up to the hold. Run `purser models check` to see what to set',
      );
    },
    estimated(operation: Operation, usage: string) {
      metrics.estimated.inc();
      log.warn(
        { event: 'operation.estimated', ...heldOf(operation), subject: operation.subject, usage },
        'no readable usage; charged the bound of the prompt and what was delivered',
      );
    },
  };
}

const factsOf = ({ id, walletId, subject, requestId }: Operation) => ({
  operation: id,
  wallet: walletId,
  subject,
  request_id: requestId,
});

function lateEvidence({ log, metrics }: Sinks, operation: Operation, outcome: Outcome<unknown>): void {
  metrics.failures.inc({ where: 'late_evidence' });
  log.error(
    { event: 'operation.late', ...factsOf(operation), outcome: outcome.kind },
    'an answer arrived after the operation had been resolved',
  );
}

function logOutcome({ log }: Sinks, operation: Operation, outcome: Outcome<unknown>): void {
  const facts = factsOf(operation);
  const hold = { hold_usd: formatUsd(operation.hold) };
  if (outcome.kind === 'done') {
    const sums = { ...hold, charge_usd: formatUsd(outcome.charge) };
    if (outcome.isCancelled)
      log.info(
        { event: 'operation.cancelled', ...facts, ...sums },
        'its clients had gone; it was stopped, and charged',
      );
    else log.info({ event: 'operation.charged', ...facts, ...sums }, 'charged');
  } else if (outcome.kind === 'refused')
    log.info({ event: 'operation.released', ...facts, code: outcome.code, reason: outcome.reason }, 'released');
  else
    log.warn(
      { event: 'operation.uncertain', ...facts, ...hold, reason: outcome.reason },
      'the outcome is unknown; the hold stays',
    );
}
