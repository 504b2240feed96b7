import assert from 'node:assert/strict';
import { ZERO } from '../base/money.ts';
import type { Reader } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import { tellLeaseEnded } from '../ledger/notices.ts';
import {
  findOperation,
  type Operation,
  type Outcome,
  openOperations,
  operationOf,
  settle,
} from '../ledger/operation.ts';
import { type EndReason, findResource, type Resource, updateIfLive } from '../ledger/resource.ts';
import { hasSandboxEnded } from '../ledger/sandbox.ts';
import { endedBy, findWallet, statusAt } from '../ledger/wallet.ts';
import type { LeaseApp } from './create.ts';
import { isTimeOver } from './pausing.ts';
import type { Transition } from './step.ts';

/** The end of leases: why one has to end, and what ends its row. */

/** Returns the reason why a lease has to end, or would have to if it were not quarantined; null while it may live. */
export const whyToEnd = (app: LeaseApp, row: Resource): EndReason | null =>
  row.endWanted ?? reasonToEnd(timeOf(app), app.ledger.read, row);

/** The time, and whether it is in doubt. */
export type Time = { now: number; isInDoubt: boolean };
export const timeOf = ({ clock }: LeaseApp): Time => ({ now: clock.now(), isInDoubt: clock.expiryBlocked() });

/**
 * Returns the reason why a lease has to end, from the wallet, the operation and the times alone; ignores `endWanted`.
 */
export function reasonToEnd({ now, isInDoubt }: Time, read: Reader, row: Resource): EndReason | null {
  const wallet = findWallet(read, row.walletId);
  assert(wallet, 'a resource belongs to a wallet');
  // The operator released an uncertain create: a machine that turns up afterwards is not paid for.
  if (row.readyAt === null && operationOf(read, row.operationId).outcome === 'released') return 'create_failed';
  if (isInDoubt) return endedBy(read, wallet) ? 'wallet_closed' : null;
  if (isTimeOver(row, wallet, now)) return 'lease_expired';
  if (hasSandboxEnded(read, row, now)) return 'requested';
  if (statusAt(read, wallet, now) !== 'active') return 'wallet_closed';
  if (row.readyAt === null && now >= row.readyBy) return 'create_failed';
  return null;
}

type BeginEnd = { id: string; time: Time };
/** Notes why a lease has to end, if it still has to: during the call to its backend, the operator may have charged an extension. */
export const beginEnd = defineWrite('lease.begin_end', (tx, { id, time }: BeginEnd) => {
  const current = findResource(tx, id) as Resource;
  const endWanted = current.endWanted ?? reasonToEnd(time, tx, current);
  return endWanted === current.endWanted ? current : updateIfLive(tx, id, { endWanted, attempts: 0 });
});

type EndLease = {
  row: Resource;
  reason: EndReason;
  outcome: Outcome<null>;
  abandoned: string | undefined;
  now: number;
};
/** Ends the row of a lease, and releases what it still holds. `abandoned` is the operator's reason for not waiting for its backend. */
const endLease = defineWrite('lease.end', (tx, { row, reason, outcome, abandoned, now }: EndLease) => {
  const by = abandoned === undefined ? 'answer' : 'operator';
  const released: Operation[] = [];
  for (const { id } of openOperations(tx, row.walletId).filter((it) => it.resourceId === row.id))
    if (settle(tx, id, outcome, by, now).moved) released.push(findOperation(tx, id) as Operation);
  const { charge } = operationOf(tx, row.operationId);
  // Read again: while the machine was being ended, the operator may have charged an extension.
  const before = findResource(tx, row.id) as Resource;
  const ended = updateIfLive(tx, row.id, {
    status: reason === 'create_failed' ? 'failed' : 'stopped',
    charged: before.readyAt === null ? (charge ?? ZERO) : before.charged,
    endWanted: reason,
    endReason: reason,
    endedAt: now,
    lastError: null,
    unreachableSince: null,
    ...(abandoned === undefined ? {} : { abandonedReason: abandoned }),
  });
  if (before.endedAt === null) tellLeaseEnded(tx, ended, now);
  return { row: ended, released };
});

/** Returns the transition that ends a lease. */
export function ending(app: LeaseApp, row: Resource, reason: EndReason, abandoned?: string): Transition {
  const now = app.clock.now();
  const outcome: Outcome<null> & { kind: 'refused' } = {
    kind: 'refused',
    code: 'provider_unavailable',
    reason: `the lease ${row.readyAt === null ? 'never became ready' : 'has ended'} (${[reason, row.lastError].filter(Boolean).join(': ')})`,
  };
  let released: readonly Operation[] = [];
  return {
    async write(ledger) {
      const ended = await ledger.write(endLease, { row, reason, outcome, abandoned, now });
      released = ended.released;
      return ended.row;
    },
    announce(ended) {
      for (const operation of released) {
        app.events.settled(operation, outcome, true);
        app.limits.released.count(operation.walletId);
      }
      app.events.leaseEnded(ended);
    },
  };
}
