import type { Clock } from '../base/clock.ts';
import { Refusal } from '../base/refusal.ts';
import {
  type Checkout,
  type CheckoutOrder,
  findCheckoutByKey,
  openCheckout,
  settleCreation,
} from '../ledger/checkout.ts';
import type { Ledger } from '../ledger/ledger.ts';
import type { InFlight } from '../spend/in-flight.ts';
import { inProgress, JOIN_SECONDS, uncertain } from '../spend/spend.ts';
import type { Events } from '../telemetry/events.ts';
import type { Provider } from './provider.ts';

export type BillingApp = {
  ledger: Ledger;
  clock: Clock;
  events: Events;
  inFlight: InFlight;
  /** The payment provider, if one is configured. */
  payments: Provider | undefined;
  installationId: string;
  /** Schedules a pass of the reaper at `at`, in Unix seconds. */
  wakeAt: (at: number) => void;
};
type CheckoutRequest = Omit<CheckoutOrder, 'expiresAt'>;

/** Seconds for which a checkout can be paid: within the provider's limits of 30 minutes and 24 hours, with a margin for clock skew. */
const CHECKOUT_SECONDS = 3 * 3600;
const REFUSED_RETRY_SECONDS = 30;
const ROUTE = 'billing/checkout';

/**
 * Creates a hosted checkout. Our row is written first; then the provider's session is created under the row's id. The same key and
 * body never create a second one: a repetition joins the running attempt, or returns the row in its current state. An attempt with
 * an unknown outcome is repeated under the same id.
 *
 * Throws `idempotency_conflict`, `idempotency_in_progress`, `billing_not_configured`, `rate_limited`, `provider_unavailable` when
 * the provider clearly refused, and `operation_uncertain` when the outcome is unknown.
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
  // No await since the lookup, and no other process: nothing else can be creating a checkout for this key.
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
    (await app.ledger.write(openCheckout, {
      order: { ...request, expiresAt: begunAt + CHECKOUT_SECONDS },
      now: begunAt,
    }));
  // The provider replays its first answer to a repetition, even a failure, so search for the session first.
  const creation = (earlier && (await payments.find(earlier))) ?? (await payments.create(opened));
  const now = app.clock.now();
  const made = await app.ledger.write(settleCreation, { id: opened.id, creation, now });
  app.events.checkoutRequested(made, creation.kind);
  if (made.status === 'creating') throw uncertain();
  if (made.status === 'refused')
    throw new Refusal(
      'provider_unavailable',
      'The payment provider cannot create a checkout at the moment. Nobody was charged; the log has the reason under this request id.',
      { retryAfterSeconds: REFUSED_RETRY_SECONDS },
    );
  if (made.dueAt !== null) app.wakeAt(made.dueAt);
  return made;
}
