import { forEachAtOnce } from '../base/at-once.ts';
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
type Polled = { reads: number; failed: number };

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
export function createPaymentPoller(app: FeedApp): PaymentPoller {
  let running: Promise<Polled> | undefined;
  let stopped = false;
  const outage = createOutage(app);
  /** The ids of events that were not as documented and are logged: the list has the newest one again at every read. */
  const faulty = new Set<string>();

  /** Polls one checkout. An error postpones this checkout; an outage of the provider postpones all. */
  async function pollCheckout(it: Checkout, polled: Polled): Promise<void> {
    if (outage.pausedUntil() > app.clock.now() || stopped) return;
    let error: string | null = null;
    try {
      // Without a session the checkout cannot be paid, and there is nothing to read.
      if (it.sessionId !== null) await takePayment(app, await app.payments.read(it.sessionId));
      outage.end();
      polled.reads++;
    } catch (cause) {
      if (stopped) return;
      polled.failed++;
      if (cause instanceof ProviderDown) return outage.report(cause);
      error = (cause as Error).message;
    }
    const now = app.clock.now();
    const after = await app.ledger.write(recordPoll, { id: it.id, error, now });
    if (after.status === 'abandoned') app.events.checkoutMoved(after);
  }

  async function pollCheckouts(polled: Polled): Promise<void> {
    const now = app.clock.now();
    for (let cursor: CheckoutCursor | undefined; ; ) {
      const page = dueCheckouts(app.ledger.read, now, cursor);
      await forEachAtOnce(page, AT_ONCE_COUNT, (it) => pollCheckout(it, polled));
      cursor = page.at(-1);
      if (page.length < LIST_COUNT_MAX) return;
    }
  }

  async function readFeed(polled: Polled): Promise<void> {
    const now = app.clock.now();
    if (stopped || outage.pausedUntil() > now || feedDue(app) > now) return;
    const { error, ...next } = await readEvents(app, now, faulty);
    if (error !== undefined) {
      if (stopped) return;
      polled.failed++;
      app.events.failed('payments', error);
    } else polled.reads++;
    await app.ledger.write(setFeed, next);
  }

  async function run(): Promise<Polled> {
    const polled = { reads: 0, failed: 0 };
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
      const due = Math.min(nextDueCheckout(app.ledger.read) ?? Number.POSITIVE_INFINITY, feedDue(app));
      return Math.max(due, outage.pausedUntil());
    },
    async stop() {
      stopped = true;
      await app.payments.close();
      await running?.catch(() => {});
    },
  };
}

type FeedApp = Omit<BillingApp, 'payments'> & { payments: Provider };

/** Follows an outage of the provider: all calls pause, for longer each time. */
function createOutage({ clock, events }: Pick<FeedApp, 'clock' | 'events'>) {
  let pausedUntil = 0;
  let seconds: number = BACKOFF_SECONDS.min;
  return {
    pausedUntil: () => pausedUntil,
    report(cause: Error): void {
      const now = clock.now();
      if (pausedUntil > now) return; // A concurrent call of the same pass has reported it.
      pausedUntil = now + seconds;
      seconds = Math.min(seconds * 2, BACKOFF_SECONDS.max);
      events.failed('payments', cause);
    },
    end(): void {
      seconds = BACKOFF_SECONDS.min;
    },
  };
}

/** Returns when refunds and disputes are due to be read, in Unix seconds; Infinity without a recent payment. */
function feedDue({ clock, ledger }: FeedApp): number {
  const now = clock.now();
  if (!hasPaymentsSince(ledger.read, now - FEED_DAYS * DAY_SECONDS)) return Number.POSITIVE_INFINITY;
  return findFeed(ledger.read)?.dueAt ?? now;
}

/**
 * Takes in the refunds and disputes since the last read, and logs those that are `faulty` and were not before. Returns how far it
 * came, when to read again, and the error if any.
 */
async function readEvents(
  app: FeedApp,
  now: number,
  faulty: Set<string>,
): Promise<{ readTo: number; dueAt: number; error?: unknown }> {
  const { read } = app.ledger;
  // The first time a day back: a payment may have been refunded before it was known here as paid.
  const from = findFeed(read)?.readTo ?? Math.min(firstCheckoutAt(read) ?? now, now - DAY_SECONDS);
  let readTo = from;
  try {
    const { events, until } = await app.payments.readEvents(from, now);
    for (const event of events) {
      if (event.fault === undefined) await receive(app, event);
      else if (!faulty.has(event.id)) {
        faulty.add(event.id);
        app.events.failed('payments', new Error(`event ${event.id}: ${event.fault}`));
      }
      readTo = Math.max(readTo, event.at);
    }
    if (until === undefined) return { readTo, dueAt: now + FEED_SECONDS };
    return { readTo: Math.max(readTo, until), dueAt: now }; // The rest is read at once.
  } catch (error) {
    return { readTo, dueAt: now + FEED_RETRY_SECONDS, error };
  }
}
