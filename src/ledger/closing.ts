import assert from 'node:assert/strict';
import { and, eq, sql } from 'drizzle-orm';
import { centsToNanos, Nanos, nanosToCentsDown, nanosToCentsUp } from '../base/money.ts';
import { withNewChecksum } from '../db/checksum.ts';
import type { CLOSE_REASONS } from '../db/enums.ts';
import type { Tx } from '../db/handle.ts';
import { balances, wallets } from '../db/schema.ts';
import { settleBudget } from './account.ts';
import { book, post } from './journal.ts';
import { tellClosed, tellThresholds } from './notices.ts';
import { hasOpenOperations } from './operation.ts';
import { available, endOf, findWallet, IS_OPEN_WALLET, type Wallet } from './wallet.ts';

export type CloseReason = (typeof CLOSE_REASONS)[number];

/**
 * Begins to close a wallet; from now on no wallet of its tree spends. `active` becomes `closing`, or `expired` for that reason;
 * other statuses stay. One that has ended already, by its expiry or with a wallet above it, keeps the reason and the time of that.
 */
export function beginClosing(tx: Tx, id: string, reason: CloseReason, now: number): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'only wallets that were found are ended');
  if (wallet.status !== 'active') return wallet;
  const { closeReason, closingSince } = endOf(tx, wallet, now) ?? { closeReason: reason, closingSince: now };
  const status: Wallet['status'] = closeReason === 'expired' ? 'expired' : 'closing';
  const ending = withNewChecksum(wallets, wallet, { status, closeReason, closingSince: closingSince ?? now });
  tx.update(wallets).set(ending).where(eq(wallets.id, id)).run();
  return { ...wallet, ...ending };
}

/**
 * Settles a wallet that is closing. To its account (design 2.1): the spent amount, rounded up to a cent, is kept; the rest returns,
 * where it pays off debt first; the difference is a `rounding` line in the journal. To its parent: the rest returns to the nano
 * (design, section 13). Asserts that no operation is unresolved and no child open. Does nothing for a closed wallet.
 */
export function closeWallet(tx: Tx, id: string, now: number): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'only wallets that were found are closed');
  if (wallet.status === 'closed') return wallet;
  assert(wallet.status !== 'active', 'a wallet begins to close before it is closed');
  assert(!hasOpenOperations(tx, id), 'every operation is resolved before its wallet is closed');
  assert(wallet.held === 0n, 'a wallet without open operations holds nothing');

  assert(wallet.delegated === 0n, 'the children of a wallet are closed before it');

  // From here on the wallet is closed.
  const unspent = available(wallet);
  const returnedCents = nanosToCentsDown(unspent);
  const change = { status: 'closed' as const, closedAt: now, returnedCents, cleanupError: null };
  const closed = withNewChecksum(wallets, wallet, change);
  tx.update(wallets).set(closed).where(eq(wallets.id, id)).run();
  if (wallet.parentId === null) returnToAccount(tx, wallet, returnedCents, now);
  else returnToParent(tx, wallet, wallet.parentId, now);
  tellClosed(tx, { ...wallet, ...closed }, now);
  return { ...wallet, ...closed };
}

function returnToAccount(tx: Tx, wallet: Wallet, returnedCents: number, now: number): void {
  const { id, accountId } = wallet;
  const debtCents = settleBudget(tx, accountId, { spent: nanosToCentsUp(wallet.spent), returned: returnedCents });
  const line = { at: now, causeId: id, debit: book.wallet(id) };
  post(tx, [
    { ...line, credit: book.owed(accountId), amount: centsToNanos(debtCents) },
    { ...line, credit: book.account(accountId), amount: centsToNanos(returnedCents - debtCents) },
    { ...line, credit: book.rounding, amount: Nanos(available(wallet) - centsToNanos(returnedCents)) },
  ]);
}

/** Gives the rest back to the nano; the child's spending counts as its parent's from now on. */
function returnToParent(tx: Tx, wallet: Wallet, parentId: string, now: number): void {
  const { number, nextThreshold } = tx
    .update(wallets)
    .set({ delegated: sql`${wallets.delegated} - ${wallet.budget}` })
    .where(eq(wallets.id, parentId))
    .returning({ number: wallets.number, nextThreshold: wallets.nextThreshold })
    .get();
  const { spent } = tx
    .update(balances)
    .set({ spent: sql`${balances.spent} + ${wallet.spent}` })
    .where(eq(balances.number, number))
    .returning({ spent: balances.spent })
    .get();
  const [debit, credit] = [book.wallet(wallet.id), book.wallet(parentId)];
  post(tx, [{ at: now, causeId: wallet.id, debit, credit, amount: available(wallet) }]);
  tellThresholds(tx, parentId, { spent, nextThreshold }, now);
}

/** Records why a wallet could not be closed yet; the reaper tries again. */
export function noteCleanup(tx: Tx, id: string, error: string): void {
  tx.update(wallets)
    .set({ cleanupAttempts: sql`${wallets.cleanupAttempts} + 1`, cleanupError: error })
    .where(and(eq(wallets.id, id), IS_OPEN_WALLET))
    .run();
}
