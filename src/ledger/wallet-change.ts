import assert from 'node:assert/strict';
import { and, eq, sql } from 'drizzle-orm';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { walletChanges, wallets } from '../db/schema.ts';
import { newId } from '../id.ts';
import { centsToNanos, Nanos, nanosToCentsDown, ZERO } from '../money.ts';
import { Refusal } from '../refusal.ts';
import { freezeAfter } from './installation.ts';
import { move, purseOf } from './move.ts';
import { tellBudgetChanged, tellFrozen } from './notices.ts';
import { refuseNewBudget } from './open-wallet.ts';
import { available, findWallet, refuseInactive, type Wallet } from './wallet.ts';

export type WalletChange = typeof walletChanges.$inferSelect;

const reads = prepare((read: Reader) => ({
  byKey: read
    .select()
    .from(walletChanges)
    .where(
      and(
        eq(walletChanges.walletId, sql.placeholder('walletId')),
        eq(walletChanges.idempotencyKey, sql.placeholder('key')),
        sql`${walletChanges.idempotencyKey} is not null`,
      ),
    )
    .prepare(),
}));

/** What makes a change safe to repeat, and who asked for it. */
export type ChangeOrder = {
  walletId: string;
  /** The same key and body change nothing again. Null for a command that nobody repeats. */
  idempotencyKey: string | null;
  fingerprint: Buffer;
  requestId: string;
};

export type Changed = { wallet: Wallet; change: WalletChange; isNew: boolean };

/**
 * Raises a wallet's budget by whole cents, out of its account or its parent, or lowers it by negative ones. Lowering
 * stops at what is spent, held and delegated (design, section 13). Throws `wallet_closed`, `wallet_expired`,
 * `idempotency_conflict`, and for a raise what `refuseNewBudget` and `move` throw.
 */
export function changeBudget(tx: Tx, order: ChangeOrder & { cents: number }, now: number, blocked?: string): Changed {
  const earlier = repeated(tx, order);
  if (earlier) return earlier;
  const wallet = walletOf(tx, order.walletId);
  refuseInactive(wallet, now);
  const isRaise = order.cents > 0;
  if (isRaise) refuseNewBudget(tx, wallet.accountId, blocked);
  const cents = isRaise ? order.cents : -Math.min(-order.cents, nanosToCentsDown(available(wallet)));
  const change = insertChange(tx, { ...order, kind: isRaise ? 'raise' : 'lower', amount: centsToNanos(cents) }, now);
  moveBudget(tx, wallet, change, now);
  tellBudgetChanged(tx, wallet, now);
  return { wallet: walletOf(tx, wallet.id), change, isNew: true };
}

/** Moves what a change records: from the wallet's purse, or back to it where the amount is negative. */
export function moveBudget(tx: Tx, wallet: Wallet, { id, amount }: Pick<WalletChange, 'id' | 'amount'>, at: number) {
  if (amount === 0n) return;
  const [purse, own] = [purseOf(wallet), { wallet: wallet.id }];
  const [from, to] = amount > 0n ? [purse, own] : [own, purse];
  move(tx, { from, to, amount: Nanos(amount < 0n ? -amount : amount), causeId: id, at });
}

/**
 * Moves a wallet's expiry `seconds` further. Its keys are apart from those of budget changes (design 2.7), and a header
 * cannot hold the line feed that tells them apart. Throws `wallet_closed`, `wallet_expired`, `idempotency_conflict`,
 * `invalid_request` for a wallet that never expires, and `wallet_limit_exceeded` beyond the expiry of its parent.
 */
export function extendWallet(tx: Tx, order: ChangeOrder & { seconds: number }, now: number): Changed {
  const idempotencyKey = order.idempotencyKey === null ? null : `extend\n${order.idempotencyKey}`;
  // Older versions kept the key of an extension as it came.
  const earlier = repeated(tx, { ...order, idempotencyKey }) ?? repeated(tx, order, 'extend');
  if (earlier) return earlier;
  const wallet = walletOf(tx, order.walletId);
  refuseInactive(wallet, now);
  if (wallet.expiresAt === null) throw new Refusal('invalid_request', `The wallet ${wallet.id} never expires.`);
  const expiresAt = wallet.expiresAt + order.seconds;
  const last = wallet.parentId === null ? null : walletOf(tx, wallet.parentId).expiresAt;
  if (last !== null && expiresAt > last)
    throw new Refusal(
      'wallet_limit_exceeded',
      `The wallet would expire at ${expiresAt}, after its parent ${wallet.parentId}, which expires at ${last}. Extend that first.`,
    );
  const change = insertChange(tx, { ...order, idempotencyKey, kind: 'extend', amount: ZERO, expiresAt }, now);
  const extended = withNewChecksum(wallets, wallet, { expiresAt });
  tx.update(wallets).set(extended).where(eq(wallets.id, wallet.id)).run();
  return { wallet: { ...wallet, ...extended }, change, isNew: true };
}

/**
 * Freezes a wallet, with everything below it, or unfreezes it with null: no new holds, while stops and settlements go
 * on. Idempotent; a wallet that is frozen already takes a new reason. Throws `wallet_closed` and `wallet_expired`.
 */
export function setWalletFrozen(
  tx: Tx,
  id: string,
  frozenAt: number | null,
  reason: string | null,
  now: number,
): Wallet {
  const wallet = walletOf(tx, id);
  refuseInactive(wallet, now);
  const freeze = freezeAfter(wallet, frozenAt, reason);
  if (!freeze) return wallet;
  const change = withNewChecksum(wallets, wallet, freeze);
  tx.update(wallets).set(change).where(eq(wallets.id, id)).run();
  if (frozenAt !== null && wallet.frozenAt === null) tellFrozen(tx, { wallet }, reason, now);
  return { ...wallet, ...change };
}

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

/** Returns what an earlier order with this key has changed, of this kind alone if one is named. */
function repeated(
  tx: Tx,
  { walletId, idempotencyKey, fingerprint }: ChangeOrder,
  kind?: WalletChange['kind'],
): Changed | undefined {
  const change = idempotencyKey === null ? undefined : reads(tx).byKey.get({ walletId, key: idempotencyKey });
  if (!change || (kind !== undefined && change.kind !== kind)) return undefined;
  if (!change.fingerprint?.equals(fingerprint)) throw new Refusal('idempotency_conflict');
  return { wallet: walletOf(tx, walletId), change, isNew: false };
}

function walletOf(tx: Tx, id: string): Wallet {
  const wallet = findWallet(tx, id);
  assert(wallet, 'only wallets that were found are changed');
  return wallet;
}
