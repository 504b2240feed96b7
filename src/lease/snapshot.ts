import { newId } from '../base/id.ts';
import { Nanos } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { type Backend, type Snapshots, type Spec, tagOf } from '../compute/backend.ts';
import { PAUSE_STEPS } from '../db/enums.ts';
import type { Reader } from '../db/handle.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import { findOperation, type Operation, type Outcome } from '../ledger/operation.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import { hasSandboxEnded } from '../ledger/sandbox.ts';
import {
  applyTake,
  dayPriceSnapshot,
  deleteSnapshot,
  endAbandoned,
  findSnapshot,
  hundredthsOf,
  insertSnapshot,
  liveSnapshots,
  type NewSnapshot,
  paidDay,
  priceOfDay,
  SNAPSHOT_COUNT_MAX,
  type Snapshot,
  snapshotOfOperation,
} from '../ledger/snapshot.ts';
import type { Wallet } from '../ledger/wallet.ts';
import { type Answered, type PaidQuote, type PaidRequest, refusedOutside, spend, uncertain } from '../spend/spend.ts';
import { definePaidWrites } from '../spend/writes.ts';
import type { LeaseApp } from './create.ts';
import { engineOf } from './engine.ts';
import { REPORT_ONLY } from './report-only.ts';
import { advanceSnapshot, letRun } from './snapshot-step.ts';
import { advance } from './step.ts';

/** The longest that taking one may last; after that its row is looked at again. */
const TAKE_SECONDS = 900;
const RETRY_SECONDS = 10;

const snapshotWrites = definePaidWrites<NewSnapshot>('snapshot', {
  limits: limitSnapshot,
  insertRows: (tx, operation, order) => insertSnapshot(tx, order, operation, operation.createdAt + TAKE_SECONDS),
  settleRows(tx, { id }, outcome, now) {
    applyTake(tx, snapshotOfOperation(tx, id) as Snapshot, outcome, now);
  },
});

/** Throws a refusal when no snapshot of a lease may be taken. */
function limitSnapshot(read: Reader, wallet: Wallet, _: unknown, { resourceId }: NewSnapshot, now: number): void {
  const row = findResource(read, resourceId) as Resource;
  const isThere = row.status === 'running' || row.status === 'paused';
  if (!isThere || row.endWanted !== null || row.expiresAt <= now || hasSandboxEnded(read, row, now))
    throw new Refusal(
      'resource_not_active',
      `The resource is ${row.status}. Only one that runs or is paused has a disk.`,
    );
  if (row.quarantinedAt !== null || reportOnlyOf(read))
    throw new Refusal('read_only', `No snapshot can be taken at the moment: ${REPORT_ONLY}.`, {
      retryAfterSeconds: 60,
    });
  if (liveSnapshots(read, wallet.id).length >= SNAPSHOT_COUNT_MAX)
    throw new Refusal(
      'lease_limit_exceeded',
      `The wallet has ${SNAPSHOT_COUNT_MAX} snapshots, which is the most. Delete one: POST /v1/compute/snapshot/delete.`,
    );
}

/** Returns the snapshots of a lease's backend. Throws `invalid_request` where it has none, and `provider_not_configured`. */
function snapshotsOf(app: LeaseApp, row: Resource): { backend: Backend; snapshots: Snapshots; price: bigint } {
  const backend = app.slots.backendOf(row);
  if (!backend) throw new Refusal('provider_not_configured');
  const { snapshots = 'its engine has none' } = backend.guest;
  const refused = (why: string) => new Refusal('invalid_request', `No snapshot can be taken of this resource: ${why}.`);
  if (typeof snapshots === 'string') throw refused(snapshots);
  const { price } = snapshots;
  if (price === undefined) throw refused('none are sold here');
  return { backend, snapshots, price };
}

type SnapshotRequest = Omit<PaidRequest, 'kind'> & { resource: Resource };

/**
 * Takes a snapshot of a lease that runs or is paused: holds the price of a day for the whole disk together with the snapshot's row,
 * asks the engine, and charges the day for the bytes taken. Holds the lease's lock, so that its machine stays as it is. Throws
 * `invalid_request`, `provider_not_configured`, `resource_not_active`, `lease_limit_exceeded`, `capacity_unavailable`,
 * `provider_unavailable` and PAID_REFUSALS.
 */
export function takeSnapshot(app: LeaseApp, { resource, ...request }: SnapshotRequest): Promise<Answered<Snapshot>> {
  const { id } = resource;
  const current = () => findResource(app.ledger.read, id) as Resource;
  return spend<Snapshot, NewSnapshot>(
    app,
    { ...request, kind: 'snapshot' },
    {
      writes: snapshotWrites,
      async schedule(run) {
        if (PAUSE_STEPS.some((it) => it === current().status)) await advance(app, id);
        return app.leaseMutex(id, async () => {
          if (app.inFlight.isCutOff()) throw uncertain(); // The caller has its answer already; nothing was started.
          return run();
        });
      },
      quote: () => quoteSnapshot(app, current()),
      refuse: (_, outcome) =>
        outcome.kind === 'unknown'
          ? uncertain()
          : refusedOutside({ ...outcome, reason: outcome.callerReason ?? outcome.reason }),
      async replay({ id: operationId }) {
        const { id } = snapshotOfOperation(app.ledger.read, operationId) as Snapshot;
        await app.inFlight.waitFor(advanceSnapshot(app, id), app.answerSeconds);
        const decided = findOperation(app.ledger.read, operationId) as Operation;
        if (decided.state !== 'settled') throw uncertain();
        if (decided.outcome === 'released') throw new Refusal('provider_unavailable', NOT_TAKEN);
        const taken = findSnapshot(app.ledger.read, id) as Snapshot;
        if (taken.status === 'taking') throw uncertain(); // The operator has charged it, and its engine has not shown it yet.
        return taken;
      },
    },
  );
}

const NOT_TAKEN = 'The snapshot was not taken. Nothing was charged.';

async function quoteSnapshot(app: LeaseApp, row: Resource): Promise<PaidQuote<Snapshot, NewSnapshot>> {
  const { backend, snapshots, price } = snapshotsOf(app, row);
  const limitGib = snapshots.gibMax(parseJson(row.spec) as Spec);
  const snapshotId = newId('snap');
  const unreached = (cause?: unknown) =>
    new Refusal('provider_unavailable', `The provider cannot be reached. ${NOT_TAKEN}`, {
      retryAfterSeconds: RETRY_SECONDS,
      cause,
    });
  const engine = await engineOf(backend).catch((cause: unknown) => {
    throw unreached(cause);
  });
  if (row.engine !== null && row.engine !== engine) throw unreached(); // Its machine is on another one.
  const order: NewSnapshot = {
    ...{ id: snapshotId, resourceId: row.id, slot: row.slot, backend: row.backend, engine: engine ?? null },
    ...{ tag: tagOf(app.installationId, snapshotId), limitGib, price: Nanos(price) },
  };
  return {
    order: {
      hold: priceOfDay(price, limitGib * 100),
      price: dayPriceSnapshot(price, limitGib * 100),
      subject: row.slot,
    },
    async call() {
      const outcome = await take(app, snapshots, order);
      const answer = () => {
        const taken = findSnapshot(app.ledger.read, snapshotId) as Snapshot;
        app.events.snapshotTaken(taken);
        app.wakeAt(taken.dueAt);
        return taken;
      };
      return { outcome, answer };
    },
    terms: order,
  };
}

/** Asks the engine. A snapshot that turns out larger than was held for is removed again. */
async function take(app: LeaseApp, snapshots: Snapshots, order: NewSnapshot): Promise<Outcome<null>> {
  const { tag, limitGib } = order;
  const { ref, status } = findResource(app.ledger.read, order.resourceId) as Resource;
  const bytesMax = limitGib * 1024 ** 3;
  try {
    const taken = await snapshots.take({ ref: ref as string, tag, isRunning: status === 'running', bytesMax });
    if (taken.kind === 'taken' && taken.bytes <= bytesMax) return paidDay(order, hundredthsOf(taken.bytes));
    if (taken.kind === 'taken') {
      await snapshots.remove(tag);
      const reason = `It would take more than the ${limitGib} GiB of its disk. ${NOT_TAKEN}`;
      return { kind: 'refused', code: 'lease_limit_exceeded', reason };
    }
    const { words, reason, code } = taken;
    const callerReason = `${reason}. ${NOT_TAKEN}`;
    const retry = code === 'lease_limit_exceeded' ? {} : { retryAfterSeconds: RETRY_SECONDS };
    return { kind: 'refused', code, reason: words ? `${reason} (${words})` : reason, callerReason, ...retry };
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}

/**
 * Removes a snapshot, without a refund of the day that has begun. Records the removal, and waits for one step, at most
 * `close_wait_seconds`; the reaper continues. Idempotent. Throws `read_only` while these books may be a copy.
 */
export async function removeSnapshot(app: LeaseApp, id: string): Promise<Snapshot> {
  const now = app.clock.now();
  const row = await app.ledger.write(deleteSnapshot, { id, reason: 'requested', now });
  if (row.endedAt !== null) return row;
  app.wakeAt(now);
  const stepped = await app.inFlight.waitFor(advanceSnapshot(app, id), app.config.close_wait_seconds);
  return stepped ?? (findSnapshot(app.ledger.read, id) as Snapshot);
}

/**
 * Ends the row of a snapshot whose engine is gone for good, on the operator's word alone: its wallet could not be closed otherwise. A
 * sweep removes its image should it turn up. Throws `conflict` while it is being taken.
 */
export function abandonSnapshot(app: LeaseApp, id: string, reason: string): Promise<Snapshot> {
  return app.leaseMutex(id, async () => {
    const row = findSnapshot(app.ledger.read, id);
    if (!row) throw new Refusal('not_found', 'There is no such snapshot.');
    if (row.endedAt !== null) throw new Refusal('conflict', `The snapshot ${id} has ended (${row.endReason}).`);
    if (app.inFlight.drives(row.operationId)) throw new Refusal('conflict', `The snapshot ${id} is being taken.`);
    // Nothing else would continue what this take may have stopped. Where the engine is gone, neither does this.
    if (row.status === 'taking')
      await app.inFlight.waitFor(
        letRun(app, row).catch(() => {}),
        app.config.close_wait_seconds,
      );
    const { row: ended, released } = await app.ledger.write(endAbandoned, { id, reason, now: app.clock.now() });
    if (released) app.events.settled(released.operation, released.outcome, true);
    app.events.snapshotEnded(ended);
    app.wakeAt(app.clock.now());
    return ended;
  });
}
