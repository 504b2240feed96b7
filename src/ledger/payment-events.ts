import { eq, gt, isNotNull, min, sql } from 'drizzle-orm';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { checkouts, paymentEvents, paymentFeed } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';

const reads = prepare((read: Reader) => ({
  event: read
    .select({ id: paymentEvents.id })
    .from(paymentEvents)
    .where(eq(paymentEvents.id, sql.placeholder('id')))
    .prepare(),
  feed: read.select().from(paymentFeed).prepare(),
  firstSession: read
    .select({ at: min(checkouts.createdAt) })
    .from(checkouts)
    .where(isNotNull(checkouts.sessionId))
    .prepare(),
  paidSince: read
    .select({ id: checkouts.id })
    .from(checkouts)
    .where(gt(checkouts.paidAt, sql.placeholder('since')))
    .limit(1)
    .prepare(),
}));

export type PaymentEvent = { id: string; type: string; subject: string };

/** Returns whether this event has been processed. */
export function isKnownEvent(read: Reader, id: string): boolean {
  return reads(read).event.get({ id }) !== undefined;
}

/** Records that an event was processed, in the same write as the changes it caused. */
export function noteEvent(tx: Tx, { id, type, subject }: PaymentEvent, now: number): void {
  tx.insert(paymentEvents)
    .values(withChecksum(paymentEvents, { id, type, subject, receivedAt: now }))
    .run();
}

/** Progress through the provider's event list: read up to `readTo`, next read at `dueAt` (both Unix seconds). */
type Feed = { readTo: number; dueAt: number };

/** Returns the progress through the provider's event list; undefined before the first read. */
export function findFeed(read: Reader): Feed | undefined {
  return reads(read).feed.get();
}

/** Records the progress through the provider's event list. */
export const setFeed = defineWrite('payment.set_feed', (tx, feed: Feed) => {
  const row = withChecksum(paymentFeed, { id: 1, ...feed });
  tx.insert(paymentFeed).values(row).onConflictDoUpdate({ target: paymentFeed.id, set: row }).run();
});

/** Returns when the oldest checkout that could be paid was opened, in Unix seconds; undefined where there is none. */
export function firstCheckoutAt(read: Reader): number | undefined {
  return reads(read).firstSession.get()?.at ?? undefined;
}

/** Returns whether any checkout was paid after `since` (Unix seconds), so that it may still be refunded or disputed. */
export function hasPaymentsSince(read: Reader, since: number): boolean {
  return reads(read).paidSince.get({ since }) !== undefined;
}
