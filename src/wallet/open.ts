import { type Keyring, walletCredential, walletToken } from '../access/keyring.ts';
import type { Clock } from '../base/clock.ts';
import { newId } from '../base/id.ts';
import { type Limit, refusalOfLimit } from '../base/limits.ts';
import type { Config } from '../config/config.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { openWallet, type WalletOrder } from '../ledger/open-wallet.ts';
import type { TenantOf } from '../ledger/tenant.ts';
import { refuseInactive, type Wallet } from '../ledger/wallet.ts';
import type { Events } from '../telemetry/events.ts';

export type OpenApp = {
  ledger: Ledger;
  clock: Clock;
  events: Events;
  keyring: Keyring;
  config: Pick<Config, 'child_wallets'>;
  /** Counts, for each tree of wallets, the children that were closed with nothing spent. They stay in the books. */
  limits: { unspent: Limit };
  tenantOf: TenantOf;
  /** Wakes the reaper by this time (Unix seconds). */
  wakeAt: (at: number) => void;
};
type OpenRequest = Omit<WalletOrder, 'id' | 'masterKeyId' | 'tokenHash' | 'tokenHint'>;

/**
 * Opens a wallet with its token. The same key and body return the same wallet; once that is no longer active, its dead token
 * is not returned (`wallet_closed`, `wallet_expired`). Other refusals are those of `openWallet`.
 */
export async function open(
  app: OpenApp,
  request: OpenRequest,
): Promise<{ wallet: Wallet; token: string; isNew: boolean }> {
  const blocked = app.clock.holdsBlocked();
  const id = newId('wal');
  const { row, token: fresh } = walletCredential(app.keyring, id);
  const now = app.clock.now();
  const order = { ...request, id, ...row };
  const { depth, open: openChildren } = app.config.child_wallets;
  const limited =
    request.parentId === null ? undefined : refusalOfLimit(app.limits.unspent, app.tenantOf(request.parentId).treeId);
  const { wallet, isNew } = await app.ledger.write(openWallet, {
    order,
    now,
    blocked,
    limits: { depth, openChildren },
    limited,
  });
  if (isNew) {
    app.events.walletOpened(wallet);
    if (wallet.expiresAt !== null) app.wakeAt(wallet.expiresAt);
    return { wallet, token: fresh, isNew };
  }
  refuseInactive(app.ledger.read, wallet, app.clock.now());
  return { wallet, token: walletToken(app.keyring, wallet), isNew };
}
