import assert from 'node:assert/strict';
import { and, asc, eq, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { centsToNanos, formatCents } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { accounts, fundings } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { installationOf, refuseFrozenInstallation, setDefaultAccount } from './installation.ts';
import { book, post } from './journal.ts';
import { tellFrozen, tellIfLow } from './notices.ts';

export type Account = typeof accounts.$inferSelect;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(accounts)
    .where(eq(accounts.id, sql.placeholder('id')))
    .prepare(),
  byName: read
    .select()
    .from(accounts)
    .where(eq(accounts.name, sql.placeholder('name')))
    .prepare(),
  all: read.select().from(accounts).orderBy(asc(accounts.id)).prepare(),
  funding: read
    .select()
    .from(fundings)
    .where(and(eq(fundings.accountId, sql.placeholder('accountId')), eq(fundings.key, sql.placeholder('key'))))
    .prepare(),
}));

/** Returns the account with this id, or undefined. */
export function findAccount(read: Reader, id: string): Account | undefined {
  return reads(read).byId.get({ id });
}

/** Returns the account with this id. Throws `not_found`. */
export function accountOf(read: Reader, id: string): Account {
  const account = findAccount(read, id);
  if (!account) throw new Refusal('not_found', `There is no account ${id}.`);
  return account;
}

/** Returns all accounts, oldest first. */
export function listAccounts(read: Reader): Account[] {
  return reads(read).all.all();
}

type OpenAccount = { name: string; creditCents: number; now: number };
/**
 * Opens an account, with an opening credit unless that is 0. Throws `invalid_request` for a bad name, `conflict` for one that is
 * taken, and `read_only` on a full disk; for the credit also the errors of `fundAccount`.
 */
export const openAccount = defineWrite('account.open', (tx, { name, creditCents, now }: OpenAccount): Account => {
  if (!name || [...name].length > 80) throw new Refusal('invalid_request', 'An account name has 1 to 80 characters.');
  const taken = reads(tx).byName.get({ name });
  if (taken) throw new Refusal('conflict', `The account ${taken.id} is already named ${JSON.stringify(name)}.`);

  refuseOnLowDisk(tx);
  const account = withChecksum(accounts, {
    id: newId('acct'),
    name,
    availableCents: 0,
    reservedCents: 0,
    spentCents: 0,
    welcomeCreditCents: 0,
    owedCents: 0,
    createdAt: now,
    suspendedAt: null,
    disputedAt: null,
  });
  tx.insert(accounts).values(account).run();
  if (creditCents === 0) return account;
  const credit = { kind: 'credit' as const, amountCents: creditCents, reason: 'opening credit', key: null };
  return fundAccount.run(tx, { order: { accountId: account.id, ...credit }, now }).account;
});

/** Opens the account of new account keys for which no other account is named. */
export const openDefaultAccount = defineWrite('account.open_default', (tx, { now }: { now: number }) =>
  setDefaultAccount(tx, openAccount.run(tx, { name: 'default', creditCents: 0, now }).id),
);

export type Funding = typeof fundings.$inferSelect;

/** Returns every funding of an account, oldest first. */
export function listFundings(read: Reader, accountId: string): Funding[] {
  return read.select().from(fundings).where(eq(fundings.accountId, accountId)).orderBy(asc(fundings.id)).all();
}

export type FundingOrder = {
  accountId: string;
  kind: 'credit' | 'debit' | 'welcome' | 'checkout' | 'reinstatement';
  /** Whole cents, above 0. */
  amountCents: number;
  reason: string | null;
  /** Makes a scripted credit safe to repeat. */
  key: string | null;
  /** The payment provider's session id, for money that came through a checkout. */
  sessionId?: string;
};

const CENTS_MAX = 100_000_000_000; // USD 1,000,000,000: nanos of a few such sums still fit an INTEGER

type FundAccount = { order: FundingOrder; now: number };
type Funded = { account: Account; isNew: boolean };
/**
 * Credits or debits an account. A credit first pays off the account's debt. Repeating an order with the same key has no further
 * effect, and is not new; reusing the key for a different order throws `conflict`. Throws `invalid_request` for a bad amount,
 * `insufficient_funds` for a debit above the available credit, `conflict` above the lifetime limit of an account, `not_found`, and
 * `read_only` for an operator's or welcome credit on a full disk.
 */
export const fundAccount = defineWrite('account.fund', (tx, { order, now }: FundAccount): Funded => {
  const account = accountOf(tx, order.accountId);
  if (!Number.isSafeInteger(order.amountCents) || order.amountCents < 1 || order.amountCents > CENTS_MAX)
    throw new Refusal(
      'invalid_request',
      `The amount must be from 0.01 to ${formatCents(CENTS_MAX)} USD, in whole cents.`,
    );
  const earlier = order.key === null ? undefined : reads(tx).funding.get({ accountId: account.id, key: order.key });
  if (earlier) {
    if (earlier.kind !== order.kind || earlier.amountCents !== order.amountCents)
      throw new Refusal(
        'conflict',
        `The key ${JSON.stringify(order.key)} was used for another amount on this account.`,
      );
    return { account, isNew: false };
  }
  // A payment made through the provider is credited even when the disk is nearly full: the money has already arrived.
  if (order.kind === 'credit' || order.kind === 'welcome') refuseOnLowDisk(tx);
  const isDebit = order.kind === 'debit';
  const debtCents = isDebit ? 0 : Math.min(account.owedCents, order.amountCents);
  const availableCents = account.availableCents + (isDebit ? -order.amountCents : order.amountCents - debtCents);
  if (availableCents < 0)
    throw new Refusal(
      'insufficient_funds',
      `The account has ${formatCents(account.availableCents)} USD available, less than the ${formatCents(order.amountCents)} to debit.`,
    );
  if (availableCents + account.reservedCents + account.spentCents > CENTS_MAX)
    throw new Refusal('conflict', `An account holds at most ${formatCents(CENTS_MAX)} USD over its life.`);

  // From here on the money moves.
  const funding = withChecksum(fundings, { id: newId('evt'), createdAt: now, ...order });
  tx.insert(fundings).values(funding).run();
  const change = withNewChecksum(accounts, account, {
    availableCents,
    owedCents: account.owedCents - debtCents,
    welcomeCreditCents: account.welcomeCreditCents + (order.kind === 'welcome' ? order.amountCents : 0),
  });
  tx.update(accounts).set(change).where(eq(accounts.id, account.id)).run();
  tellIfLow(tx, account, availableCents - account.availableCents, now);
  const line = { at: now, causeId: funding.id };
  const [own, owed] = [book.account(account.id), book.owed(account.id)];
  if (isDebit) post(tx, [{ ...line, debit: own, credit: book.funding, amount: centsToNanos(order.amountCents) }]);
  else
    post(tx, [
      { ...line, debit: book.funding, credit: owed, amount: centsToNanos(debtCents) },
      { ...line, debit: book.funding, credit: own, amount: centsToNanos(order.amountCents - debtCents) },
    ]);
  return { account: { ...account, ...change }, isNew: true };
});

/**
 * Throws a refusal when an account may not give budget to a wallet, whatever its credit: `account_suspended`, `read_only`,
 * `insufficient_funds` while it owes money, and `not_found`.
 */
export function refuseNewBudget(tx: Tx, accountId: string, blocked?: string): void {
  const account = accountOf(tx, accountId);
  if (account.suspendedAt !== null) throw new Refusal('account_suspended');
  if (account.disputedAt !== null)
    throw new Refusal(
      'account_suspended',
      'A payment of this account is disputed: no new wallets until that is decided, or the operator resumes it.',
    );
  refuseFrozenInstallation(installationOf(tx));
  refuseOnLowDisk(tx);
  if (blocked) throw new Refusal('read_only', `No new wallets: ${blocked}. Retry later.`, { retryAfterSeconds: 60 });
  if (account.owedCents > 0)
    throw new Refusal(
      'insufficient_funds',
      `The account owes ${formatCents(account.owedCents)} USD of reversed payments; no new wallets until they are paid.`,
    );
}

/**
 * Takes back money that a payment had brought: available credit first; the rest is recorded as owed (design, section
 * 6). `cents` is above 0. Never refuses, because the payment provider has already taken the money.
 */
export function clawBack(
  tx: Tx,
  order: { accountId: string; cents: number; sessionId: string; reason: string },
  now: number,
): Account {
  const { accountId, cents, sessionId, reason } = order;
  assert(Number.isSafeInteger(cents) && cents > 0, 'what is taken back is a whole number of cents above 0');
  const account = accountOf(tx, accountId);
  const takenCents = Math.min(account.availableCents, cents);
  const change = withNewChecksum(accounts, account, {
    availableCents: account.availableCents - takenCents,
    owedCents: account.owedCents + cents - takenCents,
  });
  const id = newId('evt');
  const funding = { id, accountId, kind: 'clawback' as const, amountCents: cents, reason, sessionId, createdAt: now };
  tx.insert(fundings).values(withChecksum(fundings, funding)).run();
  tx.update(accounts).set(change).where(eq(accounts.id, accountId)).run();
  tellIfLow(tx, account, -takenCents, now);
  const line = { at: now, causeId: id, credit: book.funding };
  post(tx, [
    { ...line, debit: book.account(accountId), amount: centsToNanos(takenCents) },
    { ...line, debit: book.owed(accountId), amount: centsToNanos(cents - takenCents) },
  ]);
  return { ...account, ...change };
}

type SuspendAccount = { id: string; at: number | null };
/**
 * Suspends an account since `at` (Unix seconds), or resumes it with null. A suspended account gets no new wallets, holds or keys;
 * cleanup continues. Resuming also lifts the block of an open dispute; money taken by that dispute stays taken until it is decided.
 * Throws `not_found`.
 */
export const suspendAccount = defineWrite('account.suspend', (tx, { id, at }: SuspendAccount): Account => {
  const account = accountOf(tx, id);
  const disputedAt = at === null ? null : account.disputedAt;
  const isSame = (account.suspendedAt === null) === (at === null) && account.disputedAt === disputedAt;
  if (isSame) return account;
  const change = withNewChecksum(accounts, account, { suspendedAt: at, disputedAt });
  tx.update(accounts).set(change).where(eq(accounts.id, id)).run();
  if (at !== null) tellFrozen(tx, { account }, 'suspended', at);
  return { ...account, ...change };
});

/**
 * Records that a payment of the account is disputed (since `disputedAt`, Unix seconds), or with null that none is disputed any
 * more.
 */
export function setDisputed(tx: Tx, accountId: string, disputedAt: number | null): void {
  const change = withNewChecksum(accounts, accountOf(tx, accountId), { disputedAt });
  tx.update(accounts).set(change).where(eq(accounts.id, accountId)).run();
}

const writes = prepare((tx: Tx) => ({
  reserve: tx
    .update(accounts)
    .set({
      availableCents: sql`${accounts.availableCents} - ${sql.placeholder('cents')}`,
      reservedCents: sql`${accounts.reservedCents} + ${sql.placeholder('cents')}`,
    })
    .where(eq(accounts.id, sql.placeholder('id')))
    .prepare(),
  settle: tx
    .update(accounts)
    .set({
      reservedCents: sql`${accounts.reservedCents} - ${sql.placeholder('budget')}`,
      availableCents: sql`${accounts.availableCents} + ${sql.placeholder('freed')}`,
      spentCents: sql`${accounts.spentCents} + ${sql.placeholder('spent')}`,
    })
    .where(eq(accounts.id, sql.placeholder('id')))
    .prepare(),
}));

/** Reserves a budget on the account row. The caller has checked that it is available and posts the entry. */
export function reserveBudget(tx: Tx, accountId: string, cents: number): void {
  writes(tx).reserve.run({ id: accountId, cents: BigInt(cents) });
}

/**
 * Ends a reservation on the account row: `spent + returned` is the budget. The returned part pays off what the account
 * owes first. Returns the cents that went to that debt. The caller posts the entries.
 */
export function settleBudget(tx: Tx, accountId: string, cents: { spent: number; returned: number }): number {
  assert(cents.spent >= 0 && cents.returned >= 0, 'a wallet cannot have spent more than its budget');
  const account = accountOf(tx, accountId);
  const debt = Math.min(account.owedCents, cents.returned);
  writes(tx).settle.run({
    id: accountId,
    budget: BigInt(cents.spent + cents.returned),
    freed: BigInt(cents.returned - debt),
    spent: BigInt(cents.spent),
  });
  if (debt > 0) {
    const change = withNewChecksum(accounts, account, { owedCents: account.owedCents - debt });
    tx.update(accounts).set(change).where(eq(accounts.id, accountId)).run();
  }
  return debt;
}
