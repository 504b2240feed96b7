import type { Clock } from '../clock.ts';
import type { Events } from '../events.ts';
import {
  type Checkout,
  type CheckoutOrder,
  findCheckoutByKey,
  openCheckout,
  settleCreation,
} from '../ledger/checkout.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { Refusal } from '../refusal.ts';
import type { InFlight } from '../spend/in-flight.ts';
import { inProgress, JOIN_SECONDS, uncertain } from '../spend/spend.ts';
import type { Provider } from './provider.ts';

export type BillingApp = {
  ledger: Ledger;
  clock: Clock;
  events: Events;
  inFlight: InFlight;
  /** Where people pay, if that is configured. */
  payments: Provider | undefined;
  installationId: string;
  /** Tells the reaper of a deadline, in Unix seconds. */
  wakeAt: (at: number) => void;
};
export type CheckoutRequest = Omit<CheckoutOrder, 'expiresAt'>;

/** Between the provider's own limits, 30 minutes and 24 hours: whoever pays does so at once, and clocks may differ. */
const CHECKOUT_SECONDS = 3 * 3600;
const REFUSED_RETRY_SECONDS = 30;
const ROUTE = 'billing/checkout';

/**
 * A hosted checkout. Our own row comes first, then the provider's session, asked for by the row's id. The same key and
 * body never make a second one: while the first attempt runs the second joins it, afterwards the row answers as it stands.
 * An attempt whose outcome is unknown is asked for again by the same id.
 *
 * Refusals: `idempotency_conflict`, `idempotency_in_progress`, `billing_not_configured`, `rate_limited`, and
 * `provider_unavailable` where the provider clearly refused, `operation_uncertain` where nobody knows.
 */
export async function checkout(
  app: BillingApp,
  request: CheckoutRequest,
): Promise<{ checkout: Checkout; replayed: boolean }> {
  const { accountId, idempotencyKey, fingerprint } = request;
  const attempt = app.inFlight.find(accountId, ROUTE, idempotencyKey);
  const earlier = findCheckoutByKey(app.ledger.read, accountId, idempotencyKey);
  const known = attempt ?? earlier;
  if (known && !known.fingerprint.equals(fingerprint)) throw new Refusal('idempotency_conflict');
  if (attempt) return { checkout: (await attempt.join(JOIN_SECONDS, inProgress)) as Checkout, replayed: true };
  if (earlier && earlier.status !== 'creating') return { checkout: earlier, replayed: true };
  const { payments } = app;
  if (!payments)
    throw new Refusal(
      'billing_not_configured',
      'This installation has no payment provider configured; the operator credits accounts with `purser account credit`.',
    );
  // No await since the look: in this process nobody else can drive this key, and there is no other process.
  const key = { walletId: accountId, route: ROUTE, idempotencyKey, fingerprint };
  const made = await app.inFlight.drive(key, () => create(app, payments, request, earlier));
  return { checkout: made, replayed: earlier !== undefined };
}

async function create(
  app: BillingApp,
  payments: Provider,
  request: CheckoutRequest,
  earlier: Checkout | undefined,
): Promise<Checkout> {
  const begunAt = app.clock.now();
  const opened =
    earlier ??
    (await app.ledger.write((tx) => openCheckout(tx, { ...request, expiresAt: begunAt + CHECKOUT_SECONDS }, begunAt)));
  // The provider answers a repetition as it answered at first, its own failures included: so look before.
  const creation = (earlier && (await payments.find(earlier))) ?? (await payments.create(opened));
  const now = app.clock.now();
  const made = await app.ledger.write((tx) => settleCreation(tx, opened.id, creation, now));
  app.events.checkoutAsked(made, creation.kind);
  if (made.status === 'creating') throw uncertain();
  if (made.status === 'refused')
    throw new Refusal(
      'provider_unavailable',
      'The payment provider does not make a checkout at the moment. Nobody was charged; the log has the reason under this request id.',
      { retryAfterSeconds: REFUSED_RETRY_SECONDS },
    );
  if (made.dueAt !== null) app.wakeAt(made.dueAt);
  return made;
}
