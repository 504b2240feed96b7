import { and, asc, count, desc, eq, gt, gte, inArray, lt, lte, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import type { EventType } from '../db/enums.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { deliveries, events } from '../db/schema.ts';
import { deleteRows } from '../db/tally.ts';
import { defineWrite } from '../db/write.ts';
import { LIST_COUNT_MAX, type ListPage, type Wallet } from './wallet.ts';

/**
 * The outbox of events for receivers (docs/decisions/0037): an event is written in the transaction that caused it, with one
 * delivery for each receiver that wants it. The notifier sends waiting deliveries (src/notify).
 */

export type OutboxEvent = typeof events.$inferSelect;
export type Delivery = typeof deliveries.$inferSelect;

/** Seconds for which events are kept. Longer than a month: what is told once in a period is looked up among them. */
export const EVENT_KEPT_SECONDS = 32 * 86_400;

/** The settings of events that the ledger needs. */
export type OutboxSettings = {
  /** `types` are the types that a receiver gets; by default all. */
  receivers: readonly { name: string; types?: readonly EventType[] | undefined }[];
  /** An account whose available credit falls below this is low; undefined where no limit is set. */
  account_low_cents: number | undefined;
};

/** Returns the settings of events that the ledger needs: without the secrets of receivers. */
export const outboxSettings = ({
  receivers,
  account_low_cents,
}: Pick<OutboxSettings, 'receivers'> & { account_low_cents?: number | undefined }): OutboxSettings => ({
  receivers: receivers.map(({ name, types }) => ({ name, types })),
  account_low_cents,
});

export type Outbox = OutboxSettings & {
  /** Called inside the transaction that writes an event: it may still be rolled back. */
  recorded(): void;
};

const outboxes = new WeakMap<object, Outbox>();

/** Sets the receivers of events of this database. */
export function attachOutbox(tx: Tx, outbox: Outbox): void {
  outboxes.set(tx, outbox);
}

/** Returns the cents below which the available credit of an account is low; undefined where no limit is set. */
export const accountLowCents = (tx: Tx): number | undefined => outboxes.get(tx)?.account_low_cents;

const WAITING = sql`${deliveries.deliveredAt} is null and ${deliveries.gaveUpAt} is null`;
/** The condition that no earlier event of the same subject waits for the same receiver. */
const FIRST_OF_SUBJECT = sql`not exists (
  select 1 from delivery d
  where d.receiver = ${deliveries.receiver} and d.subject = ${deliveries.subject} and d.event_seq < ${deliveries.eventSeq}
    and d.delivered_at is null and d.gave_up_at is null)`;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(events)
    .where(eq(events.id, sql.placeholder('id')))
    .prepare(),
  newest: read.select({ seq: events.seq }).from(events).orderBy(desc(events.seq)).limit(1).prepare(),
  latestOf: read
    .select()
    .from(events)
    .where(eq(events.subject, sql.placeholder('subject')))
    .orderBy(desc(events.seq))
    .limit(1)
    .prepare(),
  deliveries: read
    .select()
    .from(deliveries)
    .where(eq(deliveries.eventSeq, sql.placeholder('seq')))
    .orderBy(asc(deliveries.receiver))
    .prepare(),
  due: read
    .select({ event: events, delivery: deliveries })
    .from(deliveries)
    .innerJoin(events, eq(events.seq, deliveries.eventSeq))
    .where(
      and(
        eq(deliveries.receiver, sql.placeholder('receiver')),
        WAITING,
        lte(deliveries.dueAt, sql.placeholder('now')),
        FIRST_OF_SUBJECT,
      ),
    )
    .orderBy(asc(deliveries.eventSeq))
    .limit(1)
    .prepare(),
  nextDue: read
    .select({ at: sql<number | null>`min(${deliveries.dueAt})`.mapWith(Number) })
    .from(deliveries)
    .where(
      and(eq(deliveries.receiver, sql.placeholder('receiver')), WAITING, gt(deliveries.dueAt, sql.placeholder('now'))),
    )
    .prepare(),
  waiting: read
    .select({
      count: sql`count(*)`.mapWith(Number),
      oldestAt: sql<number | null>`min(${deliveries.queuedAt})`.mapWith(deliveries.queuedAt),
    })
    .from(deliveries)
    .where(and(eq(deliveries.receiver, sql.placeholder('receiver')), WAITING))
    .prepare(),
  oldest: read.select({ at: events.createdAt }).from(events).orderBy(asc(events.createdAt)).limit(1).prepare(),
  stale: read
    .select({ seq: events.seq })
    .from(events)
    .where(lte(events.createdAt, sql.placeholder('until')))
    .limit(LIST_COUNT_MAX)
    .prepare(),
}));

/**
 * A text from outside may have half of a surrogate pair. The rows have it as U+FFFD, as SQLite writes it; JSON would pass it on, to
 * receivers that cannot encode it.
 */
const wellFormed = (_: string, value: unknown) => (typeof value === 'string' ? value.toWellFormed() : value);

/** Writes an event and a delivery of it for each receiver that wants its type. `data` holds no secret and no prompt. */
export function record(tx: Tx, type: EventType, subject: string, data: Record<string, unknown>, now: number): void {
  const outbox = outboxes.get(tx);
  const row = withChecksum(events, {
    seq: (reads(tx).newest.get()?.seq ?? 0) + 1,
    id: newId('msg'),
    type,
    subject,
    data: JSON.stringify(data, wellFormed),
    createdAt: now,
  });
  tx.insert(events).values(row).run();
  for (const { name } of wanting(tx, type)) enqueue(tx, row, name, now);
  outbox?.recorded();
}

/** Writes an event that every receiver gets. */
export const recordTest = defineWrite('event.test', (tx, { now }: { now: number }) =>
  record(tx, 'test', 'test', {}, now),
);

/** Returns the receivers that want events of a type. Every receiver gets a test. */
const wanting = (tx: Tx, type: EventType) =>
  (outboxes.get(tx)?.receivers ?? []).filter(({ types }) => type === 'test' || (types?.includes(type) ?? true));

function enqueue(tx: Tx, { seq, subject }: Pick<OutboxEvent, 'seq' | 'subject'>, receiver: string, now: number): void {
  const times = { queuedAt: now, deliveredAt: null, gaveUpAt: null, dueAt: now };
  const row = withChecksum(deliveries, { eventSeq: seq, receiver, subject, ...times, attempts: 0, lastError: null });
  tx.insert(deliveries)
    .values(row)
    .onConflictDoUpdate({ target: [deliveries.eventSeq, deliveries.receiver], set: row })
    .run();
}

/** Returns the event with this id. Throws `not_found`. */
export function eventOf(read: Reader, id: string): OutboxEvent {
  const event = reads(read).byId.get({ id });
  if (!event) throw new Refusal('not_found', `There is no event ${id}. Events are kept for 32 days.`);
  return event;
}

/** Returns the newest event about a subject. */
export const latestEventOf = (read: Reader, subject: string): OutboxEvent | undefined =>
  reads(read).latestOf.get({ subject });

/** `since` is in Unix seconds. */
type EventFilter = {
  type?: EventType | undefined;
  wallet?: Pick<Wallet, 'id'> | undefined;
  since?: number | undefined;
};

const matching = ({ type, wallet, since }: EventFilter) =>
  and(
    type === undefined ? undefined : eq(events.type, type),
    wallet === undefined ? undefined : eq(events.subject, wallet.id),
    since === undefined ? undefined : gte(events.createdAt, since),
  );

/** Returns the matching events, newest first, before the id `before`, at most `limit`. Throws `not_found` for `before`. */
export function listEvents(
  read: Reader,
  filter: EventFilter,
  { before, limit = LIST_COUNT_MAX }: ListPage = {},
): OutboxEvent[] {
  return read
    .select()
    .from(events)
    .where(and(matching(filter), before === undefined ? undefined : lt(events.seq, eventOf(read, before).seq)))
    .orderBy(desc(events.seq))
    .limit(limit)
    .all();
}

/** Counts the events that `listEvents` pages through. */
export function countEvents(read: Reader, filter: EventFilter): number {
  return Number(read.select({ count: count() }).from(events).where(matching(filter)).get()?.count);
}

/** Returns the deliveries of an event, by receiver. */
export const deliveriesOf = (read: Reader, { seq }: OutboxEvent): Delivery[] => reads(read).deliveries.all({ seq });

/**
 * Queues an event again, with its id, for every configured receiver that wants its type. It is sent before younger waiting events
 * of the same subject. Returns how many receivers get it. Throws `not_found`.
 */
export const resendEvent = defineWrite('event.resend', (tx, { id, now }: { id: string; now: number }): number => {
  const event = eventOf(tx, id);
  const outbox = outboxes.get(tx);
  const receivers = wanting(tx, event.type);
  for (const { name } of receivers) enqueue(tx, event, name, now);
  if (receivers.length) outbox?.recorded();
  return receivers.length;
});

/** Returns the next delivery to a receiver: the oldest that is due without an earlier one of its subject. */
export function nextDelivery(
  read: Reader,
  receiver: string,
  now: number,
): { event: OutboxEvent; delivery: Delivery } | undefined {
  return reads(read).due.get({ receiver, now });
}

/**
 * Returns the Unix seconds after `now` at which a delivery to this receiver may be due. One that is due already and was not
 * returned by `nextDelivery` waits for another of its subject.
 */
export function nextDeliveryAt(read: Reader, receiver: string, now: number): number | undefined {
  return reads(read).nextDue.get({ receiver, now })?.at || undefined;
}

/** Returns how many events wait for this receiver, and since when the oldest does (Unix seconds). */
export const waitingOf = (read: Reader, receiver: string): { count: number; oldestAt: number | null } =>
  reads(read).waiting.get({ receiver }) ?? { count: 0, oldestAt: null };

export const waitingCount = (read: Reader, receiver: string): number => waitingOf(read, receiver).count;

export type DeliveryResult =
  | { kind: 'delivered' }
  | { kind: 'failed'; error: string; dueAt: number }
  | { kind: 'gave_up'; error: string };

type RecordAttempt = {
  delivery: Delivery;
  attempt: DeliveryResult;
  /** The receiver had been down: all of its waiting deliveries become due. */
  isBack: boolean;
  now: number;
};
/** Records the outcome of an attempt. */
export const recordAttempt = defineWrite('event.attempt', (tx, { delivery, attempt, isBack, now }: RecordAttempt) => {
  noteAttempt(tx, delivery, attempt, now);
  if (isBack) hurry(tx, delivery.receiver, now);
});

/** Changes the row of a delivery, unless it was queued again during the attempt, or is gone. */
function noteAttempt(tx: Tx, { eventSeq, receiver, queuedAt }: Delivery, attempt: DeliveryResult, now: number): void {
  const row = reads(tx)
    .deliveries.all({ seq: eventSeq })
    .find((it) => it.receiver === receiver);
  if (row?.queuedAt !== queuedAt || row.deliveredAt !== null || row.gaveUpAt !== null) return;
  const attempts = row.attempts + (attempt.kind === 'delivered' ? 0 : 1);
  const change = {
    delivered: { deliveredAt: now, lastError: null },
    failed: { attempts, dueAt: attempt.kind === 'failed' ? attempt.dueAt : now },
    gave_up: { attempts, gaveUpAt: now },
  }[attempt.kind];
  const lastError = attempt.kind === 'delivered' ? null : attempt.error;
  tx.update(deliveries)
    .set(withNewChecksum(deliveries, row, { ...change, lastError }))
    .where(and(eq(deliveries.eventSeq, eventSeq), eq(deliveries.receiver, receiver)))
    .run();
}

/** Makes all waiting deliveries of a receiver due. */
function hurry(tx: Tx, receiver: string, now: number): void {
  tx.update(deliveries)
    .set({ dueAt: now })
    .where(and(eq(deliveries.receiver, receiver), WAITING))
    .run();
}

/** Deletes events older than 32 days, at most 100. Returns how many were deleted. */
export const pruneEvents = defineWrite('event.prune', (tx, { now }: { now: number }): number => {
  const stale = reads(tx).stale.all({ until: now - EVENT_KEPT_SECONDS });
  const numbers = stale.map(({ seq }) => seq);
  if (!numbers.length) return 0;
  deleteRows(tx, deliveries, inArray(deliveries.eventSeq, numbers));
  return deleteRows(tx, events, inArray(events.seq, numbers));
});

/** Returns the Unix seconds at which the oldest event is pruned. */
export function nextStaleEvent(read: Reader): number | undefined {
  const at = reads(read).oldest.get()?.at;
  return at === undefined ? undefined : at + EVENT_KEPT_SECONDS;
}
