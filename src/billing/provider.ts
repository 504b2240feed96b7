import type { Checkout, Creation, PaymentReport } from '../ledger/checkout.ts';
import type { ReversalReport } from '../ledger/reversal.ts';

/** An event of the payment provider. */
export type ProviderEvent = {
  id: string;
  type: string;
  /** The time of the event, in Unix seconds of the provider's clock. */
  at: number;
  /** The id of the session, refund or dispute that it is about. */
  subject: string;
  /** The content; undefined for an event that is not relevant. */
  content: { payment: MarkedPayment } | { reversal: ReversalReport } | undefined;
  /** Set when a relevant event does not have its documented form. */
  fault?: string;
};

/** A report on a payment, with the installation and account from the session's metadata. */
export type MarkedPayment = PaymentReport & { installationId: string | undefined; accountId: string | undefined };

/** The provider could not be reached or rejected our key. The state of the requested object is unknown. */
export class ProviderDown extends Error {}

/** A payment provider. Every call has a time limit and is idempotent. */
export type Provider = {
  /** True when payments are real money. */
  livemode: boolean;
  /** True when webhooks are configured. */
  takesWebhooks: boolean;
  /** Creates a payment session. Repeated calls for a checkout create the session once. Never throws. */
  create(checkout: Checkout): Promise<Creation>;
  /** Returns the session that an earlier attempt created for this checkout, if it can be found. Never throws. */
  find(checkout: Checkout): Promise<Creation | undefined>;
  /** Reads the state of a session. Throws ProviderDown when the provider is unavailable, another Error if only this session fails. */
  read(sessionId: string): Promise<MarkedPayment>;
  /**
   * Reads the events of refunds and disputes since a time in Unix seconds, oldest first. Of too many for one call it reads those
   * before `until`, a time up to `now`; undefined when all were read. Throws like `read`.
   */
  readEvents(since: number, now: number): Promise<{ events: ProviderEvent[]; until: number | undefined }>;
  /** Verifies and parses a signed webhook message at `now` (Unix seconds). Throws `invalid_request` when it is not authentic. */
  open(message: Buffer, signature: string | undefined, now: number): ProviderEvent;
  /** Checks for doctor that the key has the needed permissions. Returns the finding; throws an error that describes the fault. */
  check(): Promise<string>;
  /** Cancels calls in flight; their outcome is unknown. */
  close(): Promise<void>;
};
