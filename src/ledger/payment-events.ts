import { eq, gt, sql } from 'drizzle-orm';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { checkouts, paymentEvents, paymentFeed } from '../db/schema.ts';

const reads = prepare((read: Reader) => ({
  event: read
    .select({ id: paymentEvents.id })
    .from(paymentEvents)
    .where(eq(paymentEvents.id, sql.placeholder('id')))
    .prepare(),
  feed: read.select().from(paymentFeed).prepare(),
  paidSince: read
    .select({ id: checkouts.id })
    .from(checkouts)
    .where(gt(checkouts.paidAt, sql.placeholder('since')))
    .limit(1)
    .prepare(),
}));

export type PaymentEvent = { id: string; type: string; subject: string };

/** Whether this event was taken before. */
export function isKnownEvent(read: Reader, id: string): boolean {
  return reads(read).event.get({ id }) !== undefined;
}

/** Notes that an event was taken; with what it changed, in one write. */
export function noteEvent(tx: Tx, { id, type, subject }: PaymentEvent, now: number): void {
  tx.insert(paymentEvents)
    .values(withChecksum(paymentEvents, { id, type, subject, receivedAt: now }))
    .run();
}

/** How far the provider's own list of events has been read, and when it is read again, in Unix seconds. */
export type Feed = { readTo: number; dueAt: number };

export function findFeed(read: Reader): Feed | undefined {
  return reads(read).feed.get();
}

export function setFeed(tx: Tx, feed: Feed): void {
  const row = withChecksum(paymentFeed, { id: 1, ...feed });
  tx.insert(paymentFeed).values(row).onConflictDoUpdate({ target: paymentFeed.id, set: row }).run();
}

/** Whether any checkout was paid after `since`, so that it may still be refunded or disputed. */
export function hasPaymentsSince(read: Reader, since: number): boolean {
  return reads(read).paidSince.get({ since }) !== undefined;
}
