import assert from 'node:assert/strict';
import type { Backend } from '../compute/backend.ts';
import { type EndReason, findResource, type Resource, updateResource } from '../compute/resources.ts';
import type { Tx } from '../db/handle.ts';
import {
  findOperation,
  type Operation,
  type Outcome,
  openOperations,
  operationOf,
  settle,
} from '../ledger/operation.ts';
import { findWallet, statusAt } from '../ledger/wallet.ts';
import { Nanos } from '../money.ts';
import type { LeaseApp } from './lease.ts';

/** While something is about to happen, and while nothing is. */
const LOOK_SECONDS = 2;
const WATCH_SECONDS = 60;
/** Destroying is retried for ever, ever more slowly, and says so. */
const BACK_OFF_SECONDS_MAX = 300;

/**
 * One step in the life of a lease, from its rows alone, so that it can be walked again after any crash: look for what an
 * unknown create left, capture when it is ready, end it when its time is over or its wallet closes, and call it ended
 * only when the backend confirms that it is gone. Answers the row as it then is. Never throws: what fails is noted on
 * the row, which is due again later.
 */
export async function stepLease(app: LeaseApp, id: string): Promise<Resource> {
  let resource = findResource(app.ledger.read, id);
  assert(resource, 'only resources that were found are stepped');
  if (resource.endedAt !== null) return resource;
  try {
    const end = resource.endWanted ?? reasonToEnd(app, resource);
    if (end !== resource.endWanted)
      resource = await change(app, id, { endWanted: end, status: 'stopping', attempts: 0 });
    const backend = app.slots.backendOf(resource);
    if (!backend) throw new Error(`the backend ${resource.backend} is no longer configured for ${resource.slot}`);
    if (resource.ref === null) return await lookFor(app, backend, resource);
    if (resource.endWanted) return await finishEnding(app, backend, resource, resource.ref);
    return await watch(app, backend, resource, resource.ref);
  } catch (error) {
    const attempts = resource.attempts + 1;
    const dueAt = app.clock.now() + Math.min(BACK_OFF_SECONDS_MAX, LOOK_SECONDS * 2 ** Math.min(attempts - 1, 10));
    const lastError = (error as Error).message.slice(0, 500);
    app.events.leaseTrouble(resource, lastError, attempts);
    return change(app, id, { attempts, dueAt, lastError });
  }
}

/** Why this lease has to end now, if it has to. */
function reasonToEnd(app: LeaseApp, resource: Resource): EndReason | null {
  const now = app.clock.now();
  const wallet = findWallet(app.ledger.read, resource.walletId);
  assert(wallet, 'a resource belongs to a wallet');
  if (app.clock.expiryBlocked()) return wallet.status === 'active' ? null : 'wallet_closed';
  if (resource.readyAt !== null && now >= resource.expiresAt) return 'lease_expired';
  if (statusAt(wallet, now) !== 'active') return 'wallet_closed';
  if (resource.readyAt === null && now >= resource.readyBy) return 'create_failed';
  return null;
}

async function change(app: LeaseApp, id: string, values: Parameters<typeof updateResource>[2]): Promise<Resource> {
  const resource = await app.ledger.write((tx) => updateResource(tx, id, values));
  app.wakeAt(resource.dueAt);
  return resource;
}

/** The reference is not known: an earlier create may have left a machine, or none. Evidence decides, never a timer. */
async function lookFor(app: LeaseApp, backend: Backend, resource: Resource): Promise<Resource> {
  const [machine, ...others] = await backend.find(resource.tag);
  const now = app.clock.now();
  if (machine) {
    for (const other of others) await backend.destroy(other.ref); // Several found: one is kept, the rest destroyed.
    const adopted = await change(app, resource.id, {
      ref: machine.ref,
      status: resource.endWanted ? 'stopping' : 'provisioning',
      dueAt: now,
      attempts: 0,
      lastError: null,
    });
    app.events.leaseAdopted(adopted);
    return stepLease(app, resource.id);
  }
  const since = resource.absentSince ?? now;
  const apart = resource.absentCount === 0 || now - since >= backend.absence.apartSeconds * resource.absentCount;
  const absentCount = resource.absentCount + (apart ? 1 : 0);
  if (absentCount >= backend.absence.lists) return conclude(app, resource, resource.endWanted ?? 'create_failed');
  return change(app, resource.id, { absentCount, absentSince: since, dueAt: now + backend.absence.apartSeconds });
}

/** Looks after a lease that may live: captures its price when it is ready, and notices when the provider has ended it. */
async function watch(app: LeaseApp, backend: Backend, resource: Resource, ref: string): Promise<Resource> {
  const machine = await backend.inspect(ref);
  const now = app.clock.now();
  if (!machine || machine.state === 'ended') {
    const reason =
      resource.readyAt === null ? 'create_failed' : now >= resource.expiresAt ? 'lease_expired' : 'provider_ended';
    const lastError = machine?.note ?? resource.lastError;
    await change(app, resource.id, { endWanted: reason, status: 'stopping', dueAt: now, lastError });
    return stepLease(app, resource.id);
  }
  if (resource.readyAt === null) {
    if (machine.state !== 'running')
      return change(app, resource.id, { dueAt: now + LOOK_SECONDS, attempts: 0, lastError: machine.note ?? null });
    return capture(app, backend, resource, ref);
  }
  for (const operation of openExtensions(app, resource.id)) {
    const reached = machine.deadline !== undefined && machine.deadline >= (operation.targetAt as number);
    await settleExtension(
      app,
      operation,
      reached ? { kind: 'done' } : { kind: 'refused', reason: 'the backend did not move the deadline' },
    );
  }
  const fresh = findResource(app.ledger.read, resource.id) as Resource;
  return change(app, resource.id, {
    dueAt: Math.min(fresh.expiresAt, now + WATCH_SECONDS),
    attempts: 0,
    lastError: null,
  });
}

/** The paid time starts now: the backend's deadline is tightened first, then the whole price is captured (design 2.18). */
async function capture(app: LeaseApp, backend: Backend, resource: Resource, ref: string): Promise<Resource> {
  const now = app.clock.now();
  const expiresAt = now + resource.purchasedSeconds;
  const tightened = await backend.extend(ref, expiresAt);
  if (tightened.kind !== 'done') throw new Error(`the backend did not take the deadline: ${tightened.reason}`);
  const operation = operationOf(app.ledger.read, resource.operationId);
  const outcome: Outcome<null> = { kind: 'done', charge: operation.hold, usage: null, answer: null };
  const captured = await app.ledger.write((tx) => {
    settle(tx, operation.id, outcome, 'answer', now);
    const dueAt = Math.min(expiresAt, now + WATCH_SECONDS);
    return updateResource(tx, resource.id, {
      status: 'running',
      readyAt: now,
      expiresAt,
      charged: operation.hold,
      dueAt,
      attempts: 0,
      lastError: null,
    });
  });
  app.events.settled(operation, outcome, true);
  app.events.leaseReady(captured);
  app.wakeAt(captured.dueAt);
  return captured;
}

/** Destroys, and asks whether it is gone: only then the lease has ended. */
async function finishEnding(app: LeaseApp, backend: Backend, resource: Resource, ref: string): Promise<Resource> {
  for (const operation of openExtensions(app, resource.id)) {
    const deadline = (await backend.inspect(ref))?.deadline ?? 0;
    const reached = deadline >= (operation.targetAt as number);
    await settleExtension(
      app,
      operation,
      reached ? { kind: 'done' } : { kind: 'refused', reason: 'the lease ended first' },
    );
  }
  await backend.destroy(ref);
  const left = [await backend.inspect(ref), ...(await backend.find(resource.tag))].filter((it) => it !== undefined);
  if (!left.length) return conclude(app, resource, resource.endWanted as EndReason);
  for (const other of left) if (other.ref !== ref) await backend.destroy(other.ref);
  return change(app, resource.id, { dueAt: app.clock.now() + LOOK_SECONDS });
}

/** The backend confirmed that nothing is there: the row ends, and what was never captured is released. */
export async function conclude(
  app: LeaseApp,
  resource: Resource,
  reason: EndReason,
  by: 'answer' | 'operator' = 'answer',
): Promise<Resource> {
  const now = app.clock.now();
  const released: Operation[] = [];
  const outcome: Outcome<null> = {
    kind: 'refused',
    code: 'provider_unavailable',
    reason: `the lease never became ready (${[reason, resource.lastError].filter(Boolean).join(': ')})`,
  };
  const concluded = await app.ledger.write((tx) => {
    for (const id of unresolved(tx, resource))
      if (settle(tx, id, outcome, by, now)) released.push(findOperation(tx, id) as Operation);
    return updateResource(tx, resource.id, {
      status: reason === 'create_failed' ? 'failed' : 'stopped',
      endWanted: reason,
      endReason: reason,
      endedAt: now,
      lastError: null,
    });
  });
  for (const operation of released) app.events.settled(operation, outcome, true);
  app.events.leaseEnded(concluded);
  app.wakeAt(now);
  return concluded;
}

function unresolved(tx: Tx, resource: Resource): string[] {
  return openOperations(tx, resource.walletId)
    .filter((it) => it.resourceId === resource.id)
    .map((it) => it.id);
}

function openExtensions(app: LeaseApp, resourceId: string): Operation[] {
  const resource = findResource(app.ledger.read, resourceId) as Resource;
  return openOperations(app.ledger.read, resource.walletId).filter(
    (it) => it.resourceId === resourceId && it.kind === 'compute_extend' && !app.running.drives(it.id),
  );
}

/** An extension settles only if the resource still runs; else it is released (design, section 7). */
export async function settleExtension(
  app: LeaseApp,
  operation: Operation,
  result: { kind: 'done' } | { kind: 'refused'; reason: string } | { kind: 'unknown'; reason: string },
): Promise<Outcome<null>> {
  const now = app.clock.now();
  const { outcome, resource } = await app.ledger.write((tx) => {
    const row = findResource(tx, operation.resourceId as string) as Resource;
    const runs = row.endedAt === null && row.readyAt !== null;
    const outcome: Outcome<null> =
      result.kind === 'unknown'
        ? result
        : result.kind === 'done' && runs
          ? { kind: 'done', charge: operation.hold, usage: null, answer: null }
          : {
              kind: 'refused',
              code: 'resource_not_active',
              reason: result.kind === 'refused' ? result.reason : 'the lease has ended',
            };
    settle(tx, operation.id, outcome, 'answer', now);
    if (outcome.kind !== 'done') return { outcome, resource: row };
    const targetAt = operation.targetAt as number;
    const added = Math.max(0, targetAt - row.expiresAt);
    const change = {
      expiresAt: Math.max(row.expiresAt, targetAt),
      purchasedSeconds: row.purchasedSeconds + added,
      charged: Nanos(row.charged + operation.hold),
    };
    return {
      outcome,
      resource: updateResource(tx, row.id, { ...change, dueAt: Math.min(row.dueAt, change.expiresAt) }),
    };
  });
  app.events.settled(operation, outcome, true);
  app.wakeAt(resource.dueAt);
  return outcome;
}
