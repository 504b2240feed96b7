import type { Checkout, Creation, PaymentReport } from '../ledger/checkout.ts';
import type { ReversalReport } from '../ledger/reversal.ts';

/** What the payment provider tells of. */
export type ProviderEvent = {
  id: string;
  type: string;
  /** When it happened, by the provider's clock in Unix seconds. */
  at: number;
  /** The session, refund or dispute that it is about. */
  subject: string;
  /** Undefined: nothing that concerns us. */
  says: { payment: SaidPayment } | { reversal: ReversalReport } | undefined;
  /** It concerns us, but is not as it is documented. */
  fault?: string;
};

/** With which installation and account the session was marked when it was made. */
export type SaidPayment = PaymentReport & { installationId: string | undefined; accountId: string | undefined };

/** The provider could not be asked: it says nothing of the one thing that was asked after. */
export class ProviderDown extends Error {}

/** A payment provider. Every call has a time limit; what it was asked twice it does once. */
export type Provider = {
  /** Whether real money is paid. */
  livemode: boolean;
  /** Whether it can tell of its own accord. */
  takesWebhooks: boolean;
  /** Asks for a session to pay at. The same checkout is the same session, however often it is asked for. Never throws. */
  create(checkout: Checkout): Promise<Creation>;
  /** The session that an earlier attempt made of this checkout, if it can be found. Never throws. */
  find(checkout: Checkout): Promise<Creation | undefined>;
  /** How a session stands. Throws ProviderDown where nothing can be learned now, and an Error about this session alone. */
  read(sessionId: string): Promise<SaidPayment>;
  /** What was told of refunds and disputes since then (Unix seconds), oldest first. Throws as `read` does. */
  readEvents(since: number): Promise<ProviderEvent[]>;
  /** A signed message of the provider, at `now` (Unix seconds). Refuses what is not its own with `invalid_request`. */
  open(message: Buffer, signature: string | undefined, now: number): ProviderEvent;
  /** For doctor: whether the key is taken for all that is needed. Answers what was seen; throws what is wrong. */
  check(): Promise<string>;
  /** Ends what is in flight, as unknown. */
  close(): Promise<void>;
};
