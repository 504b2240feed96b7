import assert from 'node:assert/strict';
import { and, eq, sql } from 'drizzle-orm';
import { withNewChecksum } from '../db/checksum.ts';
import type { Tx } from '../db/handle.ts';
import { type CLOSE_REASONS, wallets } from '../db/schema.ts';
import { centsToNanos, Nanos, nanosToCentsDown, nanosToCentsUp } from '../money.ts';
import { settleBudget } from './account.ts';
import { book, post } from './journal.ts';
import { hasOpenOperations } from './operation.ts';
import { available, findWallet, statusAt, type Wallet } from './wallet.ts';

export type CloseReason = (typeof CLOSE_REASONS)[number];

/**
 * Freezes spending: `active` becomes `closing`, or `expired` when that is the reason. Does nothing in any other status,
 * so closing is idempotent.
 */
export function freezeWallet(tx: Tx, id: string, reason: CloseReason, now: number): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'only wallets that were found are frozen');
  if (wallet.status !== 'active') return wallet;
  const closeReason = statusAt(wallet, now) === 'expired' ? 'expired' : reason;
  const status: Wallet['status'] = closeReason === 'expired' ? 'expired' : 'closing';
  const frozen = withNewChecksum(wallets, wallet, { status, closeReason });
  tx.update(wallets).set(frozen).where(eq(wallets.id, id)).run();
  return { ...wallet, ...frozen };
}

/**
 * Settles a frozen wallet (design 2.1): the spent amount, rounded up to a cent, is kept; the rest returns to the
 * account, where it pays off debt first; the difference is a `rounding` line in the journal. Asserts that no operation
 * is unresolved. Does nothing for a closed wallet.
 */
export function closeWallet(tx: Tx, id: string, now: number): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'only wallets that were found are closed');
  if (wallet.status === 'closed') return wallet;
  assert(wallet.status !== 'active', 'a wallet is frozen before it is closed');
  assert(!hasOpenOperations(tx, id), 'every operation is resolved before its wallet is closed');
  assert(wallet.held === 0n, 'a wallet without open operations holds nothing');

  // After this point the wallet is closed.
  const left = available(wallet);
  const returnedCents = nanosToCentsDown(left);
  const rounding = Nanos(left - centsToNanos(returnedCents));
  const change = { status: 'closed' as const, closedAt: now, returnedCents, cleanupError: null };
  const closed = withNewChecksum(wallets, wallet, change);
  tx.update(wallets).set(closed).where(eq(wallets.id, id)).run();
  const { accountId } = wallet;
  const debtCents = settleBudget(tx, accountId, { spent: nanosToCentsUp(wallet.spent), returned: returnedCents });
  const line = { at: now, causeId: id, debit: book.wallet(id) };
  post(tx, [
    { ...line, credit: book.owed(accountId), amount: centsToNanos(debtCents) },
    { ...line, credit: book.account(accountId), amount: centsToNanos(returnedCents - debtCents) },
    { ...line, credit: book.rounding, amount: rounding },
  ]);
  return { ...wallet, ...closed };
}

/** Records why a wallet could not be closed yet; the reaper tries again. */
export function noteCleanup(tx: Tx, id: string, error: string | null): void {
  tx.update(wallets)
    .set({ cleanupAttempts: sql`${wallets.cleanupAttempts} + 1`, cleanupError: error })
    .where(and(eq(wallets.id, id), sql`${wallets.status} <> 'closed'`))
    .run();
}
