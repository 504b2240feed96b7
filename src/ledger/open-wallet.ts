import assert from 'node:assert/strict';
import { sql } from 'drizzle-orm';
import { type Nanos, ZERO } from '../base/money.ts';
import { Refusal, type RefusalData, refusalOf } from '../base/refusal.ts';
import { withChecksum } from '../db/checksum.ts';
import { prepare, type Tx } from '../db/handle.ts';
import { wallets } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';
import { refuseNewBudget } from './account.ts';
import { move, purseOf } from './move.ts';
import { nextThreshold } from './notices.ts';
import { refillParent } from './refill.ts';
import {
  findWallet,
  findWalletByKey,
  lineage,
  openChildren,
  refuseFrozen,
  refuseInactive,
  type Wallet,
} from './wallet.ts';

const writes = prepare((tx: Tx) => ({
  insert: tx
    .insert(wallets)
    .values({
      id: sql.placeholder('id'),
      accountId: sql.placeholder('accountId'),
      name: sql.placeholder('name'),
      status: 'active',
      budget: sql.placeholder('budget'),
      delegated: ZERO,
      parentId: sql.placeholder('parentId'),
      nextThreshold: sql.placeholder('nextThreshold'),
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
}));

export type WalletOrder = {
  id: string;
  accountId: string;
  /** The wallet whose child it becomes; null for one whose budget comes from the account. */
  parentId: string | null;
  name: string;
  /** Above 0; whole cents where it comes from the account. */
  budget: Nanos;
  /** Seconds from now; 0 means never. A child expires with its parent at the latest. */
  expiresInSeconds: number;
  masterKeyId: string;
  tokenHash: Buffer;
  tokenHint: string;
  idempotencyKey: string;
  fingerprint: Buffer;
  requestId: string;
};

/** Limits of child wallets (design, section 13): the depth of the tree below an account's wallet, and open children of one. */
type ChildLimits = { depth: number; openChildren: number };

type OpenWallet = {
  order: WalletOrder;
  now: number;
  blocked: string | undefined;
  limits: ChildLimits;
  /** The refusal for a tree with too many children that spent nothing; thrown unless the order is a repetition. */
  limited?: RefusalData | undefined;
};
/**
 * Opens a wallet, after a refill that its parent is owed: reserves part of an account's credit, or of its parent's budget, as its
 * budget. Repeating the order with the same key and body returns the same wallet; the caller decides what a replay may show. Throws
 * `idempotency_conflict`, `account_suspended`, `read_only`, `insufficient_funds` and `not_found`; for a child also `wallet_closed`,
 * `wallet_expired`, `wallet_frozen`, `funds_held`, `wallet_limit_exceeded` and `limited`.
 */
export const openWallet = defineWrite('wallet.open', (tx, data: OpenWallet): { wallet: Wallet; isNew: boolean } => {
  const { order, now, blocked } = data;
  refillParent(tx, order, now, blocked);
  // Keys are the caller's: two parents of one account may use the same. A header cannot hold a line feed.
  const idempotencyKey = order.parentId === null ? order.idempotencyKey : `${order.parentId}\n${order.idempotencyKey}`;
  const earlier = findWalletByKey(tx, order.accountId, idempotencyKey);
  if (earlier) {
    if (!earlier.fingerprint.equals(order.fingerprint)) throw new Refusal('idempotency_conflict');
    return { wallet: earlier, isNew: false };
  }
  const parent = order.parentId === null ? undefined : findWallet(tx, order.parentId);
  if (parent) refuseInactive(tx, parent, now);
  refuseNewBudget(tx, order.accountId, blocked);
  if (parent) refuseAnotherChild(tx, parent, data);

  const { expiresInSeconds, ...row } = { ...order, idempotencyKey };
  const wanted = expiresInSeconds === 0 ? null : now + expiresInSeconds;
  const last = parent?.expiresAt ?? null;
  const expiresAt = last === null ? wanted : Math.min(last, wanted ?? last);
  const opened = {
    ...row,
    status: 'active' as const,
    createdAt: now,
    expiresAt,
    nextThreshold: nextThreshold({ ...row, periodSpent: ZERO }, ZERO),
  };
  writes(tx).insert.run(withChecksum(wallets, { ...opened, delegated: ZERO, cleanupAttempts: 0 }));
  move(
    tx,
    { from: purseOf(order), to: { wallet: order.id }, amount: order.budget, causeId: order.id, at: now },
    { opens: true },
  );
  const wallet = findWallet(tx, order.id);
  assert(wallet, 'it has just been inserted');
  return { wallet, isNew: true };
});

function refuseAnotherChild(tx: Tx, parent: Wallet, { limits, limited }: Pick<OpenWallet, 'limits' | 'limited'>): void {
  refuseFrozen(tx, parent);
  if (limited) throw refusalOf(limited);
  const depth = [...lineage(tx, parent)].length;
  if (depth > limits.depth)
    throw new Refusal(
      'wallet_limit_exceeded',
      `Wallets may be nested ${limits.depth} deep, and ${parent.id} is that deep already. Open it from a wallet further up.`,
    );
  if (openChildren(tx, parent.id, limits.openChildren).length >= limits.openChildren)
    throw new Refusal(
      'wallet_limit_exceeded',
      `The wallet ${parent.id} has ${limits.openChildren} open children, which is the limit. Close one first.`,
    );
}
