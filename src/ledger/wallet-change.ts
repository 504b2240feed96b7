import assert from 'node:assert/strict';
import { and, eq, sql } from 'drizzle-orm';
import { centsToNanos, type Nanos, nanosToCentsDown, ZERO } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import { withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { walletChanges, wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { refuseNewBudget } from './account.ts';
import { freezeAfter } from './installation.ts';
import { insertChange, moveBudget, type WalletChange } from './move.ts';
import { tellBudgetChanged, tellFrozen } from './notices.ts';
import { refillIfOwed, refillParent } from './refill.ts';
import { liveResources, updateIfLive } from './resource.ts';
import { available, findWallet, refuseInactive, type Wallet } from './wallet.ts';

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

/** The end of the year 9999, in Unix seconds: what shows a later time may fail. */
const EXPIRY_MAX = Date.UTC(9999, 11, 31, 23, 59, 59) / 1000;

/** The idempotency key of a change, and its author. */
export type ChangeOrder = {
  walletId: string;
  /** A repetition with the same key and body changes nothing. Null for a command that is never repeated. */
  idempotencyKey: string | null;
  fingerprint: Buffer;
  requestId: string;
};

export type Changed = { wallet: Wallet; change: WalletChange; isNew: boolean };

type ChangeBudget = { order: ChangeOrder & { cents: number }; now: number; blocked: string | undefined };
/**
 * Raises a wallet's budget by whole cents, out of its account or its parent, or lowers it by negative ones. Lowering stops at the
 * amount spent, held and delegated (design, section 13). Refills that are owed come first. Throws `wallet_closed`,
 * `wallet_expired`, `idempotency_conflict`, and for a raise the refusals of `refuseNewBudget` and `move`.
 */
export const changeBudget = defineWrite('wallet.budget', (tx, { order, now, blocked }: ChangeBudget): Changed => {
  const before = findWallet(tx, order.walletId);
  if (before) refillIfOwed(tx, before, now, blocked); // A later refill would take back the added amount, or give back the removed one.
  refillParent(tx, before, now, blocked);
  const earlier = repeated(tx, order);
  if (earlier) return earlier;
  const wallet = walletOf(tx, order.walletId);
  refuseInactive(tx, wallet, now);
  const isRaise = order.cents > 0;
  if (isRaise) refuseNewBudget(tx, wallet.accountId, blocked);
  const cents = isRaise ? order.cents : -Math.min(-order.cents, nanosToCentsDown(available(wallet)));
  const change = insertChange(tx, { ...order, kind: isRaise ? 'raise' : 'lower', amount: centsToNanos(cents) }, now);
  moveBudget(tx, wallet, change, now);
  tellBudgetChanged(tx, wallet, now);
  return { wallet: walletOf(tx, wallet.id), change, isNew: true };
});

/**
 * Returns the amount by which the change of a wallet with this key moved its budget, below 0 for a lower; undefined if there is
 * none.
 */
export function movedBy(read: Reader, walletId: string, key: string): Nanos | undefined {
  return reads(read).byKey.get({ walletId, key })?.amount;
}

type ExtendWallet = { order: ChangeOrder & { seconds: number }; now: number };
/**
 * Moves a wallet's expiry `seconds` further. Its keys are apart from those of budget changes (design 2.7), by a line feed, which a
 * header cannot hold. Throws `wallet_closed`, `wallet_expired`, `idempotency_conflict`, `invalid_request` for a wallet that never
 * expires, and `wallet_limit_exceeded` beyond the expiry of its parent, or the year 9999.
 */
export const extendWallet = defineWrite('wallet.extend', (tx, { order, now }: ExtendWallet): Changed => {
  const idempotencyKey = order.idempotencyKey === null ? null : `extend\n${order.idempotencyKey}`;
  // Older versions stored the key of an extension unchanged.
  const earlier = repeated(tx, { ...order, idempotencyKey }) ?? repeated(tx, order, 'extend');
  if (earlier) return earlier;
  const wallet = walletOf(tx, order.walletId);
  refuseInactive(tx, wallet, now);
  if (wallet.expiresAt === null) throw new Refusal('invalid_request', `The wallet ${wallet.id} never expires.`);
  const expiresAt = wallet.expiresAt + order.seconds;
  const last = wallet.parentId === null ? null : walletOf(tx, wallet.parentId).expiresAt;
  if (last !== null && expiresAt > last)
    throw new Refusal(
      'wallet_limit_exceeded',
      `The wallet would expire at ${expiresAt}, after its parent ${wallet.parentId}, which expires at ${last}. Extend that first.`,
    );
  if (expiresAt > EXPIRY_MAX)
    throw new Refusal(
      'wallet_limit_exceeded',
      'The wallet would expire after the year 9999. Open one that never expires.',
    );
  const change = insertChange(tx, { ...order, idempotencyKey, kind: 'extend', amount: ZERO, expiresAt }, now);
  const extended = withNewChecksum(wallets, wallet, { expiresAt });
  tx.update(wallets).set(extended).where(eq(wallets.id, wallet.id)).run();
  for (const { id, status } of liveResources(tx, wallet.id))
    if (status === 'paused') updateIfLive(tx, id, { dueAt: now }); // Its pause ends with the wallet.
  return { wallet: { ...wallet, ...extended }, change, isNew: true };
});

type FreezeWallet = { id: string; frozenAt: number | null; reason: string | null; now: number };
/**
 * Freezes a wallet, with everything below it, or unfreezes it with null: no new holds, while stops and settlements continue.
 * Idempotent; a wallet that is frozen already takes a new reason. Throws `wallet_closed` and `wallet_expired`.
 */
export const freezeWallet = defineWrite('wallet.freeze', (tx, { id, frozenAt, reason, now }: FreezeWallet): Wallet => {
  const wallet = walletOf(tx, id);
  refuseInactive(tx, wallet, now);
  return freezeAny(tx, wallet, { frozenAt, reason, now });
});

/** Freezes a wallet, whatever its state, or unfreezes it. Returns the wallet after it. */
export function freezeAny(tx: Tx, wallet: Wallet, { frozenAt, reason, now }: Omit<FreezeWallet, 'id'>): Wallet {
  const freeze = freezeAfter(wallet, frozenAt, reason);
  if (!freeze) return wallet;
  const change = withNewChecksum(wallets, wallet, freeze);
  tx.update(wallets).set(change).where(eq(wallets.id, wallet.id)).run();
  if (frozenAt !== null && wallet.frozenAt === null) tellFrozen(tx, { wallet }, reason, now);
  return { ...wallet, ...change };
}

/** Returns the change of an earlier order with this key, of this kind alone if one is named. */
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
