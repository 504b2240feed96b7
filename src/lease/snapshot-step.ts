import assert from 'node:assert/strict';
import { Refusal } from '../base/refusal.ts';
import type { Backend, Snapshots } from '../compute/backend.ts';
import { isFrozen, reportOnlyOf } from '../ledger/installation.ts';
import { operationOf } from '../ledger/operation.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import {
  acceptTake,
  buyDay,
  DAY_SECONDS,
  deleteSnapshot,
  endSnapshot,
  findSnapshot,
  hundredthsOf,
  leaseFrom,
  noteSnapshot,
  paidDay,
  type Snapshot,
  settleTake,
} from '../ledger/snapshot.ts';
import type { LeaseApp } from './create.ts';
import { lookAt } from './engine.ts';
import { REPORT_ONLY } from './report-only.ts';

/** Delay until the next step while something is about to happen, and while a lease still needs a snapshot that is to go. */
const SOON_SECONDS = 2;
const WATCH_SECONDS = 60;
/** Longest delay between two attempts of a step that keeps failing. */
const BACK_OFF_SECONDS_MAX = 300;
/** An engine that finished a lost call would have done so by then. What comes later is removed by the sweep. */
const ABSENT_SECONDS = 60;
/** For this long after the end of its paid time a snapshot waits for money that requests in flight hold. */
const FUNDS_SECONDS = 3600;

/** For this long it waits, unpaid, for a wallet that is frozen or an account that is suspended. */
const FROZEN_SECONDS = 7 * DAY_SECONDS;

/** The states of a snapshot that has not ended, as its row has them. */
export type SnapshotState = 'taking' | 'ready' | 'deleting';
/**
 * The finding of its engine: `unreachable` is every failure to find out, also where another engine answers than the one that has
 * it. What is to go is removed before it is looked for.
 */
export type SnapshotFinding = 'unreachable' | 'absent' | 'there';

type ObservedSnapshot = {
  app: LeaseApp;
  row: Snapshot;
  /** The bytes that it takes, where it is there. */
  bytes: number;
  error: Error | undefined;
};
type SnapshotAction = (observed: ObservedSnapshot) => Promise<Snapshot>;

/** The action for every state and finding. */
export const SNAPSHOT_ACTIONS: Record<SnapshotState, Record<SnapshotFinding, SnapshotAction>> = {
  taking: { unreachable: backOff, absent: failWhenSure, there: settleThere },
  ready: { unreachable: backOff, absent: end, there: payWhenDue },
  deleting: { unreachable: backOff, absent: end, there: tryAgain },
};

/**
 * Takes the next step of a snapshot, serialized with every other step of it. Waiting callers share one. Throws what cannot be
 * written.
 */
export function advanceSnapshot(app: LeaseApp, id: string): Promise<Snapshot> {
  return app.leaseMutex.shared(id, async () => {
    const row = findSnapshot(app.ledger.read, id);
    assert(row, 'only snapshots that were found are stepped');
    if (row.endedAt !== null || app.inFlight.drives(row.operationId)) return row;
    const written = await step(app, row);
    if (written.endedAt !== null) app.events.snapshotEnded(written);
    // A row that no step may touch now is still due: to wake for it would not end.
    if (written !== row) app.wakeAt(written.endedAt ?? written.dueAt);
    return written;
  });
}

async function step(app: LeaseApp, row: Snapshot): Promise<Snapshot> {
  const state = row.status as SnapshotState;
  if (reportOnlyOf(app.ledger.read)) return note(app, row, WATCH_SECONDS, REPORT_ONLY);
  // The end of a day, and its charge, follow from the time alone. Processes that a take has stopped are resumed in any case.
  if (state !== 'deleting' && app.clock.expiryBlocked()) {
    if (state === 'taking') await letRun(app, row).catch(() => {}); // The next pass tries again.
    return row;
  }
  if (state === 'deleting' && leaseFrom(app.ledger.read, row.id) !== undefined) return note(app, row, WATCH_SECONDS);
  const { finding, engine, ...seen } = await observe(app, row);
  if (engine !== undefined) return note(app, row, 0, null, { engine });
  return SNAPSHOT_ACTIONS[state][finding]({ app, row, ...seen });
}

type SnapshotLook = {
  bytes: number | undefined;
  /** The engine that has it, if it is not the one in the row; null where it reports none. */
  engine?: string | null;
};

/** Asks the engine that has the snapshot: only that one proves an absence. */
async function observe(
  app: LeaseApp,
  row: Snapshot,
): Promise<Pick<ObservedSnapshot, 'bytes' | 'error'> & Pick<SnapshotLook, 'engine'> & { finding: SnapshotFinding }> {
  try {
    if (row.status === 'taking') await letRun(app, row);
    const { bytes, ...moved } = await look(app, row);
    return { ...moved, finding: bytes === undefined ? 'absent' : 'there', bytes: bytes ?? 0, error: undefined };
  } catch (error) {
    return { finding: 'unreachable', bytes: 0, error: error as Error };
  }
}

function engineOfSnapshot(app: LeaseApp, row: Snapshot): { backend: Backend; snapshots: Snapshots } {
  const backend = app.slots.backendOf(row);
  const snapshots = backend?.guest.snapshots;
  if (backend && typeof snapshots === 'object') return { backend, snapshots };
  throw new Error(`the backend ${row.backend} of ${row.slot} is not configured any more, or has no snapshots`);
}

/**
 * Resumes the lease that an interrupted take may have stopped, unless it is in quarantine. Throws when the engine cannot be asked.
 */
export async function letRun(app: LeaseApp, row: Snapshot): Promise<void> {
  const { snapshots } = engineOfSnapshot(app, row);
  await app.leaseMutex(row.resourceId, async () => {
    const { ref, status, quarantinedAt } = findResource(app.ledger.read, row.resourceId) as Resource;
    if (status === 'running' && ref !== null && quarantinedAt === null) await snapshots.letRun(ref);
  });
}

/** Looks for a snapshot. One that another engine has exists there, as one that was renamed; none is removed from another. */
async function look(app: LeaseApp, row: Snapshot): Promise<SnapshotLook> {
  const { backend, snapshots } = engineOfSnapshot(app, row);
  const { tag } = row;
  const isOwn = (engine: string | undefined) => (engine ?? null) === row.engine;
  const { engine, seen: bytes } = await lookAt(backend, async (engine) => {
    if (row.status === 'deleting' && isOwn(engine)) await snapshots.remove(tag);
    return snapshots.find(tag);
  });
  if (isOwn(engine)) return { bytes };
  if (bytes === undefined)
    throw new Error(`it is on another engine (${row.engine}) than the one that answers now (${engine})`);
  return { bytes, engine: engine ?? null };
}

/** Schedules the next step. */
const note = (
  { ledger, clock }: LeaseApp,
  { id }: Snapshot,
  seconds: number,
  lastError: string | null = null,
  moved: Pick<SnapshotLook, 'engine'> = {},
) => ledger.write(noteSnapshot, { id, change: { ...moved, dueAt: clock.now() + seconds, attempts: 0, lastError } });

// The actions, in the order of the table.

async function backOff({ app, row, error }: ObservedSnapshot): Promise<Snapshot> {
  const attempts = row.attempts + 1;
  const seconds = Math.min(BACK_OFF_SECONDS_MAX, SOON_SECONDS * 2 ** Math.min(attempts - 1, 10));
  const lastError = (error as Error).message.slice(0, 500);
  app.events.snapshotTrouble(row, lastError, attempts);
  return app.ledger.write(noteSnapshot, {
    id: row.id,
    change: { dueAt: app.clock.now() + seconds, attempts, lastError },
  });
}

/** Removes what is there under the tag of a snapshot, if anything is. Throws where that is not known. */
async function removeFrom({ app, row }: ObservedSnapshot): Promise<void> {
  const { snapshots } = app.slots.backendOf(row)?.guest ?? {};
  if (typeof snapshots === 'object') await snapshots.remove(row.tag);
}

/**
 * Gives the money of a snapshot back that was never taken, once a lost call can be expected to be over. A part of it may be there:
 * a copy that has no size yet.
 */
async function failWhenSure(observed: ObservedSnapshot): Promise<Snapshot> {
  const { app, row } = observed;
  const operation = operationOf(app.ledger.read, row.operationId);
  if (operation.state === 'settled') return end(observed); // The operator has decided it.
  const since = app.clock.now() - (operation.uncertainAt ?? app.clock.now());
  if (since < ABSENT_SECONDS) return note(app, row, Math.max(SOON_SECONDS, ABSENT_SECONDS - since));
  try {
    await removeFrom(observed);
  } catch (error) {
    return backOff({ ...observed, error: error as Error });
  }
  return settle(app, row, {
    kind: 'refused',
    code: 'provider_unavailable',
    reason: 'the engine has no such snapshot',
  });
}

/** Charges a snapshot that an unanswered call has taken. One that is larger than was held for is removed. */
async function settleThere(observed: ObservedSnapshot): Promise<Snapshot> {
  const { app, row, bytes } = observed;
  const operation = operationOf(app.ledger.read, row.operationId);
  const size = hundredthsOf(bytes);
  const isTooLarge = size > row.limitGib * 100;
  const { id } = row;
  if (isTooLarge || operation.outcome === 'released') {
    try {
      await removeFrom(observed);
    } catch (error) {
      return backOff({ ...observed, error: error as Error });
    }
    if (operation.state === 'settled') return tryAgain(observed); // The operator has decided it: it ends once it is absent.
    const reason = `it takes more than ${row.limitGib} GiB`;
    return settle(app, row, { kind: 'refused', code: 'lease_limit_exceeded', reason });
  }
  if (operation.outcome === 'charged') return app.ledger.write(acceptTake, { id, size, now: app.clock.now() });
  return settle(app, row, paidDay(row, size));
}

async function settle(app: LeaseApp, row: Snapshot, outcome: Parameters<typeof settleTake.run>[1]['outcome']) {
  const operation = operationOf(app.ledger.read, row.operationId);
  const { moved, row: written } = await app.ledger.write(settleTake, { id: row.id, outcome, now: app.clock.now() });
  app.events.settled(operation, outcome, moved);
  return written;
}

/** Pays for the day that has begun. A snapshot that no wallet pays for has to go. */
async function payWhenDue({ app, row }: ObservedSnapshot): Promise<Snapshot> {
  const now = app.clock.now();
  const { id } = row;
  const paidUntil = row.paidUntil as number;
  if (paidUntil > now) {
    const change = { dueAt: paidUntil, attempts: 0, lastError: null };
    return app.ledger.write(noteSnapshot, { id, change });
  }
  try {
    const bought = await app.ledger.write(buyDay, { id, now, blocked: app.clock.holdsBlocked() });
    if (bought) {
      app.events.held(bought.operation);
      app.events.settled(bought.operation, bought.outcome, true);
    }
    return findSnapshot(app.ledger.read, id) as Snapshot;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (isFrozen(app.ledger.read) || now < paidUntil + patienceWith(error))
      return note(app, row, WATCH_SECONDS, error.message);
    return app.ledger.write(deleteSnapshot, { id, reason: error.code, now });
  }
}

/**
 * Returns the seconds for which an unpaid snapshot waits, by the refusal of its day. No disk is lost for what its owner cannot help
 * and the operator undoes; days that pass unpaid are not charged later.
 */
function patienceWith({ code }: Refusal): number {
  if (code === 'read_only') return Number.POSITIVE_INFINITY;
  if (code === 'wallet_frozen' || code === 'account_suspended') return FROZEN_SECONDS;
  return code === 'funds_held' ? FUNDS_SECONDS : 0;
}

/** Ends the row: the snapshot is gone. */
async function end({ app, row }: ObservedSnapshot): Promise<Snapshot> {
  return app.ledger.write(endSnapshot, { id: row.id, now: app.clock.now() });
}

/** The engine may not have removed it yet. */
async function tryAgain({ app, row }: ObservedSnapshot): Promise<Snapshot> {
  return note(app, row, SOON_SECONDS);
}
