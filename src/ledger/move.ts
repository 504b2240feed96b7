import assert from 'node:assert/strict';
import { eq, sql } from 'drizzle-orm';
import { newId } from '../base/id.ts';
import { centsToNanos, formatCents, formatUsd, Nanos, nanosToCentsDown } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Tx } from '../db/handle.ts';
import { walletChanges, wallets } from '../db/schema.ts';
import { type Account, accountOf, reserveBudget, settleBudget } from './account.ts';
import { book, post } from './journal.ts';
import { tellIfLow } from './notices.ts';
import { available, findWallet, type Wallet } from './wallet.ts';

/** The source and destination of budgets: an account, in whole cents, or a wallet, in nano-dollars (design, section 13). */
type Purse = { account: string } | { wallet: string };

type Move = {
  from: Purse;
  to: Purse;
  /** Above 0; whole cents when an account is on either side. */
  amount: Nanos;
  /** The cause of the move in the journal: the id of a wallet that opens, or of a change of one. Each id moves money once. */
  causeId: string;
  /** Unix seconds. */
  at: number;
};

const writes = prepare((tx: Tx) => ({
  delegate: tx
    .update(wallets)
    .set({ delegated: sql`${wallets.delegated} + ${sql.placeholder('amount')}` })
    .where(eq(wallets.id, sql.placeholder('id')))
    .prepare(),
}));

/**
 * Moves budget between an account and a wallet, or between a wallet and its child, in either direction (design, section 13):
 * changes both sides and posts the journal entry. Money returned to an account pays off its debt first. Throws `insufficient_funds`
 * where the giving side has less available, and `funds_held` where requests in flight hold the missing money. With `opens`, the
 * receiving wallet has just been inserted with this budget.
 */
export function move(tx: Tx, order: Move, { opens = false } = {}): void {
  assert(order.amount > 0n, 'a movement has an amount');
  const { from, to } = order;
  if ('account' in from) {
    assert('wallet' in to, 'money comes to an account by its fundings');
    reserve(tx, order, from.account, to.wallet, opens);
  } else if ('account' in to) returnTo(tx, order, from.wallet, to.account);
  else pass(tx, order, from.wallet, to.wallet, opens);
}

function reserve(tx: Tx, { amount, causeId, at }: Move, accountId: string, walletId: string, opens: boolean): void {
  const cents = wholeCents(amount);
  const account = accountOf(tx, accountId);
  refuseBeyondCredit(account, cents);
  reserveBudget(tx, accountId, cents);
  tellIfLow(tx, account, -cents, at);
  if (!opens) changeBudget(tx, walletOf(tx, walletId), amount);
  post(tx, [{ at, causeId, debit: book.account(accountId), credit: book.wallet(walletId), amount }]);
}

/** Throws `insufficient_funds` unless an account can give this much to a budget. */
export function refuseBeyondCredit({ availableCents, reservedCents }: Account, cents: number): void {
  if (availableCents >= cents) return;
  throw new Refusal(
    'insufficient_funds',
    `The budget needs ${formatCents(cents)} USD; the account has ${formatCents(availableCents)} available and ${formatCents(reservedCents)} reserved in open wallets.`,
  );
}

function returnTo(tx: Tx, { amount, causeId, at }: Move, walletId: string, accountId: string): void {
  const cents = wholeCents(amount);
  const wallet = walletOf(tx, walletId);
  refuseMoreThanAvailable(wallet, amount);
  changeBudget(tx, wallet, Nanos(-amount));
  const debtCents = settleBudget(tx, accountId, { spent: 0, returned: cents });
  const line = { at, causeId, debit: book.wallet(walletId) };
  post(tx, [
    { ...line, credit: book.owed(accountId), amount: centsToNanos(debtCents) },
    { ...line, credit: book.account(accountId), amount: centsToNanos(cents - debtCents) },
  ]);
}

/** Moves budget between a wallet and its child: the parent's budget stays, and its delegated amount changes. */
function pass(tx: Tx, { amount, causeId, at }: Move, fromId: string, toId: string, opens: boolean): void {
  const [giver, taker] = [walletOf(tx, fromId), walletOf(tx, toId)];
  assert(giver.id === taker.parentId || taker.id === giver.parentId, 'budget moves between a wallet and its child');
  refuseMoreThanAvailable(giver, amount);
  if (giver.id === taker.parentId) {
    delegate(tx, giver.id, amount);
    if (!opens) changeBudget(tx, taker, amount);
  } else {
    changeBudget(tx, giver, Nanos(-amount));
    delegate(tx, taker.id, Nanos(-amount));
  }
  post(tx, [{ at, causeId, debit: book.wallet(giver.id), credit: book.wallet(taker.id), amount }]);
}

/** Changes the amount that a wallet has delegated to its open children. The caller has checked that it fits and posts the entry. */
function delegate(tx: Tx, walletId: string, amount: Nanos): void {
  writes(tx).delegate.run({ id: walletId, amount });
}

export type WalletChange = typeof walletChanges.$inferSelect;
type NewChange = Pick<WalletChange, 'walletId' | 'kind' | 'amount'> & Partial<WalletChange>;

/** Records a change of a wallet. The caller makes it. */
export function insertChange(tx: Tx, change: NewChange, now: number): WalletChange {
  const { walletId, kind, amount } = change;
  const row = withChecksum(walletChanges, {
    id: change.id ?? newId('chg'),
    walletId,
    kind,
    amount,
    expiresAt: change.expiresAt ?? null,
    period: change.period ?? null,
    idempotencyKey: change.idempotencyKey ?? null,
    fingerprint: change.fingerprint ?? null,
    requestId: change.requestId ?? null,
    reason: change.reason ?? null,
    createdAt: now,
  });
  tx.insert(walletChanges).values(row).run();
  return row;
}

/** Moves the amount of a change: from the wallet's purse, or back to it where the amount is negative. */
export function moveBudget(tx: Tx, wallet: Wallet, { id, amount }: Pick<WalletChange, 'id' | 'amount'>, at: number) {
  if (amount === 0n) return;
  const [purse, own] = [purseOf(wallet), { wallet: wallet.id }];
  const [from, to] = amount > 0n ? [purse, own] : [own, purse];
  move(tx, { from, to, amount: Nanos(amount < 0n ? -amount : amount), causeId: id, at });
}

/** Returns the source of a wallet's budget. */
export const purseOf = (wallet: Pick<Wallet, 'accountId' | 'parentId'>): Purse =>
  wallet.parentId === null ? { account: wallet.accountId } : { wallet: wallet.parentId };

function walletOf(tx: Tx, id: string): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'money moves between wallets that were found');
  return wallet;
}

function changeBudget(tx: Tx, wallet: Wallet, amount: Nanos): void {
  const change = withNewChecksum(wallets, wallet, { budget: Nanos(wallet.budget + amount) });
  tx.update(wallets).set(change).where(eq(wallets.id, wallet.id)).run();
}

function wholeCents(amount: Nanos): number {
  const cents = nanosToCentsDown(amount);
  assert(centsToNanos(cents) === amount, 'an account gives and takes whole cents');
  return cents;
}

function refuseMoreThanAvailable(wallet: Wallet, amount: Nanos): void {
  const spendable = available(wallet);
  if (spendable >= amount) return;
  const message = `This needs ${formatUsd(amount)} USD; the wallet ${wallet.id} has ${formatUsd(spendable)} USD available and ${formatUsd(wallet.held)} USD held by requests in flight.`;
  if (spendable + wallet.held < amount) throw new Refusal('insufficient_funds', message);
  throw new Refusal('funds_held', message, { retryAfterSeconds: 2 });
}
