import assert from 'node:assert/strict';
import { and, asc, eq, sql } from 'drizzle-orm';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { refuseWithoutRoom } from '../db/room.ts';
import { accounts, fundings } from '../db/schema.ts';
import { resealed, sealed } from '../db/seal.ts';
import { newId } from '../id.ts';
import { centsToNanos } from '../money.ts';
import { Refusal } from '../refusal.ts';
import { book, post } from './journal.ts';

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

export function findAccount(read: Reader, id: string): Account | undefined {
  return reads(read).byId.get({ id });
}

/** The account with this id. Refuses with `not_found`. */
export function accountOf(read: Reader, id: string): Account {
  const account = findAccount(read, id);
  if (!account) throw new Refusal('not_found', `There is no account ${id}.`);
  return account;
}

export function listAccounts(read: Reader): Account[] {
  return reads(read).all.all();
}

/** Opens an account without credit. Refuses a name that is taken with `conflict`. */
export function openAccount(tx: Tx, name: string, now: number): Account {
  if (name.length < 1 || name.length > 80)
    throw new Refusal('invalid_request', 'An account name has 1 to 80 characters.');
  const taken = reads(tx).byName.get({ name });
  if (taken) throw new Refusal('conflict', `The account ${taken.id} is already named ${JSON.stringify(name)}.`);

  refuseWithoutRoom(tx);
  const account = sealed(accounts, {
    id: newId('acct'),
    name,
    availableCents: 0,
    reservedCents: 0,
    spentCents: 0,
    welcomeCreditCents: 0,
    owedCents: 0,
    createdAt: now,
    suspendedAt: null,
  });
  tx.insert(accounts).values(account).run();
  return account;
}

export type FundingOrder = {
  accountId: string;
  kind: 'credit' | 'debit' | 'welcome';
  /** Whole cents, above 0. */
  amountCents: number;
  reason: string | null;
  /** Makes a scripted credit safe to repeat. */
  key: string | null;
};

const CENTS_MAX = 100_000_000_000; // USD 1,000,000,000: nanos of a few such sums still fit an INTEGER

/**
 * Credits or debits an account by hand. The same key with the same order is the same funding, once; with another it is a
 * `conflict`. A debit is bounded by what is available (`insufficient_funds`).
 */
export function fundAccount(tx: Tx, order: FundingOrder, now: number): Account {
  const account = accountOf(tx, order.accountId);
  if (!Number.isSafeInteger(order.amountCents) || order.amountCents < 1 || order.amountCents > CENTS_MAX)
    throw new Refusal('invalid_request', `The amount must be a whole number of cents from 1 to ${CENTS_MAX}.`);
  const earlier = order.key === null ? undefined : reads(tx).funding.get({ accountId: account.id, key: order.key });
  if (earlier) {
    if (earlier.kind !== order.kind || earlier.amountCents !== order.amountCents)
      throw new Refusal(
        'conflict',
        `The key ${JSON.stringify(order.key)} was used for another amount on this account.`,
      );
    return account;
  }
  if (order.kind === 'credit' || order.kind === 'welcome') refuseWithoutRoom(tx);
  const sign = order.kind === 'debit' ? -1 : 1;
  const availableCents = account.availableCents + sign * order.amountCents;
  if (availableCents < 0)
    throw new Refusal(
      'insufficient_funds',
      `The account has ${account.availableCents} cents available; ${order.amountCents} were to be taken.`,
    );
  if (availableCents + account.reservedCents + account.spentCents > CENTS_MAX)
    throw new Refusal('conflict', `An account holds at most ${CENTS_MAX} cents over its life.`);

  // After this point the money moves.
  const funding = sealed(fundings, { id: newId('evt'), createdAt: now, ...order });
  tx.insert(fundings).values(funding).run();
  const welcomeCreditCents = account.welcomeCreditCents + (order.kind === 'welcome' ? order.amountCents : 0);
  const change = resealed(accounts, account, { availableCents, welcomeCreditCents });
  tx.update(accounts).set(change).where(eq(accounts.id, account.id)).run();
  const [debit, credit] =
    order.kind === 'debit' ? [book.account(account.id), book.funding] : [book.funding, book.account(account.id)];
  post(tx, [{ at: now, causeId: funding.id, debit, credit, amount: centsToNanos(order.amountCents) }]);
  return { ...account, ...change };
}

/** Suspends or resumes an account: no new wallets, holds or keys while suspended; cleanup goes on. */
export function setSuspended(tx: Tx, accountId: string, suspendedAt: number | null): Account {
  const account = accountOf(tx, accountId);
  if ((account.suspendedAt === null) === (suspendedAt === null)) return account;
  const change = resealed(accounts, account, { suspendedAt });
  tx.update(accounts).set(change).where(eq(accounts.id, accountId)).run();
  return { ...account, ...change };
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
      availableCents: sql`${accounts.availableCents} + ${sql.placeholder('returned')}`,
      spentCents: sql`${accounts.spentCents} + ${sql.placeholder('spent')}`,
    })
    .where(eq(accounts.id, sql.placeholder('id')))
    .prepare(),
}));

/** Sets a budget aside on the account row. The caller has checked that it is available and posts the entry. */
export function reserveBudget(tx: Tx, accountId: string, cents: number): void {
  writes(tx).reserve.run({ id: accountId, cents: BigInt(cents) });
}

/** Ends a reservation on the account row: `spent + returned` is the budget. */
export function settleBudget(tx: Tx, accountId: string, cents: { spent: number; returned: number }): void {
  assert(cents.spent >= 0 && cents.returned >= 0, 'a wallet cannot have spent more than its budget');
  writes(tx).settle.run({
    id: accountId,
    budget: BigInt(cents.spent + cents.returned),
    returned: BigInt(cents.returned),
    spent: BigInt(cents.spent),
  });
}
