import assert from 'node:assert/strict';
import { and, eq, sql } from 'drizzle-orm';
import { centsToNanos, formatCents, formatUsd, Nanos } from '../base/money.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { accounts, events, type operations, type resources, wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { accountLowCents, record } from './outbox.ts';
import { available, findWallet, type Wallet } from './wallet.ts';

/**
 * The events for receivers (docs/events.md). Each function runs in the transaction of the change that it reports. Events carry ids,
 * names, amounts and reasons; never a prompt, a token or a key.
 */

type AccountFields = typeof accounts.$inferSelect;

const reads = prepare((read: Reader) => ({
  accountName: read
    .select({ name: accounts.name })
    .from(accounts)
    .where(eq(accounts.id, sql.placeholder('id')))
    .prepare(),
  refillShort: read
    .select({ seq: events.seq })
    .from(events)
    .where(
      and(
        eq(events.subject, sql.placeholder('walletId')),
        sql`${events.type} = 'account.low'`,
        sql`${events.data} ->> '$.period' = ${sql.placeholder('period')}`,
      ),
    )
    .prepare(),
}));

const writes = prepare((tx: Tx) => ({
  threshold: tx
    .update(wallets)
    .set({
      periodSpent: sql`${sql.placeholder('periodSpent')}`,
      nextThreshold: sql`${sql.placeholder('nextThreshold')}`,
    })
    .where(eq(wallets.id, sql.placeholder('id')))
    .prepare(),
}));

const factsOf = (tx: Tx, { id, name, accountId, parentId }: Wallet) => ({
  wallet_id: id,
  wallet_name: name,
  parent_id: parentId,
  account_id: accountId,
  account_name: reads(tx).accountName.get({ id: accountId })?.name,
});

function walletOf(tx: Tx, id: string): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'only what happens to a wallet is told of it');
  return wallet;
}

/** The parts of a budget, in percent, at which an event is written once each when they are spent. */
const THRESHOLDS = [50n, 80n, 95n, 100n] as const;

type RefillPeriod = Pick<Wallet, 'budget' | 'periodSpent'>;

/** Returns a wallet's spending at which it has used this part of the budget of its period, rounded up to the nano. */
const spentAt = ({ budget, periodSpent }: RefillPeriod, percent: bigint): Nanos =>
  Nanos(periodSpent + ((budget - periodSpent) * percent + 99n) / 100n);

/** Returns a wallet's spending at which its next threshold is reached; null when none is left. */
export function nextThreshold(period: RefillPeriod, spent: Nanos): Nanos | null {
  if (period.budget <= period.periodSpent) return null; // A period without a budget has no parts.
  return THRESHOLDS.map((percent) => spentAt(period, percent)).find((at) => at > spent) ?? null;
}

/** Writes an event for each threshold that a charge has reached. Costs one comparison if it reached none. */
export function tellThresholds(
  tx: Tx,
  walletId: string,
  { spent, nextThreshold: next }: Pick<Wallet, 'spent' | 'nextThreshold'>,
  now: number,
): void {
  if (next === null || spent < next) return;
  const wallet = walletOf(tx, walletId);
  tellReached(
    tx,
    wallet,
    THRESHOLDS.filter((percent) => spentAt(wallet, percent) >= next),
    now,
  );
}

/** Writes events for those of `percents` that are reached, and stores the next threshold. */
function tellReached(tx: Tx, wallet: Wallet, percents: readonly bigint[], now: number): void {
  for (const percent of percents)
    if (wallet.spent >= spentAt(wallet, percent))
      record(
        tx,
        'wallet.threshold',
        wallet.id,
        {
          ...factsOf(tx, wallet),
          percent: Number(percent),
          budget_usd: formatUsd(Nanos(wallet.budget - wallet.periodSpent)),
          spent_usd: formatUsd(Nanos(wallet.spent - wallet.periodSpent)),
          held_usd: formatUsd(wallet.held),
          available_usd: formatUsd(available(wallet)),
        },
        now,
      );
  writes(tx).threshold.run({
    id: wallet.id,
    periodSpent: wallet.periodSpent,
    nextThreshold: nextThreshold(wallet, wallet.spent),
  });
}

/**
 * Recomputes the thresholds after a budget was raised or lowered: those above the spending get an event again when they are
 * reached, and those that a lower budget has reached get one now. `before` is the row before the change.
 */
export function tellBudgetChanged(tx: Tx, before: Wallet, now: number): void {
  const wallet = walletOf(tx, before.id);
  const isNew = (percent: bigint) => before.nextThreshold !== null && spentAt(before, percent) >= before.nextThreshold;
  const hadBudget = before.budget > before.periodSpent;
  const hasBudget = wallet.budget > wallet.periodSpent;
  tellReached(tx, wallet, hasBudget ? THRESHOLDS.filter((percent) => !hadBudget || isNew(percent)) : [], now);
}

/** Writes the event of a refill, and begins its budget period. `before` is the row before the refill. */
export function tellRefilled(
  tx: Tx,
  before: Wallet,
  { amount, period }: { amount: Nanos; period: string | null },
  now: number,
): void {
  const wallet = { ...walletOf(tx, before.id), periodSpent: before.spent };
  tellReached(tx, wallet, [], now);
  record(
    tx,
    'wallet.refilled',
    wallet.id,
    { ...factsOf(tx, wallet), period, amount_usd: formatUsd(amount), available_usd: formatUsd(available(wallet)) },
    now,
  );
}

export function tellClosed(tx: Tx, wallet: Wallet, now: number): void {
  const { closeReason, spent, returnedCents, parentId } = wallet;
  // An account gets whole cents, a parent every nano.
  const returned = parentId === null ? centsToNanos(returnedCents ?? 0) : available(wallet);
  record(
    tx,
    'wallet.closed',
    wallet.id,
    { ...factsOf(tx, wallet), reason: closeReason, spent_usd: formatUsd(spent), returned_usd: formatUsd(returned) },
    now,
  );
}

/** Writes `account.low` when this change in cents makes the available credit of an account fall below `events.account_low_cents`. */
export function tellIfLow(tx: Tx, account: AccountFields, changeCents: number, now: number): void {
  const lowCents = accountLowCents(tx);
  const { id, name, availableCents } = account;
  const after = availableCents + changeCents;
  if (lowCents === undefined || availableCents < lowCents || after >= lowCents) return;
  const [available_usd, low_usd] = [after, lowCents].map(formatCents);
  record(tx, 'account.low', id, { account_id: id, account_name: name, cause: 'credit', available_usd, low_usd }, now);
}

/**
 * Writes an event that an account cannot pay a refill: once in its period, however often the refill is tried. Its subject is the
 * wallet: it comes before the refill that is paid later, and a try looks at no events of the account's other wallets.
 */
export function tellRefillShort(tx: Tx, wallet: Wallet, period: string, now: number): void {
  if (reads(tx).refillShort.get({ walletId: wallet.id, period })) return;
  record(tx, 'account.low', wallet.id, { ...factsOf(tx, wallet), cause: 'refill', period }, now);
}

export function tellUncertain(tx: Tx, operation: typeof operations.$inferSelect, now: number): void {
  const { id, kind, subject, hold, walletId, requestId } = operation;
  const facts = { operation_id: id, kind, subject, hold_usd: formatUsd(hold), request_id: requestId };
  record(tx, 'operation.uncertain', walletId, { ...facts, ...factsOf(tx, walletOf(tx, walletId)) }, now);
}

type ResourceFields = typeof resources.$inferSelect;
const leaseOf = (tx: Tx, { id, slot, backend, walletId }: ResourceFields) => ({
  resource_id: id,
  slot,
  backend,
  ...factsOf(tx, walletOf(tx, walletId)),
});

export function tellLeaseEnded(tx: Tx, resource: ResourceFields, now: number): void {
  const { walletId, endReason, charged, abandonedReason } = resource;
  const how = { reason: endReason, charged_usd: formatUsd(charged), abandoned: abandonedReason !== null };
  record(tx, 'lease.ended', walletId, { ...leaseOf(tx, resource), ...how }, now);
}

/** Writes an event that steps of a lease keep failing. The error stays in the log: it is in the backend's own words. */
export function tellLeaseTrouble(tx: Tx, resource: ResourceFields, now: number): void {
  const { walletId, status, attempts } = resource;
  record(tx, 'lease.trouble', walletId, { ...leaseOf(tx, resource), status, failed_attempts: attempts }, now);
}

/** The subject of the events about an upstream. */
export const upstreamSubject = (name: string) => `upstream:${name}`;

type TellUpstream = { name: string; down: { reason: string } | undefined; now: number };
export const tellUpstream = defineWrite('event.upstream', (tx, { name, down, now }: TellUpstream) =>
  record(tx, down ? 'upstream.down' : 'upstream.up', upstreamSubject(name), { upstream: name, ...down }, now),
);

export const tellDiskLow = defineWrite('event.disk_low', (tx, { reason, now }: { reason: string; now: number }) =>
  record(tx, 'disk.low', 'disk', { reason }, now),
);

/** A start of these books on another machine than the one before. */
export type BooksMove = {
  /** The host that served them before; null where that was not noted. */
  from: string | null;
  host: string;
  /** The time of their last write there, Unix seconds. */
  writtenAt: number;
};
/** Writes an event that another machine serves these books than at the last start. */
export function tellMoved(tx: Tx, { from, host, writtenAt }: BooksMove, now: number): void {
  record(tx, 'books.moved', 'books', { from, host, last_written_at: writtenAt }, now);
}

/** Writes an event that the installation, an account or a wallet takes no new holds any more. */
export function tellFrozen(
  tx: Tx,
  what: { installation: string } | { account: AccountFields } | { wallet: Wallet },
  reason: string | null,
  now: number,
): void {
  if ('wallet' in what)
    record(tx, 'frozen', what.wallet.id, { scope: 'wallet', ...factsOf(tx, what.wallet), reason }, now);
  else if ('account' in what) {
    const { id, name } = what.account;
    record(tx, 'frozen', id, { scope: 'account', account_id: id, account_name: name, reason }, now);
  } else
    record(tx, 'frozen', what.installation, { scope: 'installation', installation_id: what.installation, reason }, now);
}
