import assert from 'node:assert/strict';
import { and, asc, desc, eq, gt, lte, or, sql } from 'drizzle-orm';
import { withChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { wallets } from '../db/schema.ts';
import { centsToNanos, Nanos, ZERO } from '../money.ts';
import { Refusal } from '../refusal.ts';
import { accountOf, reserveBudget } from './account.ts';
import { isFrozen } from './installation.ts';
import { book, post } from './journal.ts';

export type Wallet = typeof wallets.$inferSelect;

/** Lists return the latest 100 rows (interface, section 1). */
export const LIST_COUNT_MAX = 100;

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(wallets)
    .where(eq(wallets.id, sql.placeholder('id')))
    .prepare(),
  byToken: read
    .select()
    .from(wallets)
    .where(eq(wallets.tokenHash, sql.placeholder('tokenHash')))
    .prepare(),
  byKey: read
    .select()
    .from(wallets)
    .where(and(eq(wallets.accountId, sql.placeholder('accountId')), eq(wallets.idempotencyKey, sql.placeholder('key'))))
    .prepare(),
  latest: read
    .select()
    .from(wallets)
    .where(eq(wallets.accountId, sql.placeholder('accountId')))
    .orderBy(desc(wallets.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  latestOfAll: read.select().from(wallets).orderBy(desc(wallets.id)).limit(LIST_COUNT_MAX).prepare(),
  due: read
    .select({ id: wallets.id, expiresAt: wallets.expiresAt })
    .from(wallets)
    .where(
      and(
        sql`${wallets.status} = 'active' and ${wallets.expiresAt} is not null`,
        lte(wallets.expiresAt, sql.placeholder('now')),
        or(
          gt(wallets.expiresAt, sql.placeholder('afterAt')),
          and(eq(wallets.expiresAt, sql.placeholder('afterAt')), gt(wallets.id, sql.placeholder('afterId'))),
        ),
      ),
    )
    .orderBy(asc(wallets.expiresAt), asc(wallets.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  nextExpiry: read
    .select({ at: wallets.expiresAt })
    .from(wallets)
    .where(sql`${wallets.status} = 'active' and ${wallets.expiresAt} is not null`)
    .orderBy(asc(wallets.expiresAt))
    .limit(1)
    .prepare(),
  ending: read
    .select({ id: wallets.id })
    .from(wallets)
    .where(and(sql`${wallets.status} in ('closing', 'expired')`, gt(wallets.id, sql.placeholder('after'))))
    .orderBy(asc(wallets.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
}));

const writes = prepare((tx: Tx) => ({
  insert: tx
    .insert(wallets)
    .values({
      id: sql.placeholder('id'),
      accountId: sql.placeholder('accountId'),
      name: sql.placeholder('name'),
      status: 'active',
      budget: sql.placeholder('budget'),
      held: ZERO,
      spent: ZERO,
      masterKeyId: sql.placeholder('masterKeyId'),
      tokenHash: sql.placeholder('tokenHash'),
      tokenHint: sql.placeholder('tokenHint'),
      idempotencyKey: sql.placeholder('idempotencyKey'),
      fingerprint: sql.placeholder('fingerprint'),
      requestId: sql.placeholder('requestId'),
      createdAt: sql.placeholder('createdAt'),
      expiresAt: sql.placeholder('expiresAt'),
      cleanupAttempts: 0,
      seal: sql.placeholder('seal'),
    })
    .prepare(),
  hold: tx
    .update(wallets)
    .set({ held: sql`${wallets.held} + ${sql.placeholder('amount')}` })
    .where(eq(wallets.id, sql.placeholder('id')))
    .prepare(),
  settle: tx
    .update(wallets)
    .set({
      held: sql`${wallets.held} - ${sql.placeholder('hold')}`,
      spent: sql`${wallets.spent} + ${sql.placeholder('charge')}`,
    })
    .where(eq(wallets.id, sql.placeholder('id')))
    .prepare(),
}));

/** Returns the wallet with this id, or undefined. */
export function findWallet(read: Reader, id: string): Wallet | undefined {
  return reads(read).byId.get({ id });
}

/** Returns the wallet whose token has this hash, or undefined. */
export function findWalletByToken(read: Reader, tokenHash: Buffer): Wallet | undefined {
  return reads(read).byToken.get({ tokenHash });
}

/** Returns the wallet that this idempotency key of the account made. */
export function findWalletByKey(read: Reader, accountId: string, key: string): Wallet | undefined {
  return reads(read).byKey.get({ accountId, key });
}

/**
 * Returns a wallet of this account. Throws `not_found` alike for an unknown id and for another account's (design 2.5).
 */
export function walletOf(read: Reader, accountId: string, id: string): Wallet {
  const wallet = findWallet(read, id);
  if (!wallet || wallet.accountId !== accountId) throw new Refusal('not_found', 'There is no such wallet.');
  return wallet;
}

/** Returns the latest 100 wallets, newest first: of one account, or of all accounts for the operator. */
export function listWallets(read: Reader, accountId?: string): Wallet[] {
  return accountId === undefined ? reads(read).latestOfAll.all() : reads(read).latest.all({ accountId });
}

export const available = (wallet: Wallet): Nanos => Nanos(wallet.budget - wallet.held - wallet.spent);

/**
 * Returns the effective status at `now`: expiry is computed, so a late reaper never changes an answer (design, section
 * 9).
 */
export function statusAt(wallet: Wallet, now: number): Wallet['status'] {
  const expired = wallet.status === 'active' && wallet.expiresAt !== null && wallet.expiresAt <= now;
  return expired ? 'expired' : wallet.status;
}

/** Throws `wallet_closed` or `wallet_expired` unless the wallet may spend at `now`. */
export function refuseInactive(wallet: Wallet, now: number): void {
  const status = statusAt(wallet, now);
  if (status === 'active') return;
  const byExpiry = status === 'expired' || wallet.closeReason === 'expired';
  throw new Refusal(
    byExpiry ? 'wallet_expired' : 'wallet_closed',
    `The wallet ${wallet.id} ${byExpiry ? 'has expired' : status === 'closed' ? 'is closed' : 'is closing'}.`,
  );
}

export type WalletOrder = {
  id: string;
  accountId: string;
  name: string;
  budgetCents: number;
  /** Seconds from now; 0 means never. */
  expiresInSeconds: number;
  masterKeyId: string;
  tokenHash: Buffer;
  tokenHint: string;
  idempotencyKey: string;
  fingerprint: Buffer;
  requestId: string;
};

/**
 * Opens a wallet: reserves part of an account's credit as its budget. Repeating the order with the same key and body
 * returns the same wallet; the caller decides what a replay may show. Throws `idempotency_conflict`,
 * `account_suspended`, `read_only`, `insufficient_funds` and `not_found`.
 */
export function openWallet(
  tx: Tx,
  order: WalletOrder,
  now: number,
  blocked?: string,
): { wallet: Wallet; isNew: boolean } {
  const earlier = findWalletByKey(tx, order.accountId, order.idempotencyKey);
  if (earlier) {
    if (!earlier.fingerprint.equals(order.fingerprint)) throw new Refusal('idempotency_conflict');
    return { wallet: earlier, isNew: false };
  }
  const account = accountOf(tx, order.accountId);
  if (account.suspendedAt !== null) throw new Refusal('account_suspended');
  if (account.disputedAt !== null)
    throw new Refusal(
      'account_suspended',
      'A payment of this account is disputed: no new wallets until that is decided, or the operator resumes it.',
    );
  if (isFrozen(tx))
    throw new Refusal('read_only', 'The operator has frozen this installation: no new holds.', {
      retryAfterSeconds: 60,
    });
  refuseOnLowDisk(tx);
  if (blocked) throw new Refusal('read_only', `No new wallets: ${blocked}. Retry later.`, { retryAfterSeconds: 60 });
  if (account.owedCents > 0)
    throw new Refusal(
      'insufficient_funds',
      `The account owes ${account.owedCents} cents of reversed payments; no new wallets until they are paid.`,
    );
  if (account.availableCents < order.budgetCents)
    throw new Refusal(
      'insufficient_funds',
      `The budget needs ${order.budgetCents} cents; the account has ${account.availableCents} available and ${account.reservedCents} reserved in open wallets.`,
    );

  // After this point the wallet must stand.
  const { budgetCents, expiresInSeconds, ...row } = order;
  const budget = centsToNanos(budgetCents);
  const expiresAt = expiresInSeconds === 0 ? null : now + expiresInSeconds;
  reserveBudget(tx, account.id, budgetCents);
  const opened = { ...row, status: 'active' as const, budget, createdAt: now, expiresAt };
  writes(tx).insert.run(withChecksum(wallets, { ...opened, held: ZERO, spent: ZERO, cleanupAttempts: 0 }));
  post(tx, [
    { at: now, causeId: order.id, debit: book.account(account.id), credit: book.wallet(order.id), amount: budget },
  ]);
  const wallet = findWallet(tx, order.id);
  assert(wallet, 'it has just been inserted');
  return { wallet, isNew: true };
}

/** Raises the held amount on the wallet row. The caller has checked that it fits and posts the entry. */
export function raiseHeld(tx: Tx, walletId: string, amount: Nanos): void {
  writes(tx).hold.run({ id: walletId, amount });
}

/** Turns a hold into a charge on the wallet row and releases the rest. The caller posts the entries. */
export function settleHeld(tx: Tx, walletId: string, hold: Nanos, charge: Nanos): void {
  writes(tx).settle.run({ id: walletId, hold, charge });
}

export type DueCursor = { id: string; expiresAt: number | null };

/** Returns active wallets whose expiry has come, earliest first, at most 100, after `cursor`. */
export function dueWallets(read: Reader, now: number, cursor: DueCursor = { id: '', expiresAt: -1 }): DueCursor[] {
  return reads(read).due.all({ now, afterAt: cursor.expiresAt, afterId: cursor.id });
}

/** Returns the Unix seconds of the earliest expiry of an active wallet. */
export function nextExpiry(read: Reader): number | undefined {
  return reads(read).nextExpiry.get()?.at ?? undefined;
}

/** Returns wallets that are frozen and not yet settled, by id, at most 100, after `after`. */
export function endingWallets(read: Reader, after = ''): { id: string }[] {
  return reads(read).ending.all({ after });
}
