import { type EndReason, findResource, type Resource } from '../ledger/resource.ts';
import { findWallet, type Wallet } from '../ledger/wallet.ts';
import type { LeaseApp } from './create.ts';
import { whyToEnd } from './ending.ts';
import { isTimeOver } from './pausing.ts';

/**
 * Returns why a lease has ended or has to end; null while it lives. When paid time is over, it is over for its tenant even while
 * the clock is in doubt and no machine is destroyed.
 */
export function endReasonOf(app: LeaseApp, id: string): EndReason | null {
  const row = findResource(app.ledger.read, id) as Resource;
  if (row.endedAt !== null) return row.endReason;
  const hasEnded = isTimeOver(row, findWallet(app.ledger.read, row.walletId) as Wallet, app.clock.now());
  return whyToEnd(app, row) ?? (hasEnded ? 'lease_expired' : null);
}

/** Returns, in plain words, why a lease is not ready yet; undefined if it is, or if the reason is unknown. */
export function whyProvisioning(
  { waitingFor }: Pick<LeaseApp, 'waitingFor'>,
  { id, status, attempts }: Resource,
): string | undefined {
  if (status !== 'provisioning') return undefined;
  return attempts > 0 ? 'the provider does not answer at the moment; it is asked again' : waitingFor.get(id);
}
