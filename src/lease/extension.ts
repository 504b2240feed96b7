import type { Machine } from '../compute/backend.ts';
import type { Tx } from '../db/handle.ts';
import { type Operation, type Outcome, openOperations, settle } from '../ledger/operation.ts';
import { findResource, type Resource, updateIfLive, updateResource } from '../ledger/resource.ts';
import { Nanos } from '../money.ts';
import type { LeaseApp } from './create.ts';

export type ExtensionResult =
  | { kind: 'done' }
  | { kind: 'refused'; reason: string }
  | { kind: 'unknown'; reason: string };

/** The extensions of a lease that nobody drives and nobody has decided. */
export function openExtensions(app: LeaseApp, resource: Resource): Operation[] {
  return openOperations(app.ledger.read, resource.walletId).filter(
    (it) => it.resourceId === resource.id && it.kind === 'compute_extend' && !app.inFlight.drives(it.id),
  );
}

/** An extension in doubt, and what the backend's deadline says of it. */
export type Verdict = { operation: Operation; result: ExtensionResult };

/**
 * Reads off the deadline that the backend shows what became of extensions in doubt. A deadline that cannot be read decides
 * nothing; one that has not moved says no only `settleSeconds` after the doubt began, because what was sent may still
 * arrive.
 */
export function verdictsOn(
  app: LeaseApp,
  resource: Resource,
  machine: Machine | undefined,
  settleSeconds: number,
): Verdict[] {
  const deadline = machine?.deadline;
  if (deadline === undefined || machine?.state === 'ended') return [];
  return openExtensions(app, resource).flatMap((operation): Verdict[] => {
    if (deadline >= (operation.targetAt as number)) return [{ operation, result: { kind: 'done' } }];
    const doubtedSeconds = app.clock.now() - (operation.uncertainAt ?? Number.POSITIVE_INFINITY);
    if (doubtedSeconds < settleSeconds) return [];
    return [{ operation, result: { kind: 'refused', reason: 'the backend did not move the deadline' } }];
  });
}

export type SettledExtension = { operation: Operation; outcome: Outcome<null>; moved: boolean; row: Resource };

/** Settles an extension and moves the end of its lease with it. */
export function settleExtensionIn(
  tx: Tx,
  operation: Operation,
  result: ExtensionResult,
  now: number,
): SettledExtension {
  const outcome = judgeExtension(tx, operation, extensionOutcome(operation, result));
  const moved = settle(tx, operation.id, outcome, 'answer', now);
  const row = findResource(tx, operation.resourceId as string) as Resource;
  return { operation, outcome, moved, row: moved && outcome.kind === 'done' ? applyExtension(tx, operation) : row };
}

/** The outcome of what a backend answered: an extension that happened costs its whole hold. */
export function extensionOutcome(operation: Operation, result: ExtensionResult): Outcome<null> {
  if (result.kind === 'done') return { kind: 'done', charge: operation.hold, usage: null, answer: null };
  if (result.kind === 'unknown') return result;
  return { kind: 'refused', code: 'resource_not_active', reason: result.reason };
}

/** An extension settles only if its lease still runs; else it is released (design, section 7). */
export function judgeExtension<O extends Outcome<Buffer | null>>(
  tx: Tx,
  operation: Operation,
  outcome: O,
): O | (Outcome<never> & { kind: 'refused' }) {
  const { endedAt, readyAt } = findResource(tx, operation.resourceId as string) as Resource;
  if (outcome.kind !== 'done' || (endedAt === null && readyAt !== null)) return outcome;
  return { kind: 'refused', code: 'resource_not_active', reason: 'the lease has ended' };
}

/** Tells the log and the reaper of an extension whose settlement is on disk. */
export function announceSettled(app: LeaseApp, { operation, outcome, moved, row }: SettledExtension): void {
  app.events.settled(operation, outcome, moved);
  app.wakeAt(row.dueAt);
}

/** What the operator's word means for the lease: an extension that he charged has happened; the rest its next step finds. */
export function applyResolution(tx: Tx, operation: Operation, now: number): void {
  if (operation.resourceId === null) return;
  if (operation.kind === 'compute_extend' && operation.outcome === 'charged') applyExtension(tx, operation);
  updateIfLive(tx, operation.resourceId, { dueAt: now });
}

/** Moves the end of a lease to where its extension, which has just been charged, says. */
export function applyExtension(tx: Tx, operation: Operation): Resource {
  const row = findResource(tx, operation.resourceId as string) as Resource;
  if (row.endedAt !== null) return row;
  const expiresAt = Math.max(row.expiresAt, operation.targetAt as number);
  return updateResource(tx, row.id, {
    expiresAt,
    purchasedSeconds: row.purchasedSeconds + expiresAt - row.expiresAt,
    charged: Nanos(row.charged + operation.hold),
    dueAt: Math.min(row.dueAt, expiresAt),
  });
}
