import { and, eq, sql } from 'drizzle-orm';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { checkouts, type REVERSAL_STATES, reversals } from '../db/schema.ts';
import { accountOf, clawBack, fundAccount, setDisputed } from './account.ts';

type Checkout = typeof checkouts.$inferSelect;
export type Reversal = typeof reversals.$inferSelect;
export type ReversalState = (typeof REVERSAL_STATES)[number];

/** What the provider says of a refund or a dispute. */
export type ReversalReport = {
  id: string;
  kind: Reversal['kind'];
  paymentIntent: string;
  amountCents: number;
  /**
   * `inquiry`: asked about, nothing taken · `taken`: the money went back, or is on its way · `lost`: a dispute that was
   * decided so · `returned`: it failed, was withdrawn, or was won.
   */
  state: ReversalState;
  /** When the provider said so, Unix seconds. */
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

/** What comes later in the life of a refund or dispute. Within one second only this tells which word is the newer. */
const RANK: Record<ReversalState, number> = { inquiry: 0, taken: 1, lost: 2, returned: 3 };

/** Whether what is said is newer than what is known. What was given back stays so. */
function isNews(known: Reversal, said: ReversalReport): boolean {
  if (known.state === 'returned') return false;
  return said.asOf > known.asOf || (said.asOf === known.asOf && RANK[said.state] > RANK[known.state]);
}

const isUndecided = (it: Pick<Reversal, 'kind' | 'state'>) =>
  it.kind === 'dispute' && (it.state === 'inquiry' || it.state === 'taken');

export type Reversed = {
  checkout: Checkout;
  /** Cents that were taken back by this, or, below 0, given back. */
  movedCents: number;
};

/**
 * Takes what is said of a refund or dispute, in any order and however often. What it takes from the account follows from
 * all that is known of the payment. Undefined when it is no news, or when no checkout of ours was paid by that payment, as
 * far as is known: then it waits for that.
 */
export function reportReversal(tx: Tx, said: ReversalReport, now: number): Reversed | undefined {
  const known = reads(tx).byId.get({ id: said.id });
  if (known && !isNews(known, said)) return undefined;
  const checkout = reads(tx).paidBy.get({ paymentIntent: said.paymentIntent });
  const { amountCents, state, asOf } = said;
  if (known) changeReversal(tx, known, { amountCents, state, asOf });
  else
    tx.insert(reversals)
      .values(withChecksum(reversals, { ...said, checkoutId: null, createdAt: now }))
      .run();
  return checkout && settleReversals(tx, checkout, now, `${said.kind} ${said.id}`);
}

function changeReversal(tx: Tx, reversal: Reversal, change: Partial<Reversal>): void {
  tx.update(reversals)
    .set(withNewChecksum(reversals, reversal, change))
    .where(eq(reversals.id, reversal.id))
    .run();
}

/**
 * Takes from the account what the refunds and disputes of a paid checkout ask for, never more than it brought, or gives back
 * what they no longer ask for. While a dispute is undecided the account gets no new wallets.
 */
export function settleReversals(
  tx: Tx,
  checkout: Checkout,
  now: number,
  reason = 'known before the payment',
): Reversed {
  const { id, accountId, amountCents, takenCents: before, paymentIntent, sessionId } = checkout;
  if (paymentIntent === null || sessionId === null) return { checkout, movedCents: 0 };
  const all = reads(tx).ofPayment.all({ paymentIntent });
  const isNewDispute = all.some((it) => it.checkoutId === null && isUndecided(it));
  for (const it of all) if (it.checkoutId === null) changeReversal(tx, it, { checkoutId: id });

  const asked = all.filter(({ state }) => state === 'taken' || state === 'lost');
  const takenCents = Math.min(
    amountCents,
    asked.reduce((sum, it) => sum + it.amountCents, 0),
  );
  const movedCents = takenCents - before;
  if (movedCents > 0) clawBack(tx, { accountId, cents: movedCents, sessionId, reason }, now);
  if (movedCents < 0)
    fundAccount(tx, { accountId, kind: 'reinstatement', amountCents: -movedCents, reason, key: null, sessionId }, now);
  const settled = withNewChecksum(checkouts, checkout, { takenCents });
  if (movedCents !== 0) tx.update(checkouts).set(settled).where(eq(checkouts.id, id)).run();

  const { disputedAt } = accountOf(tx, accountId);
  const isDisputed = reads(tx).undecided.get({ accountId }) !== undefined;
  if (!isDisputed && disputedAt !== null) setDisputed(tx, accountId, null);
  if (isDisputed && isNewDispute && disputedAt === null) setDisputed(tx, accountId, now);
  return { checkout: { ...checkout, ...settled }, movedCents };
}
