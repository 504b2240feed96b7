import { and, asc, eq, gt, gte, isNull, lt, lte, or, sql } from 'drizzle-orm';
import { type CalendarSpan, type Period, periodAt } from '../base/calendar.ts';
import { newId } from '../base/id.ts';
import { centsToNanos, Nanos, nanosToCentsDown, nanosToCentsUp } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { withNewChecksum } from '../db/checksum.ts';
import { onceFor, prepare, type Reader, type Tx } from '../db/handle.ts';
import { balances, walletChanges, wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { accountOf, refuseNewBudget } from './account.ts';
import { insertChange, moveBudget, refuseBeyondCredit, type WalletChange } from './move.ts';
import { tellRefilled, tellRefillShort } from './notices.ts';
import { available, findWallet, LIST_COUNT_MAX, refuseInactive, statusAt, type Wallet } from './wallet.ts';

/** The amount that a wallet gets at each boundary of its period, and the rules for it (design, section 13). */
export type Refill = {
  /** US cents, above 0. */
  cents: number;
  every: Period;
  /** The time zone whose midnights, Mondays and firsts are the boundaries. */
  zone: string;
  /**
   * `none` sets the available amount to `cents`, `all` adds them, a number of cents adds them up to at most that much (0: as
   * `none`).
   */
  carry: 'none' | 'all' | number;
};

/** Seconds until a refill that the account could not pay is tried again. */
const RETRY_SECONDS = 60;

/**
 * True of a change that was made in a future that the books have gone back from: an epoch that began at an earlier time comes after
 * its entry. Where a refill moved nothing, the order is unknown; any such epoch but the first counts as later.
 */
const LEFT_FUTURE = sql<0 | 1>`exists (
  select 1 from epoch where started_at < ${walletChanges.createdAt} and after_seq >= coalesce(
    (select min(seq) from entry where cause_id = ${walletChanges.id} and substr(cause_id, 1, 3) <> 'op_'), 1))`;

/**
 * The amount that a wallet and all below it have spent, by its id, as it was when its account could not pay a refill. It only
 * grows, so the requests that wait for the refill need not each walk the wallets below. The reaper adds it up anew, as a full disk
 * may have undone a charge.
 */
const knownSpent = onceFor(() => new Map<string, Nanos>());

const reads = prepare((read: Reader) => ({
  due: read
    .select({ id: wallets.id })
    .from(wallets)
    .where(
      and(
        sql`${wallets.status} = 'active' and ${wallets.refillAt} is not null`,
        lte(wallets.refillAt, sql.placeholder('now')),
        // A wallet that has expired but is not marked yet would stay due: a caller that pages would never finish.
        or(isNull(wallets.expiresAt), gt(wallets.expiresAt, sql.placeholder('now'))),
      ),
    )
    .orderBy(asc(wallets.refillAt))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  next: read
    .select({ at: wallets.refillAt })
    .from(wallets)
    .where(sql`${wallets.status} = 'active' and ${wallets.refillAt} is not null`)
    .orderBy(asc(wallets.refillAt))
    .limit(1)
    .prepare(),
  parked: read
    .select({
      nanos: sql<bigint | null>`sum(budget_nanos - spent_nanos - delegated_nanos)`,
    })
    .from(wallets)
    .innerJoin(balances, eq(balances.number, wallets.number))
    .where(sql`${wallets.id} in (
      with recursive below(id) as (
        select id from wallet where parent_id is not null and parent_id = ${sql.placeholder('walletId')} and status <> 'closed'
        union all
        select child.id from wallet child join below on child.parent_id = below.id
          where child.parent_id is not null and child.status <> 'closed'
      ) select id from below)`)
    .prepare(),
  ofDate: read
    .select({ createdAt: walletChanges.createdAt, isLeft: LEFT_FUTURE })
    .from(walletChanges)
    .where(
      and(
        eq(walletChanges.walletId, sql.placeholder('walletId')),
        gte(walletChanges.period, sql.placeholder('date')),
        lt(walletChanges.period, sql.placeholder('end')),
        sql`${walletChanges.period} is not null`,
      ),
    )
    .prepare(),
}));

/** Returns the refill of a wallet, or null. */
export const refillOf = ({ refill }: Pick<Wallet, 'refill'>): Refill | null =>
  refill === null ? null : (parseJson(refill) as Refill);

/** Returns at most 100 wallets that may spend and whose refill is due at `now`, the longest due first. */
export function dueRefills(read: Reader, now: number): { id: string }[] {
  return reads(read).due.all({ now });
}

/** Returns the Unix seconds at which the next refill is due. */
export function nextRefill(read: Reader): number | undefined {
  return reads(read).next.get()?.at ?? undefined;
}

type SetRefill = { id: string; refill: Refill | null; now: number; blocked: string | undefined };
/**
 * Sets the refill of a wallet, or ends it with null, after paying one that is owed under the former terms. The first one happens at
 * the next boundary. One that is still owed stays owed if rhythm and zone remain. Throws `wallet_closed`, `wallet_expired`, and
 * `invalid_request` for a child, whose budget comes from its parent.
 */
export const setRefill = defineWrite('wallet.set_refill', (tx, { id, refill, now, blocked }: SetRefill): Wallet => {
  const current = findWallet(tx, id) as Wallet;
  const wallet = refillIfOwed(tx, current, now, blocked)?.wallet ?? current;
  refuseInactive(tx, wallet, now);
  if (refill && wallet.parentId !== null)
    throw new Refusal('invalid_request', 'A child wallet has no refill: its budget comes from its parent.');
  const before = refillOf(wallet);
  const staysOwed = refill?.every === before?.every && refill?.zone === before?.zone && isOwed(wallet, now);
  const next = refill && periodAt(refill.every, refill.zone, now).next;
  return write(tx, wallet, {
    refill: refill && JSON.stringify(refill),
    refillAt: next && staysOwed ? Math.min(next, wallet.refillAt as number) : next,
  });
});

/** Ends the refill of a wallet, whatever its state, and pays none that is owed. Returns the wallet after it. */
export function endRefill(tx: Tx, wallet: Wallet): Wallet {
  return write(tx, wallet, { refill: null, refillAt: null });
}

const isDue = ({ refillAt }: Wallet, now: number): boolean => refillAt !== null && refillAt <= now;

/** Returns whether a refill is due, or was tried in the current period and fell short. */
export function isOwed(wallet: Wallet, now: number): boolean {
  const refill = refillOf(wallet);
  if (!refill || wallet.refillAt === null || wallet.refillAt > now + RETRY_SECONDS) return false;
  return isDue(wallet, now) || wallet.refillAt < periodAt(refill.every, refill.zone, now).next;
}

export type Refilled =
  | { kind: 'refilled'; wallet: Wallet; change: WalletChange }
  /** The account cannot pay the amount: tried again, for the period that is current then. */
  | { kind: 'short'; wallet: Wallet; period: string; reason: string };

/**
 * Refills a wallet whose boundary has passed, once for the current period, however many have passed (design, section 13). Whole
 * cents move. Afterwards the unspent money, held or not, in the wallet and in its open children, is the amount, or less than a cent
 * above it; more if that much is held, or lies with the children, who keep it. Returns undefined if no refill is due.
 */
export function refillIfDue(tx: Tx, wallet: Wallet, now: number, blocked?: string): Refilled | undefined {
  return isDue(wallet, now) ? refillNow(tx, wallet, now, blocked) : undefined;
}

/** Refills as `refillIfDue`, and at once where it fell short before: for a request that needs the money. */
export function refillIfOwed(tx: Tx, wallet: Wallet, now: number, blocked?: string): Refilled | undefined {
  return isOwed(wallet, now) ? refillNow(tx, wallet, now, blocked) : undefined;
}

/** Refills a wallet that is due. Throws no refusal. A reason that the account cannot pay has the exact amount. */
export const refillWallet = defineWrite('wallet.refill', (tx, { id, now }: { id: string; now: number }) => {
  const wallet = findWallet(tx, id) as Wallet;
  return isDue(wallet, now) ? refillNow(tx, wallet, now, undefined, { isExact: true }) : undefined;
});

type OwedRefill = { id: string; now: number; blocked: string | undefined };
/** Refills a wallet as `refillIfOwed`, for a request that is cut to the money of its wallet. */
export const refillOwed = defineWrite('wallet.refill_owed', (tx, { id, now, blocked }: OwedRefill): void => {
  refillIfOwed(tx, findWallet(tx, id) as Wallet, now, blocked);
});

/**
 * Refills a wallet that is owed a refill before it gives to a child: the request that needs a refill brings it (design,
 * section 13).
 */
export function refillParent(tx: Tx, child: Pick<Wallet, 'parentId'> | undefined, now: number, blocked?: string): void {
  const parent = child?.parentId ? findWallet(tx, child.parentId) : undefined;
  if (parent) refillIfOwed(tx, parent, now, blocked);
}

function refillNow(
  tx: Tx,
  wallet: Wallet,
  now: number,
  blocked?: string,
  { isExact = false } = {},
): Refilled | undefined {
  const refill = refillOf(wallet);
  if (!refill || statusAt(tx, wallet, now) !== 'active') return;
  if (blocked) return; // The clock is in doubt: a boundary may not have passed.
  const span = periodAt(refill.every, refill.zone, now);
  const { next } = span;
  const period = unpaidPeriod(tx, wallet.id, refill, span);
  if (period === undefined) {
    write(tx, wallet, { refillAt: next });
    return;
  }
  try {
    const amount = payableAmount(tx, wallet, refill, isExact);
    const id = newId('chg');
    moveBudget(tx, wallet, { id, amount }, now); // Refuses before it writes, so that a short refill leaves nothing.
    const change = insertChange(tx, { id, walletId: wallet.id, kind: 'refill', amount, period }, now);
    tellRefilled(tx, wallet, change, now);
    const budget = Nanos(wallet.budget + amount);
    return { kind: 'refilled', wallet: write(tx, { ...wallet, budget }, { refillAt: next }), change };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (error.code === 'insufficient_funds') tellRefillShort(tx, wallet, period, now);
    const later = write(tx, wallet, { refillAt: Math.min(next, now + RETRY_SECONDS) });
    return { kind: 'short', wallet: later, period, reason: error.message };
  }
}

/** Returns the name that the refill of a period gets, or undefined if the wallet has had it. */
function unpaidPeriod(tx: Tx, walletId: string, { every, zone }: Refill, { date, start }: CalendarSpan) {
  const taken = reads(tx).ofDate.all({ walletId, date, end: `${date}!` }); // The space after a date sorts before "!".
  // One from before this period belongs to another zone or rhythm, and to another boundary.
  if (taken.some((it) => it.createdAt >= start && !it.isLeft)) return undefined;
  if (!taken.length) return date;
  return `${date} ${every} ${zone}${taken.length > 1 ? ` ${taken.length}` : ''}`;
}

/**
 * Returns the amount that a refill moves. Throws the refusal of the account where that cannot pay it. Unless the refusal has to name
 * the exact amount, the wallets below are added up only where the account can pay the least amount that they may leave.
 */
function payableAmount(tx: Tx, wallet: Wallet, refill: Refill, isExact: boolean): Nanos {
  const known = knownSpent(tx);
  const own = available(wallet);
  if (refill.carry === 'all' || wallet.delegated === 0n) {
    const amount = amountOf(refill, own, wallet.held);
    refuseUnpayable(tx, wallet, amount);
    return amount;
  }
  if (!isExact) {
    const spentBefore = known.get(wallet.id) ?? wallet.spent;
    const spent = spentBefore > wallet.spent ? spentBefore : wallet.spent;
    refuseUnpayable(tx, wallet, amountOf(refill, own, Nanos(wallet.budget - spent - own)));
  }
  const bound = Nanos(wallet.held + parkedBelow(tx, wallet));
  const amount = amountOf(refill, own, bound);
  known.set(wallet.id, Nanos(wallet.budget - own - bound));
  refuseUnpayable(tx, wallet, amount);
  known.delete(wallet.id);
  return amount;
}

/** Throws a refusal unless the account of a wallet can pay this amount, if it is above 0. */
function refuseUnpayable(tx: Tx, { accountId }: Wallet, amount: Nanos): void {
  if (amount <= 0n) return;
  refuseNewBudget(tx, accountId);
  refuseBeyondCredit(accountOf(tx, accountId), nanosToCentsUp(amount));
}

/**
 * Returns the amount that the open wallets below a wallet may still spend, or hold. It comes back when they close, so it counts as
 * unspent: otherwise an agent would keep any sum across a refill by parking it in a child. Held money comes back as well, except
 * for its charge, which counts as spent once it is charged.
 */
function parkedBelow(tx: Tx, { id: walletId }: Wallet): Nanos {
  return Nanos(reads(tx).parked.get({ walletId })?.nanos ?? 0n);
}

/**
 * Returns the amount that a refill moves, in whole cents; below 0 if more than its amount is unspent, but never more than `own`:
 * held money stays held, and money parked with children stays with them.
 */
function amountOf({ cents, carry }: Pick<Refill, 'cents' | 'carry'>, own: Nanos, bound: Nanos): Nanos {
  if (carry === 'all') return centsToNanos(cents);
  const unspent = own + bound;
  const cap = carry === 'none' ? 0n : centsToNanos(carry);
  const carried = unspent < cap ? unspent : cap;
  const missing = centsToNanos(cents) + carried - unspent;
  if (missing >= 0n) return centsToNanos(nanosToCentsUp(Nanos(missing)));
  return centsToNanos(-nanosToCentsDown(Nanos(-missing < own ? -missing : own)));
}

function write(tx: Tx, wallet: Wallet, values: Partial<Pick<Wallet, 'refill' | 'refillAt'>>): Wallet {
  const change = withNewChecksum(wallets, wallet, values);
  tx.update(wallets).set(change).where(eq(wallets.id, wallet.id)).run();
  return { ...wallet, ...change };
}
