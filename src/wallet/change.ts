import { type Refill, setRefill } from '../ledger/refill.ts';
import type { Wallet } from '../ledger/wallet.ts';
import { type Changed, type ChangeOrder, changeBudget, extendWallet, freezeWallet } from '../ledger/wallet-change.ts';
import type { OpenApp } from './open.ts';

/** Raises a wallet's budget by whole cents or lowers it by negative ones. Throws what `changeBudget` throws. */
export async function changeWalletBudget(app: OpenApp, order: ChangeOrder & { cents: number }): Promise<Changed> {
  const [now, blocked] = [app.clock.now(), app.clock.holdsBlocked()];
  return announced(app, await app.ledger.write(changeBudget, { order, now, blocked }));
}

/** Moves a wallet's expiry further, and has the pauses of its leases follow. Throws what `extendWallet` throws. */
export async function extend(app: OpenApp, order: ChangeOrder & { seconds: number }): Promise<Changed> {
  const now = app.clock.now();
  const changed = announced(app, await app.ledger.write(extendWallet, { order, now }));
  app.wakeAt(now);
  return changed;
}

function announced(app: OpenApp, changed: Changed): Changed {
  if (changed.isNew) app.events.walletChanged(changed.wallet, changed.change);
  return changed;
}

/** Freezes a wallet and all below it, or unfreezes it. Idempotent. Throws `wallet_closed` and `wallet_expired`. */
export async function freeze(
  app: OpenApp,
  id: string,
  isFrozen: boolean,
  reason: string | null = null,
): Promise<Wallet> {
  const now = app.clock.now();
  const wallet = await app.ledger.write(freezeWallet, { id, frozenAt: isFrozen ? now : null, reason, now });
  app.events.walletFrozen(wallet);
  return wallet;
}

/** Sets the refill of a wallet, or ends it with null. Throws what `setRefill` throws. */
export async function refill(app: OpenApp, id: string, order: Refill | null): Promise<Wallet> {
  const [now, blocked] = [app.clock.now(), app.clock.holdsBlocked()];
  const wallet = await app.ledger.write(setRefill, { id, refill: order, now, blocked });
  app.events.refillSet(wallet);
  if (wallet.refillAt !== null) app.wakeAt(wallet.refillAt);
  return wallet;
}
