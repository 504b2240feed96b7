import { type PaymentReport, reportPayment } from '../ledger/checkout.ts';
import { isKnownEvent, type PaymentEvent } from '../ledger/payment-events.ts';
import { reversePayment } from '../ledger/reversal.ts';
import type { BillingApp } from './checkout.ts';
import type { MarkedPayment, ProviderEvent } from './provider.ts';

/**
 * Applies one event of the provider exactly once, and resolves when the change is on disk. Events may repeat, and arrive late and
 * in any order. Throws for an event without its documented form: the provider sends it again.
 */
export async function receive(app: BillingApp, event: ProviderEvent): Promise<void> {
  if (event.fault !== undefined) throw new Error(`event ${event.id}: ${event.fault}`);
  const { content } = event;
  if (!content || isKnownEvent(app.ledger.read, event.id)) return;
  if ('payment' in content) return takePayment(app, content.payment, event);
  const { reversal } = content;
  const now = app.clock.now();
  const reversed = await app.ledger.write(reversePayment, { reversal, event: noted(event), now });
  if (reversed) app.events.reversed(reversed.checkout, reversed.movedCents, reversal);
}

const noted = ({ id, type, subject }: ProviderEvent): PaymentEvent => ({ id, type, subject });

/** Applies a report on a session, from an event or from polling. */
export async function takePayment(app: BillingApp, payment: MarkedPayment, event?: ProviderEvent): Promise<void> {
  const now = app.clock.now();
  const { installationId, accountId, ...rest } = payment;
  const report: PaymentReport = rest;
  const reported = await app.ledger.write(reportPayment, { report, event: event && noted(event), now });
  if (!reported) return;
  if (reported.kind === 'known') {
    const { before, checkout, movedCents } = reported;
    if (before !== checkout.status) app.events.checkoutMoved(checkout);
    if (movedCents !== 0) app.events.reversed(checkout, movedCents);
  } else if (report.outcome === 'paid' && (reported.kind === 'stray' || installationId === app.installationId))
    // Paid, but unknown to these books: they may be older than the payment.
    app.events.paymentUnknown(report, accountId);
}
