import { type Checkout, type CheckoutCursor, dueCheckouts, lookAgain, nextDueCheckout } from '../ledger/checkout.ts';
import { findFeed, hasPaymentsSince, setFeed } from '../ledger/payment-events.ts';
import { LIST_COUNT_MAX } from '../ledger/wallet.ts';
import type { BillingApp } from './checkout.ts';
import { type Provider, ProviderDown } from './provider.ts';
import { receive, takePayment } from './receive.ts';

/** So many sessions are asked after at the same time. */
const AT_ONCE_COUNT = 4;
/** How long a provider that cannot be asked is left alone, ever longer. */
const QUIET_SECONDS = { least: 15, most: 600 };
/** Refunds and disputes are asked for this often, and so long after the last payment: cards may be disputed for months. */
const FEED_SECONDS = 300;
const FEED_AGAIN_SECONDS = 900;
const FEED_DAYS = 180;
const DAY_SECONDS = 86_400;

/** What a pass came to. */
export type Looked = { asked: number; failed: number };

/** Asking the provider of our own accord: what is enough where no webhook can reach us. */
export type PaymentPoller = {
  /** Asks after everything that is due. While a pass runs, a second call joins it. */
  pass(): Promise<Looked>;
  /** Unix seconds of the next thing to ask for. */
  nextDue(): number;
  /** Ends what is in flight. Resolves when no pass runs; safe before the first, and twice. */
  stop(): Promise<void>;
};

export function createPaymentPoller(app: Omit<BillingApp, 'payments'> & { payments: Provider }): PaymentPoller {
  let running: Promise<Looked> | undefined;
  let stopped = false;
  let quietUntil = 0;
  let quietSeconds: number = QUIET_SECONDS.least;

  /** What goes wrong with one checkout postpones that one; a provider that is down postpones all. */
  async function askAfter(it: Checkout, looked: Looked): Promise<void> {
    if (quietUntil > app.clock.now() || stopped) return;
    let error: string | null = null;
    try {
      // Without a session nobody has an address to pay at, and there is nothing to ask for.
      if (it.sessionId !== null) await takePayment(app, await app.payments.read(it.sessionId));
      quietSeconds = QUIET_SECONDS.least;
      looked.asked++;
    } catch (cause) {
      if (stopped) return;
      looked.failed++;
      if (cause instanceof ProviderDown) return beQuiet(cause);
      error = (cause as Error).message;
    }
    const now = app.clock.now();
    const after = await app.ledger.write((tx) => lookAgain(tx, it.id, error, now));
    if (after.status === 'abandoned') app.events.checkoutMoved(after);
  }

  function beQuiet(cause: Error): void {
    const now = app.clock.now();
    if (quietUntil > now) return; // Another call of the same pass has said so.
    quietUntil = now + quietSeconds;
    quietSeconds = Math.min(quietSeconds * 2, QUIET_SECONDS.most);
    app.events.failed('payments', cause);
  }

  async function askAfterCheckouts(looked: Looked): Promise<void> {
    const now = app.clock.now();
    for (let cursor: CheckoutCursor | undefined; ; ) {
      const page = dueCheckouts(app.ledger.read, now, cursor);
      const left = page.values();
      const work = async () => {
        for (const it of left) await askAfter(it, looked);
      };
      await Promise.all(Array.from({ length: AT_ONCE_COUNT }, work));
      cursor = page.at(-1);
      if (page.length < LIST_COUNT_MAX) return;
    }
  }

  /** When the list of refunds and disputes is to be read; never where nothing was paid lately. */
  function feedDue(): number {
    const now = app.clock.now();
    if (!hasPaymentsSince(app.ledger.read, now - FEED_DAYS * DAY_SECONDS)) return Number.POSITIVE_INFINITY;
    return findFeed(app.ledger.read)?.dueAt ?? now;
  }

  async function readFeed(looked: Looked): Promise<void> {
    const now = app.clock.now();
    if (stopped || quietUntil > now || feedDue() > now) return;
    const readTo = findFeed(app.ledger.read)?.readTo ?? now - DAY_SECONDS;
    const next = { readTo, dueAt: now + FEED_SECONDS };
    try {
      for (const event of await app.payments.readEvents(readTo)) {
        if (event.fault === undefined) await receive(app, event);
        else app.events.failed('payments', new Error(`event ${event.id}: ${event.fault}`));
        next.readTo = Math.max(next.readTo, event.at);
      }
      looked.asked++;
    } catch (error) {
      if (stopped) return;
      looked.failed++;
      app.events.failed('payments', error);
      next.dueAt = now + FEED_AGAIN_SECONDS;
    }
    await app.ledger.write((tx) => setFeed(tx, next));
  }

  async function run(): Promise<Looked> {
    const looked = { asked: 0, failed: 0 };
    await askAfterCheckouts(looked);
    await readFeed(looked);
    return looked;
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
      return Math.max(due, quietUntil);
    },
    async stop() {
      stopped = true;
      await app.payments.close();
      await running?.catch(() => {});
    },
  };
}
