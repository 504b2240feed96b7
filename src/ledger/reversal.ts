import { and, eq, sql } from 'drizzle-orm';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import type { REVERSAL_STATES } from '../db/enums.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { checkouts, reversals } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { accountOf, clawBack, fundAccount, setDisputed } from './account.ts';
import { isKnownEvent, noteEvent, type PaymentEvent } from './payment-events.ts';

type ReversedCheckout = typeof checkouts.$inferSelect;
type Reversal = typeof reversals.$inferSelect;
export type ReversalState = (typeof REVERSAL_STATES)[number];

/** The provider's report on a refund or a dispute. */
export type ReversalReport = {
  id: string;
  kind: Reversal['kind'];
  paymentIntent: string;
  amountCents: number;
  /**
   * `inquiry`: questioned, nothing taken · `taken`: the money went back or is on its way · `lost`: a dispute decided
   * against us · `returned`: failed, withdrawn or won.
   */
  state: ReversalState;
  /** Time of the provider's report, Unix seconds. */
  asOf: number;
};

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(reversals)
    .where(eq(reversals.id, sql.placeholder('id')))
    .prepare(),
  paidBy: read
    .select()
    .from(checkouts)
    .where(and(eq(checkouts.paymentIntent, sql.placeholder('paymentIntent')), eq(checkouts.status, 'paid')))
    .prepare(),
  ofPayment: read
    .select()
    .from(reversals)
    .where(eq(reversals.paymentIntent, sql.placeholder('paymentIntent')))
    .prepare(),
  undecided: read
    .select({ id: reversals.id })
    .from(reversals)
    .innerJoin(checkouts, eq(checkouts.id, reversals.checkoutId))
    .where(
      and(
        eq(checkouts.accountId, sql.placeholder('accountId')),
        sql`${reversals.kind} = 'dispute' and ${reversals.state} in ('inquiry', 'taken')`,
      ),
    )
    .limit(1)
    .prepare(),
}));

/** Order of states in the life of a refund or dispute. Decides between two reports of the same second. */
const RANK: Record<ReversalState, number> = { inquiry: 0, taken: 1, lost: 2, returned: 3 };

/** Returns whether a report is newer than the known state. Returned money stays returned. */
function isNews(known: Reversal, report: ReversalReport): boolean {
  if (known.state === 'returned') return false;
  return report.asOf > known.asOf || (report.asOf === known.asOf && RANK[report.state] > RANK[known.state]);
}

const isUndecided = (it: Pick<Reversal, 'kind' | 'state'>) =>
  it.kind === 'dispute' && (it.state === 'inquiry' || it.state === 'taken');

type Reversed = {
  checkout: ReversedCheckout;
  /** Cents taken back from the account; negative when given back. */
  movedCents: number;
};

/**
 * Applies a report on a refund or dispute, in any order and however often. The amount taken from the account follows from
 * everything known about the payment. Returns undefined when the report is no news, or when no checkout is known to have been paid
 * by that payment; the report is then kept until one is known.
 */
function reportReversal(tx: Tx, report: ReversalReport, now: number): Reversed | undefined {
  const known = reads(tx).byId.get({ id: report.id });
  if (known && !isNews(known, report)) return undefined;
  const checkout = reads(tx).paidBy.get({ paymentIntent: report.paymentIntent });
  const { amountCents, state, asOf } = report;
  if (known) changeReversal(tx, known, { amountCents, state, asOf });
  else
    tx.insert(reversals)
      .values(withChecksum(reversals, { ...report, checkoutId: null, createdAt: now }))
      .run();
  return checkout && settleReversals(tx, checkout, now, `${report.kind} ${report.id}`);
}

type Reverse = { reversal: ReversalReport; event: PaymentEvent; now: number };
/** Applies a refund or a dispute; returns undefined where its event had been applied before. */
export const reversePayment = defineWrite('payment.reverse', (tx, { reversal, event, now }: Reverse) => {
  if (isKnownEvent(tx, event.id)) return undefined;
  noteEvent(tx, event, now);
  return reportReversal(tx, reversal, now);
});

function changeReversal(tx: Tx, reversal: Reversal, change: Partial<Reversal>): void {
  tx.update(reversals)
    .set(withNewChecksum(reversals, reversal, change))
    .where(eq(reversals.id, reversal.id))
    .run();
}

/**
 * Takes from the account the amount that the refunds and disputes of a paid checkout claim, at most its credit, or gives back what
 * they no longer claim. During an undecided dispute the account gets no new wallets.
 */
export function settleReversals(
  tx: Tx,
  checkout: ReversedCheckout,
  now: number,
  reason = 'known before the payment',
): Reversed {
  const { id, accountId, amountCents, takenCents: before, paymentIntent, sessionId } = checkout;
  if (paymentIntent === null || sessionId === null) return { checkout, movedCents: 0 };
  const all = reads(tx).ofPayment.all({ paymentIntent });
  const isNewDispute = all.some((it) => it.checkoutId === null && isUndecided(it));
  for (const it of all) if (it.checkoutId === null) changeReversal(tx, it, { checkoutId: id });

  const takenBack = all.filter(({ state }) => state === 'taken' || state === 'lost');
  const takenCents = Math.min(
    amountCents,
    takenBack.reduce((sum, it) => sum + it.amountCents, 0),
  );
  const movedCents = takenCents - before;
  if (movedCents > 0) clawBack(tx, { accountId, cents: movedCents, sessionId, reason }, now);
  if (movedCents < 0) {
    const order = { accountId, kind: 'reinstatement' as const, amountCents: -movedCents, reason, key: null, sessionId };
    fundAccount.run(tx, { order, now });
  }
  const settled = withNewChecksum(checkouts, checkout, { takenCents });
  if (movedCents !== 0) tx.update(checkouts).set(settled).where(eq(checkouts.id, id)).run();

  const { disputedAt } = accountOf(tx, accountId);
  const isDisputed = reads(tx).undecided.get({ accountId }) !== undefined;
  if (!isDisputed && disputedAt !== null) setDisputed(tx, accountId, null);
  if (isDisputed && isNewDispute && disputedAt === null) setDisputed(tx, accountId, now);
  return { checkout: { ...checkout, ...settled }, movedCents };
}
