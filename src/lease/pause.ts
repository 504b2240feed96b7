import { setTimeout as sleep } from 'node:timers/promises';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { Extended, Pausing, Slot, Spec } from '../compute/backend.ts';
import type { Tx } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import { openExtensionsOf } from '../ledger/operation.ts';
import { changeResource, findResource, type Resource, type ResourceChange, updateIfLive } from '../ledger/resource.ts';
import { findSandbox } from '../ledger/sandbox.ts';
import { findWallet, refuseInactive, type Wallet } from '../ledger/wallet.ts';
import type { LeaseApp } from './create.ts';
import {
  attempt,
  endOf,
  endOfPause,
  followWallet,
  isPaused,
  notRunning,
  PAUSED,
  pausingOf,
  resumedUntil,
  running,
} from './pausing.ts';
import { REPORT_ONLY } from './report-only.ts';
import { advance } from './step.ts';
import { endReasonOf } from './why.ts';

/** Sessions and connections are cut within this time, before the processes are stopped that they belong to. */
const CUT_MILLISECONDS = 3000;
const LOOK_MILLISECONDS = 50;
const RETRY_SECONDS = 10;
/** Two times that are closer are the same: a clock adds up parts of seconds. */
const SAME_SECONDS = 0.001;

/** A step whose process may die: `dueAt` is when the next one looks at it. */
type BeginStep = { id: string; now: number; dueAt: number };

/** Returns when a step that breaks off now is looked at, in Unix seconds: by then the engine has carried out what it got of it. */
const lookAt = (app: LeaseApp, row: Resource) =>
  app.clock.now() + (app.slots.backendOf(row)?.absence.apartSeconds ?? RETRY_SECONDS);

const stepOf = (app: LeaseApp, row: Resource): BeginStep => ({
  id: row.id,
  now: app.clock.now(),
  dueAt: lookAt(app, row),
});

/** Throws a refusal when a lease may not be paused or resumed. */
function refuseStep(tx: Tx, row: Resource, now: number): void {
  refuseInactive(tx, findWallet(tx, row.walletId) as Wallet, now);
  if (row.quarantinedAt === null) return;
  const message = `This lease cannot be paused or resumed at the moment: ${REPORT_ONLY}.`;
  throw new Refusal('read_only', message, { retryAfterSeconds: 60 });
}

/** Notes that a lease is being paused. */
const beginPause = defineWrite('lease.begin_pause', (tx, { id, now, dueAt }: BeginStep): Resource => {
  const row = findResource(tx, id) as Resource;
  const wallet = findWallet(tx, row.walletId) as Wallet;
  refuseStep(tx, row, now);
  if (row.status !== 'running' || row.endWanted !== null || row.expiresAt <= now)
    throw new Refusal('resource_not_active', `${notRunning(row)} Only a running resource can be paused.`);
  if (findSandbox(tx, id))
    throw new Refusal('invalid_request', 'This resource cannot be paused: it is a sandbox, whose life E2B’s SDKs set.');
  if (openExtensionsOf(tx, row).length)
    throw new Refusal('operation_uncertain', 'An extension of this lease is not resolved yet. Retry.', {
      retryAfterSeconds: RETRY_SECONDS,
    });
  const expiresAt = endOfPause(row, wallet, now);
  if (expiresAt <= row.expiresAt)
    throw new Refusal(
      'lease_limit_exceeded',
      `A pause would end at ${expiresAt}, and the lease lasts until ${row.expiresAt}: nothing would be kept.`,
    );
  const left = { pausedAt: now, secondsLeft: row.expiresAt - now };
  return updateIfLive(tx, id, { status: 'pausing', ...left, expiresAt, dueAt, attempts: 0, lastError: null });
});

/** `begun` is 1 if one more second has begun, beside the whole ones, since the lease was resumed. */
type NoteStopped = BeginStep & { begun: 0 | 1 };
/**
 * Notes that nothing runs in a lease any more. The tenant may have made that last, so until now its paid time has passed. A second
 * that has begun counts: else a lease that is resumed and paused within each second would run unpaid.
 */
const noteStopped = defineWrite('lease.note_stopped', (tx, { id, now, dueAt, begun }: NoteStopped): Resource => {
  const row = findResource(tx, id) as Resource;
  if (row.status !== 'pausing') return row; // It has to end.
  const end = endOf(row);
  const secondsLeft = Math.min(row.secondsLeft as number, end - now - begun);
  if (secondsLeft <= 0) throw new Refusal('resource_not_active', 'Its paid time was over before all had stopped.');
  return updateIfLive(tx, id, { pausedAt: end - secondsLeft, secondsLeft, dueAt });
});

/** Notes that a lease is being resumed, and since when. */
const beginResume = defineWrite('lease.begin_resume', (tx, { id, now, dueAt }: BeginStep): Resource => {
  const row = findResource(tx, id) as Resource;
  refuseStep(tx, row, now);
  if (row.status !== 'paused' || row.endWanted !== null || row.expiresAt <= now)
    throw new Refusal('resource_not_active', notRunning(row));
  return updateIfLive(tx, id, { status: 'resuming', pausedAt: now, dueAt, attempts: 0, lastError: null });
});

/** Returns `begun` of a lease that stops now. A lease that this process has not resumed has run for whole seconds. */
function secondBegun({ clock, resumeFractions }: LeaseApp, id: string): 0 | 1 {
  const from = resumeFractions.get(id);
  return from !== undefined && clock.fraction() - from > SAME_SECONDS ? 1 : 0;
}

const rowOf = (app: LeaseApp, id: string) => findResource(app.ledger.read, id) as Resource;

const isUnderWay = ({ status }: Resource) => status === 'pausing' || status === 'resuming';

const uncertain = () =>
  new Refusal('operation_uncertain', 'It is not known yet whether the resource is paused. Repeat the request.', {
    retryAfterSeconds: RETRY_SECONDS,
  });

/** Does a step of a lease alone, once whatever an earlier one left open is finished. Shutdown waits for it. */
function alone(app: LeaseApp, id: string, step: () => Promise<Resource>): Promise<Resource> {
  return app.inFlight.track(async () => {
    if (app.clock.expiryBlocked())
      throw new Refusal('read_only', 'The time is in doubt, and with it every deadline. Retry later.', {
        retryAfterSeconds: RETRY_SECONDS,
      });
    if (isUnderWay(rowOf(app, id))) await advance(app, id);
    return app.leaseMutex(id, async () => {
      const reason = endReasonOf(app, id);
      if (reason !== null) throw new Refusal('resource_not_active', `The lease is over (${reason}).`);
      const row = rowOf(app, id);
      if (isUnderWay(row) && row.quarantinedAt === null) throw uncertain();
      return step();
    });
  }, uncertain);
}

async function write(app: LeaseApp, id: string, values: ResourceChange): Promise<Resource> {
  const row = await app.ledger.write(changeResource, { id, values });
  app.wakeAt(row.dueAt);
  return row;
}

/** Notes the end of a step: what was to be looked at if it had broken off is looked at when the lease ends, at the latest. */
const finish = (app: LeaseApp, { id, ...row }: Resource, values: ResourceChange): Promise<Resource> =>
  write(app, id, { ...values, dueAt: Math.min(row.dueAt, values.expiresAt ?? row.expiresAt) });

/** Returns the row of a paused lease, which ends when its wallet ends now. */
async function followed(app: LeaseApp, row: Resource): Promise<Resource> {
  const values = await followWallet(app, row).catch((cause: unknown) => {
    throw new Refusal('provider_unavailable', 'The provider cannot be reached. The resource stays paused.', {
      retryAfterSeconds: RETRY_SECONDS,
      cause,
    });
  });
  return values ? write(app, row.id, values) : row;
}

/** Leaves a lease to its next step, which finds out what became of a call of unknown outcome. */
async function leaveInDoubt(app: LeaseApp, row: Resource, reason: string): Promise<never> {
  app.events.failed('pause', new Error(reason), { resource: row.id });
  await write(app, row.id, { dueAt: lookAt(app, row), lastError: reason.slice(0, 500) });
  throw uncertain();
}

/**
 * Pauses a running lease: its processes are stopped and its processors given back, and the rest of its paid time is kept until it
 * is resumed, at most until its wallet expires. Returns the lease, also where it is paused already: that pause then ends with the
 * wallet as it is now. Throws `resource_not_active`, `invalid_request` where it cannot be paused, `lease_limit_exceeded` where a
 * pause would keep nothing, `provider_unavailable` where it runs on, `operation_uncertain`, `read_only`, and the refusals of an
 * inactive wallet.
 */
export function pauseLease(app: LeaseApp, id: string): Promise<Resource> {
  return alone(app, id, async () => {
    const before = rowOf(app, id);
    if (before.status === 'paused') return followed(app, before);
    const pausing = pausingOf(app, before);
    const spec = parseJson(before.spec) as Spec;
    if ('gpus' in spec && spec.gpus > 0)
      throw new Refusal('invalid_request', 'This resource cannot be paused: it would keep its GPUs. Stop it.');
    const row = await app.ledger.write(beginPause, stepOf(app, before));
    await untilCut(app, id);
    const ref = row.ref as string;
    const stopped = () => app.ledger.write(noteStopped, { ...stepOf(app, row), begun: secondBegun(app, id) });
    const begun = await attempt(() => pausing.begin(ref, row.expiresAt, stopped));
    if (begun.kind !== 'done') return runOn(app, { row, pausing, begun });
    const paused = await finish(app, row, PAUSED);
    giveRoom(app, row, pausing);
    if (paused.status === 'paused') app.events.leasePaused(paused);
    return paused;
  });
}

/** Gives the processors of a paused lease to who waits for them. */
function giveRoom({ roomQueue }: LeaseApp, { tag, slot }: Resource, pausing: Pausing): void {
  pausing.letGo(tag);
  roomQueue.wake(slot as Slot);
}

/** Undoes a pause that did not come about. */
async function runOn(
  app: LeaseApp,
  { row, pausing, begun }: { row: Resource; pausing: Pausing; begun: Exclude<Extended, { kind: 'done' }> },
): Promise<never> {
  if (begun.kind === 'unknown') return leaveInDoubt(app, row, begun.reason);
  const undone = await attempt(() => pausing.end(row.ref as string, endOf(row)));
  if (undone.kind !== 'done') return leaveInDoubt(app, row, `${begun.reason}; ${undone.reason}`);
  await finish(app, row, running(endOf(row)));
  throw new Refusal('provider_unavailable', `The resource was not paused and runs on: ${begun.reason}.`, {
    retryAfterSeconds: RETRY_SECONDS,
  });
}

/** Waits until sessions and connections of a lease are cut. A command that still runs after some seconds is stopped where it is. */
async function untilCut(app: LeaseApp, id: string): Promise<void> {
  const giveUpAt = performance.now() + CUT_MILLISECONDS;
  while (app.activity.open(id) > 0 && performance.now() < giveUpAt) await sleep(LOOK_MILLISECONDS);
}

/**
 * Resumes a paused lease, which ends after its remaining paid time, at most when its wallet expires. Returns the lease, also where
 * it runs already. Throws `capacity_unavailable` where its processors are taken, and as `pauseLease` does; then it stays paused.
 */
export function resumeLease(app: LeaseApp, id: string): Promise<Resource> {
  return alone(app, id, async () => {
    const found = rowOf(app, id);
    if (found.status === 'running') return found;
    if (!isPaused(found)) throw new Refusal('resource_not_active', notRunning(found));
    const before = await followed(app, found);
    const pausing = pausingOf(app, before);
    const row = await takeRoom(app, before, pausing);
    const now = app.clock.now();
    app.resumeFractions.set(id, app.clock.fraction());
    const until = resumedUntil(row, now);
    const ended = await attempt(() => pausing.end(row.ref as string, until));
    if (ended.kind === 'unknown') return leaveInDoubt(app, row, ended.reason);
    if (ended.kind === 'refused') {
      await write(app, id, { ...PAUSED, pausedAt: before.pausedAt, dueAt: now });
      giveRoom(app, row, pausing);
      throw new Refusal('provider_unavailable', `The resource was not resumed: ${ended.reason}.`, {
        retryAfterSeconds: RETRY_SECONDS,
      });
    }
    const resumed = await finish(app, row, running(until));
    if (resumed.status !== 'running') return resumed; // It was stopped in the meantime.
    app.events.leaseResumed(resumed);
    await app.egress.open(id).catch(() => {}); // It was reported, and is tried again.
    return resumed;
  });
}

/** Takes the processors of a lease and notes that it is being resumed, from when on they count. */
async function takeRoom(app: LeaseApp, row: Resource, pausing: Pausing): Promise<Resource> {
  try {
    const spec = parseJson(row.spec) as Spec;
    const ask = () =>
      pausing.takeRoom(row.tag).catch((cause: unknown) => {
        throw new Refusal('provider_unavailable', 'The provider cannot be reached. The resource stays paused.', {
          retryAfterSeconds: RETRY_SECONDS,
          cause,
        });
      });
    let lacking = await ask();
    const backend = app.slots.backendOf(row);
    while (lacking !== undefined && backend && (await app.warm.makeRoom(backend, spec, 'processors')))
      lacking = await ask();
    if (lacking !== undefined)
      throw new Refusal('capacity_unavailable', `There is no room: ${lacking}. The resource stays paused.`, {
        retryAfterSeconds: RETRY_SECONDS,
      });
    return await app.ledger.write(beginResume, stepOf(app, row));
  } finally {
    pausing.letGo(row.tag);
  }
}
