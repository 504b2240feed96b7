import { Nanos } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import type { Machine } from '../compute/backend.ts';
import { secondsIn } from '../compute/slots.ts';
import type { Tx } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import { finishStep, KEEP_ROUTE } from '../ledger/keep.ts';
import {
  type Operation,
  type Outcome,
  openExtensionsOf,
  operationOf,
  resolveOperation,
  settle,
} from '../ledger/operation.ts';
import { findResource, type Resource, updateIfLive, updateResource } from '../ledger/resource.ts';
import { lengthenSandbox } from '../ledger/sandbox.ts';
import type { LeaseApp } from './create.ts';

export type ExtensionResult =
  | { kind: 'done' }
  | { kind: 'refused'; reason: string }
  | { kind: 'unknown'; reason: string };

/**
 * Returns the unresolved extensions of a lease whose call is over. One that has just become uncertain counts as driven until its
 * caller has an answer, but its call is over.
 */
export function openExtensions(app: LeaseApp, resource: Resource): Operation[] {
  const isInCall = ({ id, state }: Operation) => state === 'reserved' && app.inFlight.drives(id);
  return openExtensionsOf(app.ledger.read, resource).filter((it) => !isInCall(it));
}

/** An uncertain extension, and its result by the backend's deadline. */
export type ExtensionVerdict = { operation: Operation; result: ExtensionResult };

/**
 * Resolves uncertain extensions from the deadline that the backend shows. A deadline that cannot be read resolves
 * nothing; one that has not moved means a refusal only `settleSeconds` after the extension became uncertain, because
 * the request may still arrive.
 */
export function verdictsOn(
  app: LeaseApp,
  resource: Resource,
  machine: Machine | undefined,
  settleSeconds: number,
): ExtensionVerdict[] {
  const deadline = machine?.deadline;
  if (deadline === undefined || machine?.state === 'ended') return [];
  return openExtensions(app, resource).flatMap((operation): ExtensionVerdict[] => {
    if (deadline >= (operation.targetAt as number)) return [{ operation, result: { kind: 'done' } }];
    const uncertainSeconds = app.clock.now() - (operation.uncertainAt ?? Number.POSITIVE_INFINITY);
    if (uncertainSeconds < settleSeconds) return [];
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
  const { moved } = settle(tx, operation.id, outcome, 'answer', now);
  const row = findResource(tx, operation.resourceId as string) as Resource;
  return { operation, outcome, moved, row: moved && outcome.kind === 'done' ? applyExtension(tx, operation) : row };
}

/** Returns the outcome of a backend's reply: an extension that took place costs its whole hold. */
export function extensionOutcome(operation: Operation, result: ExtensionResult): Outcome<null> {
  if (result.kind === 'done') return { kind: 'done', charge: operation.hold, usage: null, answer: null };
  if (result.kind === 'unknown') return result;
  return { kind: 'refused', code: 'resource_not_active', reason: result.reason };
}

/**
 * Releases an extension whose lease no longer runs (design, section 7), or ends because its time was over: its deadline was not
 * seen moved in time, and a later move is useless for a machine that is being destroyed.
 */
export function judgeExtension<O extends Outcome<Buffer | null>>(
  tx: Tx,
  operation: Operation,
  outcome: O,
): O | (Outcome<never> & { kind: 'refused' }) {
  const { endedAt, endWanted, readyAt } = findResource(tx, operation.resourceId as string) as Resource;
  const isRunning = endedAt === null && readyAt !== null && endWanted !== 'lease_expired';
  if (outcome.kind !== 'done' || isRunning) return outcome;
  return { kind: 'refused', code: 'resource_not_active', reason: 'the lease has ended' };
}

/** Logs an extension whose settlement is on disk, and wakes the reaper for the lease. */
export function announceSettled(app: LeaseApp, { operation, outcome, moved, row }: SettledExtension): void {
  app.events.settled(operation, outcome, moved);
  app.wakeAt(row.dueAt);
}

type Decision = { id: string; decision: 'charge' | 'release'; reason: string; isDriven: boolean; now: number };
/** Settles an operation as the operator decides. Throws `conflict` for one that is settled or still running, and `not_found`. */
export const decideOperation = defineWrite(
  'operation.decide',
  (tx, { id, decision, reason, isDriven, now }: Decision): Operation => {
    const before = operationOf(tx, id);
    if (before.state === 'settled')
      throw new Refusal('conflict', `The operation ${id} is settled (${before.outcome}). That is final.`);
    if (isDriven) throw new Refusal('conflict', `The operation ${id} is still running. Its answer will decide it.`);
    const { operation } = resolveOperation(tx, id, decision, 'operator', reason, now);
    applyResolution(tx, operation, now);
    return operation;
  },
);

/**
 * Applies the operator's resolution to the lease: a charged creation is shown as charged, whether its machine is found or not; a
 * charged extension counts as done; the lease's next step finds the rest.
 */
function applyResolution(tx: Tx, operation: Operation, now: number): void {
  if (operation.resourceId === null) return;
  const { kind, outcome, charge } = operation;
  if (kind === 'compute_extend' && outcome === 'charged') applyExtension(tx, operation);
  const created = kind === 'compute_create' && outcome === 'charged' ? { charged: charge as Nanos } : {};
  updateIfLive(tx, operation.resourceId, { ...created, dueAt: now });
}

/**
 * Moves the end of a lease to the target of its extension, which has just been charged, by at most the extension's seconds: since
 * its hold the clock may have been set back, with the lease's end but not the target.
 */
export function applyExtension(tx: Tx, operation: Operation): Resource {
  const row = findResource(tx, operation.resourceId as string) as Resource;
  if (row.endedAt !== null) return row;
  const paidUntil = Math.min(operation.targetAt as number, row.expiresAt + secondsIn(operation.price));
  const expiresAt = Math.max(row.expiresAt, paidUntil);
  if (operation.route === KEEP_ROUTE) finishStep(tx, operation.id, expiresAt - row.expiresAt);
  lengthenSandbox(tx, row.id, expiresAt);
  return updateResource(tx, row.id, {
    expiresAt,
    purchasedSeconds: row.purchasedSeconds + expiresAt - row.expiresAt,
    charged: Nanos(row.charged + operation.hold),
    dueAt: Math.min(row.dueAt, expiresAt),
  });
}
