import assert from 'node:assert/strict';
import type { Backend, Machine } from '../compute/backend.ts';
import { alterResource, type EndReason, findResource, type Resource } from '../compute/resources.ts';
import type { Reader, Tx } from '../db/handle.ts';
import {
  findOperation,
  type Operation,
  type Outcome,
  openOperations,
  operationOf,
  settle,
} from '../ledger/operation.ts';
import { findWallet, statusAt } from '../ledger/wallet.ts';
import { ZERO } from '../money.ts';
import { REPORT_ONLY } from './caution.ts';
import { decideExtensions, openExtensions } from './extension.ts';
import type { LeaseApp } from './lease.ts';

/** While something is about to happen, and while nothing is. */
const LOOK_SECONDS = 2;
const WATCH_SECONDS = 60;
/** Destroying is retried for ever, ever more slowly, and says so. */
const BACK_OFF_SECONDS_MAX = 300;

/** One step of a lease when it is its turn. One that still waits for its turn is shared by all who ask. */
export function step(app: LeaseApp, id: string): Promise<Resource> {
  return app.serially.shared(id, () => stepLease(app, id));
}

/**
 * One step in the life of a lease, from its rows alone, so that it can be walked again after any crash: look for what an
 * unknown create left, capture when it is ready, end it when its time is over or its wallet closes, and call it ended
 * only when the backend confirms that it is gone. Answers the row as it then is. What fails is noted on the row, which is
 * due again later; throws only where that cannot be written either.
 */
async function stepLease(app: LeaseApp, id: string): Promise<Resource> {
  let resource = findResource(app.ledger.read, id);
  assert(resource, 'only resources that were found are stepped');
  if (resource.endedAt !== null) return resource;
  try {
    const backend = app.slots.backendOf(resource);
    const end = resource.endWanted ?? (await reasonNow(app, backend, resource));
    if (end !== resource.endWanted) resource = await change(app, id, { endWanted: end, attempts: 0 });
    if (resource.questionedAt !== null) return await holdBack(app, resource);
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

/** Why a lease has to end, or would have to if it were not in question. */
export const whyToEnd = (app: LeaseApp, resource: Resource): EndReason | null =>
  resource.endWanted ?? reasonToEnd(app, app.ledger.read, resource);

/** Why this lease has to end now, if it has to. An extension in doubt is decided first: it may have moved the end. */
async function reasonNow(app: LeaseApp, backend: Backend | undefined, resource: Resource): Promise<EndReason | null> {
  const end = reasonToEnd(app, app.ledger.read, resource);
  const { ref, questionedAt } = resource;
  if (end !== 'lease_expired' || !backend || ref === null || questionedAt !== null) return end;
  if (!openExtensions(app, resource).length) return end;
  await decideExtensions(app, resource, await backend.inspect(ref), backend.absence.apartSeconds);
  return reasonToEnd(app, app.ledger.read, findResource(app.ledger.read, resource.id) as Resource);
}

/** Why this lease has to end by what is written, if it has to. */
function reasonToEnd(app: LeaseApp, read: Reader, resource: Resource): EndReason | null {
  const now = app.clock.now();
  const wallet = findWallet(read, resource.walletId);
  assert(wallet, 'a resource belongs to a wallet');
  // The operator released what nobody knew: a machine that turns up afterwards is not paid for.
  if (resource.readyAt === null && operationOf(read, resource.operationId).outcome === 'released')
    return 'create_failed';
  if (app.clock.expiryBlocked()) return wallet.status === 'active' ? null : 'wallet_closed';
  if (resource.readyAt !== null && now >= resource.expiresAt) return 'lease_expired';
  if (statusAt(wallet, now) !== 'active') return 'wallet_closed';
  if (resource.readyAt === null && now >= resource.readyBy) return 'create_failed';
  return null;
}

async function change(app: LeaseApp, id: string, values: Parameters<typeof alterResource>[2]): Promise<Resource> {
  const resource = await app.ledger.write((tx) => alterResource(tx, id, values));
  if (resource.endedAt === null) app.wakeAt(resource.dueAt);
  return resource;
}

/** Its machine may be another installation's (docs/decisions/0010): what would be done is only said. */
async function holdBack(app: LeaseApp, resource: Resource): Promise<Resource> {
  const lastError = resource.endWanted && `${resource.endWanted}: ${REPORT_ONLY}`;
  if (lastError && lastError !== resource.lastError) app.events.leaseHeldBack(resource, lastError);
  return change(app, resource.id, { lastError, dueAt: app.clock.now() + WATCH_SECONDS });
}

const FURTHEST_FIRST: Machine['state'][] = ['running', 'provisioning', 'ended'];

/** The reference is not known: an earlier create may have left a machine, or none. Evidence decides, never a timer. */
async function lookFor(app: LeaseApp, backend: Backend, resource: Resource): Promise<Resource> {
  const found = await backend.find(resource.tag);
  found.sort((a, b) => FURTHEST_FIRST.indexOf(a.state) - FURTHEST_FIRST.indexOf(b.state));
  const [machine, ...others] = found;
  const now = app.clock.now();
  if (machine) {
    const adopted = await change(app, resource.id, {
      ref: machine.ref,
      status: 'provisioning',
      dueAt: now,
      attempts: 0,
      lastError: null,
    });
    app.events.leaseAdopted(adopted);
    for (const other of others) await backend.destroy(other.ref); // Several found: one is kept, the rest destroyed.
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
    await change(app, resource.id, { endWanted: reason, dueAt: now, lastError });
    return stepLease(app, resource.id);
  }
  if (resource.readyAt === null) {
    // While the clock is doubted its paid time cannot begin: nobody knows what deadline to give the machine.
    if (machine.state !== 'running' || app.clock.expiryBlocked())
      return change(app, resource.id, { dueAt: now + LOOK_SECONDS, attempts: 0, lastError: machine.note ?? null });
    return capture(app, backend, resource, ref);
  }
  const { apartSeconds } = backend.absence;
  await decideExtensions(app, resource, machine, apartSeconds);
  const fresh = findResource(app.ledger.read, resource.id) as Resource;
  const soon = openExtensions(app, fresh).length ? Math.max(LOOK_SECONDS, apartSeconds) : WATCH_SECONDS;
  return change(app, resource.id, { dueAt: Math.min(fresh.expiresAt, now + soon), attempts: 0, lastError: null });
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
    const row = findResource(tx, resource.id) as Resource;
    // Somebody stopped it, or its wallet closed, while it became ready: it is not paid for.
    if (row.endWanted !== null || reasonToEnd(app, tx, row) !== null) return undefined;
    const moved = settle(tx, operation.id, outcome, 'answer', now);
    const { charge } = operationOf(tx, operation.id); // The operator may have charged it by his word.
    const ready = { status: 'running', readyAt: now, expiresAt, charged: charge ?? ZERO } as const;
    const dueAt = Math.min(expiresAt, now + WATCH_SECONDS);
    return { moved, row: alterResource(tx, resource.id, { ...ready, dueAt, attempts: 0, lastError: null }) };
  });
  if (!captured) return stepLease(app, resource.id);
  if (captured.moved) app.events.settled(operation, outcome, true);
  app.events.leaseReady(captured.row);
  app.wakeAt(captured.row.dueAt);
  return captured.row;
}

/**
 * Destroys, and asks whether it is gone: only then the lease has ended. Of a create that was once in doubt a second
 * machine may be left, so the tag has to be asked too; otherwise the reference is all there ever was.
 */
async function finishEnding(app: LeaseApp, backend: Backend, resource: Resource, ref: string): Promise<Resource> {
  if (openExtensions(app, resource).length)
    await decideExtensions(app, resource, await backend.inspect(ref), Number.POSITIVE_INFINITY);
  await backend.destroy(ref);
  const machine = await backend.inspect(ref);
  const wasDoubted = operationOf(app.ledger.read, resource.operationId).uncertainAt !== null;
  const others = wasDoubted ? (await backend.find(resource.tag)).filter((it) => it.ref !== ref) : [];
  if (!machine && !others.length) return conclude(app, resource, resource.endWanted as EndReason);
  for (const other of others) await backend.destroy(other.ref);
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
    const { charge } = operationOf(tx, resource.operationId);
    return alterResource(tx, resource.id, {
      status: reason === 'create_failed' ? 'failed' : 'stopped',
      charged: resource.readyAt === null ? (charge ?? ZERO) : resource.charged,
      endWanted: reason,
      endReason: reason,
      endedAt: now,
      lastError: null,
    });
  });
  for (const operation of released) {
    app.events.settled(operation, outcome, true);
    app.limits.released.count(operation.walletId);
  }
  app.events.leaseEnded(concluded);
  app.wakeAt(now);
  return concluded;
}

function unresolved(tx: Tx, resource: Resource): string[] {
  return openOperations(tx, resource.walletId)
    .filter((it) => it.resourceId === resource.id)
    .map((it) => it.id);
}
