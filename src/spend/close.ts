import type { Clock } from '../clock.ts';
import type { Config } from '../config.ts';
import type { Events } from '../events.ts';
import { type CloseReason, closeWallet, freezeWallet, noteCleanup } from '../ledger/closing.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { decide, hasOpenOperations, openOperations } from '../ledger/operation.ts';
import { findWallet, type Wallet } from '../ledger/wallet.ts';
import type { Running } from './running.ts';

export type CloseApp = {
  ledger: Ledger;
  clock: Clock;
  events: Events;
  running: Running;
  config: Pick<Config, 'closeWaitSeconds' | 'router'>;
};

/**
 * Freezes a wallet and works on its end for at most `close_wait_seconds`: requests in flight are waited for, uncertain
 * ones decided by their policy, the rest settled and returned. Answers the wallet as it then is: `closed`, or still
 * `closing` or `expired` with the reaper going on (design 2.10). Closing a closed wallet changes nothing.
 */
export async function close(app: CloseApp, walletId: string, reason: CloseReason): Promise<Wallet> {
  const now = app.clock.now();
  const frozen = await app.ledger.write((tx) => freezeWallet(tx, walletId, reason, now));
  if (frozen.status === 'closed') return frozen;
  const wallet = await windUp(app, walletId);
  if (wallet.status === 'closed') return wallet;
  await app.running.quiet(walletId, app.config.closeWaitSeconds);
  return windUp(app, walletId);
}

/**
 * One attempt to bring a frozen wallet to its end: decides what no evidence will ever decide, and closes it when nothing
 * is left. What this process is driving is left to end by itself.
 */
export async function windUp(app: CloseApp, walletId: string): Promise<Wallet> {
  const undecided = openOperations(app.ledger.read, walletId).filter((it) => !app.running.drives(it.id));
  for (const { id, state } of undecided) {
    // A hold whose driver has not come back from its commit yet is about to be driven.
    if (state === 'reserved') continue;
    const policy = app.config.router.uncertain.policy;
    const now = app.clock.now();
    const decided = await app.ledger.write((tx) =>
      decide(tx, id, policy, 'policy', `the wallet was closed; policy ${policy}`, now),
    );
    if (decided.moved) app.events.decided(decided.operation);
  }
  const now = app.clock.now();
  const closed = await app.ledger.write((tx) => {
    if (findWallet(tx, walletId)?.status === 'closed') return undefined; // Somebody else was first, and told of it.
    if (hasOpenOperations(tx, walletId)) {
      noteCleanup(tx, walletId, 'requests are still in flight');
      return undefined;
    }
    return closeWallet(tx, walletId, now);
  });
  if (closed) app.events.walletClosed(closed);
  return closed ?? (findWallet(app.ledger.read, walletId) as Wallet);
}
