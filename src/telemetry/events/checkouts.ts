import type { Checkout, Creation, PaymentReport } from '../../ledger/checkout.ts';
import type { ReversalReport } from '../../ledger/reversal.ts';
import type { Sinks } from '../sinks.ts';

const factsOf = (it: Checkout) => ({
  checkout: it.id,
  account: it.accountId,
  cents: it.amountCents,
  session: it.sessionId,
});

/** The events of checkouts, and of the payment provider's reports. */
export const checkoutEvents = ({ log, metrics }: Sinks) => ({
  checkoutRequested(it: Checkout, outcome: Creation['kind']) {
    metrics.checkouts.inc({ event: outcome });
    const facts = { ...factsOf(it), request_id: it.requestId };
    if (outcome === 'created') log.info({ event: 'checkout.opened', ...facts }, 'checkout opened');
    else
      log.error(
        { event: `checkout.${outcome}`, ...facts, reason: it.lastError },
        'the payment provider did not confirm a checkout',
      );
  },
  checkoutMoved(it: Checkout) {
    metrics.checkouts.inc({ event: it.status });
    const facts = { event: `checkout.${it.status}`, ...factsOf(it) };
    if (it.status === 'mismatch' || it.status === 'abandoned') {
      metrics.failures.inc({ where: 'checkout' });
      log.error({ ...facts, reason: it.lastError }, 'a checkout needs the operator: nothing was credited');
    } else log.info(facts, 'checkout');
  },
  paymentUnknown(it: PaymentReport, account: string | undefined) {
    metrics.failures.inc({ where: 'checkout' });
    const facts = { session: it.sessionId, checkout: it.checkoutId, account, cents: it.amountCents };
    log.error(
      { event: 'checkout.unknown', ...facts, currency: it.currency },
      'a payment arrived that matches no checkout: check it, and credit it by hand',
    );
  },
  reversed(it: Checkout, movedCents: number, by?: ReversalReport) {
    if (movedCents > 0) metrics.clawedBack.inc(movedCents);
    const facts = { ...factsOf(it), moved_cents: movedCents, taken_cents: it.takenCents };
    log.warn(
      { event: 'checkout.reversed', ...facts, ...(by ? { kind: by.kind, id: by.id, state: by.state } : {}) },
      'a payment was refunded or disputed, or a refund or dispute was undone',
    );
  },
  webhookRefused(requestId: string, error: unknown) {
    metrics.failures.inc({ where: 'webhook' });
    log.warn(
      { event: 'webhook.refused', request_id: requestId, reason: (error as Error).message },
      'a webhook has a wrong signature: does webhook_secrets belong to this endpoint?',
    );
  },
});
