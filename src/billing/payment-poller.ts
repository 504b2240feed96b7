import { type Checkout, type CheckoutCursor, dueCheckouts, nextDueCheckout, recordPoll } from '../ledger/checkout.ts';
import { findFeed, firstCheckoutAt, hasPaymentsSince, setFeed } from '../ledger/payment-events.ts';
import { LIST_COUNT_MAX } from '../ledger/wallet.ts';
import type { BillingApp } from './checkout.ts';
import { type Provider, ProviderDown } from './provider.ts';
import { receive, takePayment } from './receive.ts';

/** Number of sessions read concurrently. */
const AT_ONCE_COUNT = 4;
/** Backoff after an outage of the provider; it doubles from `min` to `max`. */
const BACKOFF_SECONDS = { min: 15, max: 600 };
/** Interval at which refunds and disputes are read, and the delay after an error. */
const FEED_SECONDS = 300;
const FEED_RETRY_SECONDS = 900;
/** The days after the last payment for which refunds and disputes are read: cards may be disputed for months. */
const FEED_DAYS = 180;
const DAY_SECONDS = 86_400;

/** The result of a pass: calls that succeeded and calls that failed. */
type Polled = { asked: number; failed: number };

/** Polls the payment provider; sufficient without webhooks. */
export type PaymentPoller = {
  /** Polls everything that is due. A call during a pass joins it. */
  pass(): Promise<Polled>;
  /** Returns when the next poll is due, in Unix seconds; Infinity if never. */
  nextDue(): number;
  /** Cancels calls in flight. Resolves when no pass runs; may be called before the first pass, and twice. */
  stop(): Promise<void>;
};

/** Creates the poller of the payment provider. The reaper runs its passes. */
export function createPaymentPoller(app: Omit<BillingApp, 'payments'> & { payments: Provider }): PaymentPoller {
  let running: Promise<Polled> | undefined;
  let stopped = false;
  let pausedUntil = 0;
  let backoffSeconds: number = BACKOFF_SECONDS.min;

  /** Polls one checkout. An error postpones this checkout; an outage of the provider postpones all. */
  async function pollCheckout(it: Checkout, polled: Polled): Promise<void> {
    if (pausedUntil > app.clock.now() || stopped) return;
    let error: string | null = null;
    try {
      // Without a session the checkout cannot be paid, and there is nothing to read.
      if (it.sessionId !== null) await takePayment(app, await app.payments.read(it.sessionId));
      backoffSeconds = BACKOFF_SECONDS.min;
      polled.asked++;
    } catch (cause) {
      if (stopped) return;
      polled.failed++;
      if (cause instanceof ProviderDown) return backOff(cause);
      error = (cause as Error).message;
    }
    const now = app.clock.now();
    const after = await app.ledger.write(recordPoll, { id: it.id, error, now });
    if (after.status === 'abandoned') app.events.checkoutMoved(after);
  }

  function backOff(cause: Error): void {
    const now = app.clock.now();
    if (pausedUntil > now) return; // A concurrent call of the same pass has reported it.
    pausedUntil = now + backoffSeconds;
    backoffSeconds = Math.min(backoffSeconds * 2, BACKOFF_SECONDS.max);
    app.events.failed('payments', cause);
  }

  async function pollCheckouts(polled: Polled): Promise<void> {
    const now = app.clock.now();
    for (let cursor: CheckoutCursor | undefined; ; ) {
      const page = dueCheckouts(app.ledger.read, now, cursor);
      const left = page.values();
      const work = async () => {
        for (const it of left) await pollCheckout(it, polled);
      };
      await Promise.all(Array.from({ length: AT_ONCE_COUNT }, work));
      cursor = page.at(-1);
      if (page.length < LIST_COUNT_MAX) return;
    }
  }

  /** Returns when refunds and disputes are due to be read, in Unix seconds; Infinity without a recent payment. */
  function feedDue(): number {
    const now = app.clock.now();
    if (!hasPaymentsSince(app.ledger.read, now - FEED_DAYS * DAY_SECONDS)) return Number.POSITIVE_INFINITY;
    return findFeed(app.ledger.read)?.dueAt ?? now;
  }

  /** Returns the time of the first read: a payment may have been refunded before it was known here as paid. */
  const firstTime = (now: number) => Math.min(firstCheckoutAt(app.ledger.read) ?? now, now - DAY_SECONDS);

  async function readFeed(polled: Polled): Promise<void> {
    const now = app.clock.now();
    if (stopped || pausedUntil > now || feedDue() > now) return;
    const readTo = findFeed(app.ledger.read)?.readTo ?? firstTime(now);
    const next = { readTo, dueAt: now + FEED_SECONDS };
    try {
      const { events, until } = await app.payments.readEvents(readTo, now);
      for (const event of events) {
        if (event.fault === undefined) await receive(app, event);
        else app.events.failed('payments', new Error(`event ${event.id}: ${event.fault}`));
        next.readTo = Math.max(next.readTo, event.at);
      }
      if (until !== undefined) {
        next.readTo = Math.max(next.readTo, until);
        next.dueAt = now; // The rest is read at once.
      }
      polled.asked++;
    } catch (error) {
      if (stopped) return;
      polled.failed++;
      app.events.failed('payments', error);
      next.dueAt = now + FEED_RETRY_SECONDS;
    }
    await app.ledger.write(setFeed, next);
  }

  async function run(): Promise<Polled> {
    const polled = { asked: 0, failed: 0 };
    await pollCheckouts(polled);
    await readFeed(polled);
    return polled;
  }

  return {
    pass() {
      running ??= run().finally(() => {
        running = undefined;
      });
      return running;
    },
    nextDue() {
      const due = Math.min(nextDueCheckout(app.ledger.read) ?? Number.POSITIVE_INFINITY, feedDue());
      return Math.max(due, pausedUntil);
    },
    async stop() {
      stopped = true;
      await app.payments.close();
      await running?.catch(() => {});
    },
  };
}
