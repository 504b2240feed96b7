import type { RouterKey } from '../../access/router-keys.ts';
import { formatUsd } from '../../base/money.ts';
import { parseJson } from '../../base/parse-json.ts';
import type { WalletChange } from '../../ledger/move.ts';
import type { Refilled } from '../../ledger/refill.ts';
import type { Wallet } from '../../ledger/wallet.ts';
import type { Sinks } from '../sinks.ts';

/** The events of wallets and their gateway keys. */
export const walletEvents = ({ log, metrics }: Sinks) => ({
  walletOpened(wallet: Wallet) {
    metrics.walletsOpened.inc();
    log.info(
      {
        event: 'wallet.opened',
        wallet: wallet.id,
        account: wallet.accountId,
        budget_usd: formatUsd(wallet.budget),
        expires_at: wallet.expiresAt,
        request_id: wallet.requestId,
      },
      'wallet opened',
    );
  },
  walletChanged(wallet: Wallet, { kind, amount, requestId }: WalletChange) {
    log.info(
      {
        event: `wallet.${kind}`,
        wallet: wallet.id,
        account: wallet.accountId,
        amount_usd: formatUsd(amount),
        budget_usd: formatUsd(wallet.budget),
        expires_at: wallet.expiresAt,
        request_id: requestId,
      },
      'wallet changed',
    );
  },
  walletFrozen(wallet: Wallet) {
    const facts = { wallet: wallet.id, account: wallet.accountId };
    if (wallet.frozenAt === null) log.info({ event: 'wallet.unfrozen', ...facts }, 'wallet unfrozen');
    else log.warn({ event: 'wallet.frozen', ...facts, reason: wallet.freezeReason }, 'wallet frozen');
  },
  refillSet(wallet: Wallet) {
    const refill = wallet.refill === null ? null : parseJson(wallet.refill);
    log.info({ event: 'wallet.refill_set', wallet: wallet.id, refill, next_at: wallet.refillAt }, 'refill set');
  },
  refilled(it: Refilled) {
    const facts = { wallet: it.wallet.id, account: it.wallet.accountId };
    if (it.kind === 'refilled')
      log.info(
        { event: 'wallet.refilled', ...facts, period: it.change.period, amount_usd: formatUsd(it.change.amount) },
        'wallet refilled',
      );
    else
      log.warn(
        { event: 'wallet.refill_short', ...facts, period: it.period, reason: it.reason },
        'the account cannot pay a refill; it is tried again every minute',
      );
  },
  walletClosed(wallet: Wallet) {
    metrics.walletsClosed.inc({ reason: wallet.closeReason ?? 'none' });
    log.info(
      {
        event: 'wallet.closed',
        wallet: wallet.id,
        account: wallet.accountId,
        reason: wallet.closeReason,
        used_usd: formatUsd(wallet.spent),
        returned_cents: wallet.returnedCents,
      },
      'wallet closed',
    );
  },
  routerKeyOpened(key: RouterKey) {
    log.info(
      { event: 'router_key.opened', key: key.id, wallet: key.walletId, options: parseJson(key.options) },
      'gateway key opened',
    );
  },
});
