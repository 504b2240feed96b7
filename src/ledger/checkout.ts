import assert from 'node:assert/strict';
import { and, asc, count, desc, eq, gt, gte, lt, lte, or, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import type { CHECKOUT_STATUSES } from '../db/enums.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { checkouts } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { fundAccount } from './account.ts';
import { isKnownEvent, noteEvent, type PaymentEvent } from './payment-events.ts';
import { settleReversals } from './reversal.ts';
import { LIST_COUNT_MAX, type ListPage } from './wallet.ts';

export type Checkout = typeof checkouts.$inferSelect;
export type CheckoutStatus = (typeof CHECKOUT_STATUSES)[number];

/** Limit of unpaid checkouts per account: each is a session at the provider that has to be polled. */
export const WAITING_COUNT_MAX = 20;
const WAITING_RETRY_SECONDS = 60;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(checkouts)
    .where(eq(checkouts.id, sql.placeholder('id')))
    .prepare(),
  bySession: read
    .select()
    .from(checkouts)
    .where(eq(checkouts.sessionId, sql.placeholder('sessionId')))
    .prepare(),
  byKey: read
    .select()
    .from(checkouts)
    .where(
      and(eq(checkouts.accountId, sql.placeholder('accountId')), eq(checkouts.idempotencyKey, sql.placeholder('key'))),
    )
    .prepare(),
  waiting: read
    .select({ id: checkouts.id })
    .from(checkouts)
    .where(and(eq(checkouts.accountId, sql.placeholder('accountId')), sql`${checkouts.status} in ('creating', 'open')`))
    .limit(WAITING_COUNT_MAX)
    .prepare(),
  due: read
    .select()
    .from(checkouts)
    .where(
      and(
        lte(checkouts.dueAt, sql.placeholder('now')),
        or(
          gt(checkouts.dueAt, sql.placeholder('afterAt')),
          and(eq(checkouts.dueAt, sql.placeholder('afterAt')), gt(checkouts.id, sql.placeholder('afterId'))),
        ),
      ),
    )
    .orderBy(asc(checkouts.dueAt), asc(checkouts.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  nextDue: read
    .select({ at: checkouts.dueAt })
    .from(checkouts)
    .where(sql`${checkouts.dueAt} is not null`)
    .orderBy(asc(checkouts.dueAt))
    .limit(1)
    .prepare(),
}));

/** Returns the checkout with this id, or undefined. */
export function findCheckout(read: Reader, id: string): Checkout | undefined {
  return reads(read).byId.get({ id });
}

/** Returns the checkout that this idempotency key of the account made. A definite refusal has freed its key. */
export function findCheckoutByKey(read: Reader, accountId: string, key: string): Checkout | undefined {
  return reads(read).byKey.get({ accountId, key });
}

type CheckoutFilter = {
  accountId?: string | undefined;
  status?: Checkout['status'] | undefined;
  /** Only checkouts that need the operator: paid with another amount or currency than requested, or given up without a final report. */
  trouble?: boolean;
  /** Made at or after this, Unix seconds. */
  since?: number | undefined;
};

const matching = ({ accountId, status, trouble, since }: CheckoutFilter) =>
  and(
    accountId === undefined ? undefined : eq(checkouts.accountId, accountId),
    status === undefined ? undefined : eq(checkouts.status, status),
    trouble ? sql`${checkouts.status} in ('mismatch', 'abandoned')` : undefined,
    since === undefined ? undefined : gte(checkouts.createdAt, since),
  );

/** Returns the matching checkouts, newest first, before the id `before`, at most `limit`. */
export function listCheckouts(
  read: Reader,
  filter: CheckoutFilter,
  { before, limit = LIST_COUNT_MAX }: ListPage = {},
): Checkout[] {
  return read
    .select()
    .from(checkouts)
    .where(and(matching(filter), before === undefined ? undefined : lt(checkouts.id, before)))
    .orderBy(desc(checkouts.id))
    .limit(limit)
    .all();
}

/** Counts the checkouts that `listCheckouts` pages through. */
export function countCheckouts(read: Reader, filter: CheckoutFilter): number {
  return Number(read.select({ count: count() }).from(checkouts).where(matching(filter)).get()?.count);
}

export type CheckoutCursor = Pick<Checkout, 'id' | 'dueAt'>;

/** Returns the checkouts due to be polled by `now`, earliest first, at most 100, after `cursor`. */
export function dueCheckouts(read: Reader, now: number, cursor: CheckoutCursor = { id: '', dueAt: -1 }): Checkout[] {
  return reads(read).due.all({ now, afterAt: cursor.dueAt, afterId: cursor.id });
}

/** Returns the Unix seconds of the next poll, or undefined when none is scheduled. */
export function nextDueCheckout(read: Reader): number | undefined {
  return reads(read).nextDue.get()?.at ?? undefined;
}

export type CheckoutOrder = Pick<Checkout, 'accountId' | 'amountCents' | 'fingerprint' | 'requestId' | 'expiresAt'> & {
  idempotencyKey: string;
};

type OpenCheckout = { order: CheckoutOrder; now: number };
/**
 * Records a checkout before the request to the provider. Throws `rate_limited` when too many checkouts of the account are
 * unpaid. A suspended account may pay.
 */
export const openCheckout = defineWrite('checkout.open', (tx, { order, now }: OpenCheckout): Checkout => {
  refuseOnLowDisk(tx);
  if (reads(tx).waiting.all({ accountId: order.accountId }).length >= WAITING_COUNT_MAX)
    throw new Refusal(
      'rate_limited',
      `This account has ${WAITING_COUNT_MAX} unpaid checkouts. Pay one of them, or let them expire.`,
      { retryAfterSeconds: WAITING_RETRY_SECONDS },
    );
  const checkout = withChecksum(checkouts, {
    id: newId('chk'),
    ...order,
    status: 'creating' as const,
    takenCents: 0,
    sessionId: null,
    url: null,
    paymentIntent: null,
    createdAt: now,
    paidAt: null,
    dueAt: order.expiresAt,
    lastError: null,
  });
  tx.insert(checkouts).values(checkout).run();
  return checkout;
});

/** The outcome of asking the provider for a session. */
export type Creation =
  | { kind: 'created'; sessionId: string; url: string }
  | { kind: 'refused'; reason: string }
  | { kind: 'unknown'; reason: string };

type SettleCreation = { id: string; creation: Creation; now: number };
/**
 * Records the outcome of asking for a session. A refusal frees the idempotency key; an unknown outcome leaves the
 * checkout `creating`. If the provider has reported the session in the meantime, that report stands.
 */
export const settleCreation = defineWrite('checkout.settle_creation', (tx, data: SettleCreation): Checkout => {
  const { id, creation, now } = data;
  const checkout = findCheckout(tx, id);
  assert(checkout, 'checkouts are kept');
  if (checkout.status !== 'creating') return checkout;
  const changes = {
    created: ({ sessionId, url }: Extract<Creation, { kind: 'created' }>) => ({
      status: 'open' as const,
      sessionId,
      url,
      dueAt: nextPollAt('open', checkout, now),
      lastError: null,
    }),
    refused: ({ reason }: { reason: string }) => ({
      status: 'refused' as const,
      idempotencyKey: null,
      dueAt: null,
      lastError: reason,
    }),
    unknown: ({ reason }: { reason: string }) => ({ lastError: reason }),
  };
  const change: Partial<Checkout> = changes[creation.kind](creation as never);
  return changeCheckout(tx, checkout, change);
});

function changeCheckout(tx: Tx, checkout: Checkout, change: Partial<Checkout>): Checkout {
  const after = withNewChecksum(checkouts, checkout, change);
  tx.update(checkouts).set(after).where(eq(checkouts.id, checkout.id)).run();
  return { ...checkout, ...after };
}

/** The provider's report on a session, from an event or a query. */
export type PaymentReport = {
  sessionId: string;
  /** The checkout id in the session's metadata. */
  checkoutId: string | null;
  /** `pending`: the payer has promised the money and it is on its way (a delayed payment method). */
  outcome: 'open' | 'pending' | 'paid' | 'failed' | 'expired';
  currency: string | null;
  amountCents: number | null;
  paymentIntent: string | null;
};

/**
 * The next status for each reported outcome: open, pending, paid, failed, expired, and `wrong`, a payment of another amount or in
 * another currency. Reports arrive twice, late and in any order; money that arrived always counts.
 */
export const AFTER: Record<CheckoutStatus, Record<PaymentReport['outcome'] | 'wrong', CheckoutStatus>> = {
  creating: next('open', 'pending', 'paid', 'failed', 'expired', 'mismatch'),
  open: next('open', 'pending', 'paid', 'failed', 'expired', 'mismatch'),
  pending: next('pending', 'pending', 'paid', 'failed', 'expired', 'mismatch'),
  paid: next('paid', 'paid', 'paid', 'paid', 'paid', 'paid'),
  expired: next('expired', 'pending', 'paid', 'failed', 'expired', 'mismatch'),
  failed: next('failed', 'failed', 'paid', 'failed', 'failed', 'mismatch'),
  refused: next('refused', 'pending', 'paid', 'refused', 'refused', 'mismatch'),
  mismatch: next('mismatch', 'mismatch', 'mismatch', 'mismatch', 'mismatch', 'mismatch'),
  abandoned: next('abandoned', 'pending', 'paid', 'failed', 'expired', 'mismatch'),
};

function next(
  open: CheckoutStatus,
  pending: CheckoutStatus,
  paid: CheckoutStatus,
  failed: CheckoutStatus,
  expired: CheckoutStatus,
  wrong: CheckoutStatus,
) {
  return { open, pending, paid, failed, expired, wrong };
}

type Reported =
  /** `movedCents`: the cents that refunds and disputes reported before the payment took back at once. */
  | { kind: 'known'; before: CheckoutStatus; checkout: Checkout; movedCents: number }
  /** The checkout already has a different session; it cannot have two. */
  | { kind: 'stray'; checkout: Checkout }
  | { kind: 'not_ours' };

type CheckoutReport = { report: PaymentReport; event: PaymentEvent | undefined; now: number };
/** Applies a report on a session; returns undefined where its event had been applied before. */
export const reportPayment = defineWrite('payment.report', (tx, { report, event, now }: CheckoutReport) => {
  if (event && isKnownEvent(tx, event.id)) return undefined;
  const done = applyReport(tx, report, now);
  if (event && done.kind === 'known') noteEvent(tx, event, now);
  return done;
});

/**
 * Applies a report on a session. A payment in USD of exactly the amount in our row credits the account once per session, however
 * often or in what order it is reported. Any other payment is a `mismatch`: nothing is credited.
 */
function applyReport(tx: Tx, report: PaymentReport, now: number): Reported {
  const { sessionId } = report;
  const known =
    reads(tx).bySession.get({ sessionId }) ?? (report.checkoutId ? findCheckout(tx, report.checkoutId) : undefined);
  if (!known) return { kind: 'not_ours' };
  if (known.sessionId !== null && known.sessionId !== sessionId) return { kind: 'stray', checkout: known };
  const isRight = report.currency === 'usd' && report.amountCents === known.amountCents;
  const status = AFTER[known.status][report.outcome === 'paid' && !isRight ? 'wrong' : report.outcome];
  const paymentIntent = known.paymentIntent ?? report.paymentIntent;
  if (known.status === 'paid') {
    if (paymentIntent === known.paymentIntent) return { kind: 'known', before: 'paid', checkout: known, movedCents: 0 };
    const updated = changeCheckout(tx, known, { paymentIntent });
    return { kind: 'known', before: 'paid', ...settleReversals(tx, updated, now) };
  }
  const checkout = changeCheckout(tx, known, {
    status,
    sessionId,
    paymentIntent,
    url: status === 'open' ? known.url : null,
    paidAt: status === 'paid' ? now : null,
    dueAt: status === known.status ? known.dueAt : nextPollAt(status, known, now),
    lastError:
      status === 'mismatch' && known.status !== 'mismatch'
        ? `paid ${report.amountCents} ${report.currency}, not ${known.amountCents} usd`
        : known.lastError,
  });
  if (status !== 'paid') return { kind: 'known', before: known.status, checkout, movedCents: 0 };
  const { accountId, amountCents } = known;
  const order = { accountId, kind: 'checkout' as const, amountCents, reason: known.id, key: null, sessionId };
  fundAccount.run(tx, { order, now });
  return { kind: 'known', before: known.status, ...settleReversals(tx, checkout, now) };
}

const POLL_SECONDS = { min: 15, open: 600, late: 3600, pending: 21_600 };
/** Seconds after `expiresAt` for which a checkout without a final report is still polled. Bank debits take weeks. */
const PATIENCE_SECONDS = 90 * 86_400;

/**
 * Returns when to poll the provider next (Unix seconds): soon at first, because most people pay at once, then less and
 * less often, and once right after `expiresAt`. Null when there is nothing more to learn.
 */
function nextPollAt(status: CheckoutStatus, it: Pick<Checkout, 'createdAt' | 'expiresAt'>, now: number): number | null {
  if (status === 'creating') return it.expiresAt;
  if (status !== 'open' && status !== 'pending') return null;
  const isLate = now >= it.expiresAt;
  const max = status === 'pending' ? POLL_SECONDS.pending : isLate ? POLL_SECONDS.late : POLL_SECONDS.open;
  const next = now + Math.min(Math.max(Math.floor((now - it.createdAt) / 4), POLL_SECONDS.min), max);
  return status === 'open' && !isLate ? Math.min(next, it.expiresAt + POLL_SECONDS.min) : next;
}

type RecordPoll = { id: string; error: string | null; now: number };
/**
 * Records a poll, or with `error` a failed one, and schedules the next. A checkout with no final report for too long is
 * given up: `expired` if its URL was never handed out, else `abandoned`, which needs the operator.
 */
export const recordPoll = defineWrite('checkout.record_poll', (tx, { id, error, now }: RecordPoll): Checkout => {
  const checkout = findCheckout(tx, id);
  assert(checkout, 'checkouts are kept');
  if (checkout.dueAt === null) return checkout; // It was reported in the meantime.
  const isPastDue = now >= checkout.expiresAt + (checkout.status === 'creating' ? 0 : PATIENCE_SECONDS);
  const status = isPastDue ? (checkout.status === 'creating' ? 'expired' : 'abandoned') : checkout.status;
  return changeCheckout(tx, checkout, {
    status,
    url: status === 'open' ? checkout.url : null,
    dueAt: nextPollAt(status, checkout, now),
    lastError: error ?? checkout.lastError,
  });
});
