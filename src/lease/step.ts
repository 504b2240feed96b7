import assert from 'node:assert/strict';
import { ZERO } from '../base/money.ts';
import type { Backend, Machine, Slot } from '../compute/backend.ts';
import { defineWrite } from '../db/write.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { tellLeaseTrouble } from '../ledger/notices.ts';
import { type Outcome, operationOf, settle } from '../ledger/operation.ts';
import {
  changeResource,
  type EndReason,
  findResource,
  liveResourcesOfSlot,
  type Resource,
  type ResourceChange,
  updateIfLive,
  wakeResources,
} from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';
import { beginEnd, ending, reasonToEnd, type Time, timeOf, whyToEnd } from './ending.ts';
import { lookAt } from './engine.ts';
import {
  announceSettled,
  type ExtensionVerdict,
  openExtensions,
  type SettledExtension,
  settleExtensionIn,
  verdictsOn,
} from './extension.ts';
import { type Finding, type LeaseState, type Observed, observe, stateOf } from './observe.ts';
import { endOf, finishPause, followWallet, isPaused } from './pausing.ts';
import { REPORT_ONLY } from './report-only.ts';

/** Delay until the next step while something is about to happen, and while nothing is. */
const SOON_SECONDS = 2;
const WATCH_SECONDS = 60;
/** Attempts to set the deadline of a machine that is ready, so that its paid time begins when the backend has answered. */
const TIGHTEN_COUNT = 4;
/** Seconds by which an attempt may miss that moment. */
const TIGHTEN_SECONDS = 2;
/** Longest delay between two attempts of a step that keeps failing. */
const BACK_OFF_SECONDS_MAX = 300;
/** Seconds before the end of a pause from when on a step that fails is repeated soon: its wallet may have been prolonged. */
const PAUSE_MARGIN_SECONDS = 60;
const PAUSE_RETRY_SECONDS = 10;
/** The number of consecutive failures of a step after which receivers get an event: a single failure may mean nothing. */
const TROUBLE_COUNT = 3;

/** The consequence of a finding: the one write of a step, and what is announced once it is on disk. */
export type Transition = {
  write: (ledger: Ledger) => Promise<Resource>;
  announce?: (row: Resource) => void;
  /** Returns whether the written row needs another step at once. */
  again?: (row: Resource) => boolean;
  /** True if the lease's backend was asked and has answered. */
  answered?: true;
};

type Action = (observed: Observed) => Transition | Promise<Transition>;

/** The action for every state and finding (design, section 7). */
export const ACTIONS: Record<LeaseState, Record<Finding, Action>> = {
  searching: {
    unreachable: backOff,
    elsewhere: waitForEngine,
    missing: countAbsence,
    absent: endAsGone,
    starting: adopt,
    running: adopt,
    ended: adopt,
  },
  starting: {
    unreachable: backOff,
    elsewhere: waitForEngine,
    // Only a search reports `missing`; the other entries complete the table.
    missing: waitAndSee,
    absent: beginEnding,
    starting: waitUntilReady,
    running: captureWhenReady,
    ended: beginEnding,
  },
  running: {
    unreachable: backOff,
    elsewhere: waitForEngine,
    missing: waitAndSee,
    absent: beginEnding,
    starting: keepWatch,
    running: keepWatch,
    ended: beginEnding,
  },
  paused: {
    unreachable: backOff,
    elsewhere: waitForEngine,
    missing: waitAndSee,
    absent: beginEnding,
    starting: keepPaused,
    running: keepPaused,
    ended: beginEnding,
  },
  ending: {
    unreachable: backOff,
    elsewhere: waitForEngine,
    missing: waitAndSee,
    absent: endAsGone,
    starting: waitAndSee,
    running: waitAndSee,
    ended: waitAndSee,
  },
};

/** Takes the next steps of a lease, serialized with everything else done to it. Waiting callers share one run. */
export function advance(app: LeaseApp, id: string): Promise<Resource> {
  return app.leaseMutex.shared(id, () => takeSteps(app, id));
}

/**
 * Takes steps until none is due at once. Each starts from the rows alone, so that it can be repeated after a crash. A failed step
 * is recorded on the row and retried later; throws only if that write fails.
 */
async function takeSteps(app: LeaseApp, id: string): Promise<Resource> {
  for (;;) {
    const row = findResource(app.ledger.read, id);
    assert(row, 'only resources that were found are stepped');
    if (row.endedAt !== null) return row;
    try {
      const transition = await nextTransition(app, row);
      const { row: written, again } = await commit(app, transition);
      if (transition.answered) await noteAnswer(app, row);
      if (!again) return written;
    } catch (error) {
      // Re-read the row as the failed step left it: an ending that began stays begun.
      const failed = findResource(app.ledger.read, id) as Resource;
      return (await commit(app, retryLater(app, failed, error as Error))).row;
    }
  }
}

async function commit(app: LeaseApp, transition: Transition): Promise<{ row: Resource; again: boolean }> {
  const row = await transition.write(app.ledger);
  transition.announce?.(row);
  if (row.status !== 'provisioning') app.waitingFor.delete(row.id);
  if (row.endedAt !== null) {
    app.activity.forget(row.id);
    app.usages.delete(row.id);
    app.resumeFractions.delete(row.id);
    app.warm.takeProof(row.id); // A lease that ended before it was ready has not used it.
    app.roomQueue.wake(row.slot as Slot);
  }
  app.wakeAt(row.endedAt ?? row.dueAt);
  return { row, again: transition.again?.(row) ?? false };
}

/** Records that the backend has answered for a lease, and makes its leases due that back off from an earlier failure. */
async function noteAnswer(app: LeaseApp, row: Resource): Promise<void> {
  const { id, slot } = row;
  const unit = unitOf(app, row);
  const now = app.clock.now();
  const { wake, recovered } = app.outages.answered(unit, id, now);
  for (const it of recovered) app.events.leaseTroubleEnded(it.unit, it.seconds);
  if (!wake) return;
  const waiting = liveResourcesOfSlot(app.ledger.read, slot as Slot).filter(
    (it) => it.attempts > 0 && it.dueAt > now && it.id !== id && unitOf(app, it) === unit,
  );
  if (!waiting.length) return;
  await app.ledger.write(wakeResources, { ids: waiting.map((it) => it.id), dueAt: now });
  app.wakeAt(now);
}

/** Names the unit that fails and returns as a whole: the lease's backend, or the part of it that the machine depends on. */
function unitOf(app: LeaseApp, row: Resource): string {
  const configured = app.slots.configuredOf(row);
  const slotPath = configured?.slotPath ?? row.slot;
  const part = row.ref === null ? undefined : configured?.backend.partOf?.(row.ref);
  return part === undefined ? slotPath : `${slotPath} ${part}`;
}

/** Returns the next transition: decided by the rows alone if possible, else by the backend's report. */
async function nextTransition(app: LeaseApp, row: Resource): Promise<Transition> {
  const backend = app.slots.backendOf(row);
  const end = whyToEnd(app, row);
  // Resolve an uncertain extension while its machine can still show its deadline: it may have moved the end.
  const mayMoveEnd = row.endWanted !== null || end === 'lease_expired';
  const canBeSeen = backend && row.ref !== null && row.quarantinedAt === null;
  if (mayMoveEnd && canBeSeen) {
    const settleSeconds = row.endWanted === null ? backend.absence.apartSeconds : Number.POSITIVE_INFINITY;
    const verdicts = await askForVerdicts(app, backend, row, settleSeconds);
    if (verdicts.length) return settleVerdicts(app, row, verdicts, { again: always });
  }
  // Where the deadline cannot be read, ending the lease would release an extension that may have taken place.
  const isInDoubt = end === 'lease_expired' && row.endWanted === null && openExtensions(app, row).length > 0;
  const looked = isInDoubt && canBeSeen ? await observe(app, backend, row) : undefined;
  if (looked?.finding === 'elsewhere') return waitForEngine(looked);
  if (end !== row.endWanted && !(isInDoubt && !canBeSeen))
    return { write: (ledger) => ledger.write(beginEnd, { id: row.id, time: timeOf(app) }), again: always };
  if (row.quarantinedAt !== null) return reportOnly(app, row, end);
  if (!backend) throw new Error(`the backend ${row.backend} is no longer configured for ${row.slot}`);
  const state = stateOf(row);
  const observed = await observe(app, backend, row).catch((error: Error): Observed => {
    return { app, backend, row, finding: 'unreachable', machines: [], error };
  });
  const { finding, engine } = observed;
  if (engine !== undefined) return { ...change(row, { engine, ...REACHABLE }), again: always, answered: true };
  const transition = await ACTIONS[state][finding](observed);
  if (finding === 'unreachable' || finding === 'elsewhere') return transition;
  if (row.unreachableSince !== null) return { ...change(row, REACHABLE), again: always, answered: true };
  return { ...transition, answered: true };
}

/** The change of a lease whose engine answers again. */
const REACHABLE = { unreachableSince: null, attempts: 0, lastError: null } satisfies ResourceChange;

// The actions, in the order of the table.
const always = () => true;

/** Returns a transition that changes the row alone. */
function change({ id }: Resource, values: ResourceChange): Transition {
  return { write: (ledger) => ledger.write(changeResource, { id, values }) };
}

/** Returns a transition that writes nothing. */
const unchanged = ({ id }: Resource): Transition => ({
  write: async ({ read }) => findResource(read, id) as Resource,
});

/** Counts an empty list, which proves nothing yet, so the search is repeated. Evidence decides, never a timer. */
function countAbsence({ app, backend, row, absence }: Observed): Transition {
  return change(row, { ...absence, ...answeredAgain(row), dueAt: app.clock.now() + backend.absence.apartSeconds });
}

/** Ends the lease: its machine is gone or never existed. */
function endAsGone({ app, row }: Observed): Transition {
  return ending(app, row, row.endWanted ?? 'create_failed');
}

/**
 * Keeps one machine of an uncertain create and destroys the rest; the sweep retries those that cannot be destroyed now.
 */
async function adopt({ app, backend, row, machines }: Observed): Promise<Transition> {
  const [machine, ...others] = machines as [Machine, ...Machine[]];
  await Promise.allSettled(others.map(({ ref }) => backend.destroy(ref)));
  // Where the row's own backend has it, it is on the engine in the row.
  const found = backend.name === row.backend ? undefined : await lookAt(backend, () => backend.find(row.tag));
  const adopted = { backend: backend.name, ref: machine.ref, ...(found && { engine: found.engine ?? null }) } as const;
  const values = { ...adopted, status: 'provisioning', attempts: 0, lastError: null } as const;
  return { ...change(row, { ...values, dueAt: app.clock.now() }), announce: app.events.leaseAdopted, again: always };
}

/** Begins to remove a machine that has ended by itself or by its provider, or has to end because it exceeded a limit. */
function beginEnding({ app, row, machines: [machine] }: Observed): Transition {
  const now = app.clock.now();
  const early = machine?.exceeded === 'disk' ? 'disk_exceeded' : 'provider_ended';
  const endWanted = row.readyAt === null ? 'create_failed' : now >= endOf(row) ? 'lease_expired' : early;
  return { ...change(row, { endWanted, dueAt: now, lastError: machine?.note ?? row.lastError }), again: always };
}

function waitAndSee({ app, row }: Observed): Transition {
  return change(row, { ...answeredAgain(row), dueAt: app.clock.now() + SOON_SECONDS });
}

/**
 * Returns the change that ends the trouble of a lease whose backend has answered: only failures in a row count. Where there is no
 * trouble, `lastError` is a note of the machine, which stays.
 */
const answeredAgain = ({ attempts }: Resource): ResourceChange =>
  attempts > 0 ? { attempts: 0, lastError: null } : {};

function waitUntilReady({ app, row, machines: [machine] }: Observed): Transition {
  app.waitingFor.set(row.id, machine?.waitsFor);
  return change(row, { dueAt: app.clock.now() + SOON_SECONDS, attempts: 0, lastError: machine?.note ?? null });
}

type CaptureLease = { id: string; outcome: Outcome<null>; readyAt: number; expiresAt: number; time: Time };
/** Charges a lease whose machine is ready, unless it has to end. */
const captureLease = defineWrite('lease.capture', (tx, { id, outcome, readyAt, expiresAt, time }: CaptureLease) => {
  const { now } = time;
  const current = findResource(tx, id) as Resource;
  // It was stopped, or its wallet closed, while it became ready: it is not charged, and the next step ends it.
  if (current.endedAt !== null || current.endWanted !== null || reasonToEnd(time, tx, current) !== null)
    return { row: current, isSettledNow: false };
  const { moved: isSettledNow } = settle(tx, current.operationId, outcome, 'answer', now);
  const { charge } = operationOf(tx, current.operationId); // The operator may have charged it in the meantime.
  const ready = { status: 'running', readyAt, expiresAt, charged: charge ?? ZERO } as const;
  const dueAt = Math.min(expiresAt, now + WATCH_SECONDS);
  return { row: updateIfLive(tx, id, { ...ready, dueAt, attempts: 0, lastError: null }), isSettledNow };
});

/**
 * Starts the paid time: has the machine prove itself, tightens the backend's deadline, then captures the whole price (design
 * 2.18).
 */
async function captureWhenReady(observed: Observed): Promise<Transition> {
  const { app, backend, row } = observed;
  // While the clock blocks expiry (`expiryBlocked`), the paid time cannot begin: the right deadline is not known.
  if (app.clock.expiryBlocked()) return waitUntilReady(observed);
  const fault = app.warm.takeProof(row.id) ? undefined : await backend.guest.prove(row.ref as string);
  if (fault !== undefined) {
    app.waitingFor.set(row.id, 'it has started, but no command can be run in it yet');
    return change(row, { dueAt: app.clock.now() + SOON_SECONDS, attempts: 0, lastError: fault });
  }
  await app.egress.open(row.id); // Its first command may need it.
  const { readyAt, expiresAt } = await tighten(app, backend, row);
  const operation = operationOf(app.ledger.read, row.operationId);
  const outcome: Outcome<null> = { kind: 'done', charge: operation.hold, usage: null, answer: null };
  let isSettledNow = false;
  return {
    async write(ledger) {
      const time = timeOf(app);
      const captured = await ledger.write(captureLease, { id: row.id, outcome, readyAt, expiresAt, time });
      isSettledNow = captured.isSettledNow;
      return captured.row;
    },
    announce(captured) {
      if (isSettledNow) app.events.settled(operation, outcome, true);
      if (captured.readyAt !== null) app.events.leaseReady(captured);
    },
    again: (captured) => captured.readyAt === null,
  };
}

/**
 * Has the backend end the machine when its paid time is over, and returns when that time begins and ends. A slow call must not use
 * up paid time: it is repeated for a start at which its answer is expected (docs/decisions/0066). Throws when the backend does not
 * accept the deadline, or takes longer each time.
 */
async function tighten(app: LeaseApp, backend: Backend, row: Resource) {
  let [last, longest] = [0, 0];
  for (let tries = TIGHTEN_COUNT; tries > 0; tries--) {
    const isLastTry = tries === 1;
    const calledAt = app.clock.now();
    // Never after `readyBy`, which was checked against the wallet's expiry and the offer's end.
    const readyAt = Math.min(calledAt + (isLastTry ? 2 * longest : last), row.readyBy);
    const expiresAt = readyAt + row.purchasedSeconds;
    const tightened = await backend.extend(row.ref as string, expiresAt);
    if (tightened.kind !== 'done') throw new Error(`the backend did not accept the deadline: ${tightened.reason}`);
    const now = app.clock.now();
    const isLate = now - readyAt > TIGHTEN_SECONDS;
    const isEarly = readyAt - now > TIGHTEN_SECONDS && !isLastTry;
    // A lease that has to end is not captured, so its machine is not kept alive for another call.
    if ((!isLate && !isEarly) || whyToEnd(app, findResource(app.ledger.read, row.id) as Resource) !== null)
      return { readyAt, expiresAt };
    last = now - calledAt;
    longest = Math.max(longest, last);
  }
  throw new Error(`the backend took ${longest} s to set the deadline`);
}

/** Resolves the uncertain extensions of a running lease by the deadline that the backend reports. */
function keepWatch({ app, backend, row, machines }: Observed): Transition {
  const { apartSeconds } = backend.absence;
  const verdicts = verdictsOn(app, row, machines[0], apartSeconds);
  const isInDoubt = openExtensions(app, row).length > verdicts.length;
  const nextSeconds = isInDoubt ? Math.max(SOON_SECONDS, apartSeconds) : WATCH_SECONDS;
  return settleVerdicts(app, row, verdicts, { nextSeconds });
}

/**
 * Looks after a paused lease now and then: finishes a pause or a resumption that was left open, and follows the end of its wallet. A
 * pause that is finished is on disk before it follows: until then the machine's deadline has to be the one that it began with.
 */
async function keepPaused(observed: Observed): Promise<Transition> {
  const { app, row, machines } = observed;
  // A call of unknown outcome may still arrive, and would undo what is done before.
  if (row.status !== 'paused' && row.attempts === 0 && row.dueAt > app.clock.now()) return unchanged(row);
  // By a wrong time its machine would end at once, or after more than was paid.
  if (row.status === 'resuming' && app.clock.expiryBlocked()) return waitAndSee(observed);
  const values = (await finishPause(app, row, machines[0] as Machine)) ?? (await followWallet(app, row));
  const isFinished = row.status === 'paused' || values?.status === 'running';
  const now = app.clock.now();
  const dueAt = nextLook(values?.expiresAt ?? row.expiresAt, isFinished ? now + WATCH_SECONDS : now, now);
  const finished = change(row, { ...answeredAgain(row), ...values, dueAt });
  return {
    ...finished,
    again: () => !isFinished,
    announce(written) {
      if (written.status === row.status) return;
      const pause = app.slots.backendOf(row)?.guest.pause;
      if (typeof pause === 'object') pause.letGo(row.tag);
      if (written.status === 'paused') {
        app.events.leasePaused(written);
        app.roomQueue.wake(written.slot as Slot);
      }
      if (written.status !== 'running') return;
      app.events.leaseResumed(written);
      app.egress.open(row.id).catch(() => {}); // It was reported, and is tried again.
    },
  };
}

/**
 * Returns when a lease is looked at again, Unix seconds: at `next`, or at its end if that is earlier. One that is over and lives on
 * waits for a clock in doubt: due at its end, it would be looked at without a pause until then.
 */
const nextLook = (end: number, next: number, now: number): number =>
  end > now ? Math.min(end, next) : now + SOON_SECONDS;

function backOff({ app, row, error }: Observed): Transition {
  return retryLater(app, row, error as Error);
}

/**
 * Schedules a retry of a failed step, without end and with growing delays. A step of a lease that backs off already and was not due
 * was taken for a waiting caller: that attempt does not count.
 */
function retryLater(app: LeaseApp, row: Resource, error: Error): Transition {
  const now = app.clock.now();
  if (row.attempts > 0 && row.dueAt > now) return unchanged(row);
  const attempts = row.attempts + 1;
  const backOff = Math.min(BACK_OFF_SECONDS_MAX, SOON_SECONDS * 2 ** Math.min(attempts - 1, 10));
  const lastError = error.message.slice(0, 500);
  const unit = unitOf(app, row);
  const { delay, isNews } = app.outages.failed(unit, row.id, backOff, now);
  app.events.leaseTrouble(row, lastError, attempts, isNews);
  const values = { attempts, dueAt: retryAt(row, now, delay), lastError };
  return { write: (ledger) => ledger.write(noteFailedStep, { id: row.id, values, now }) };
}

/** Returns when a step that failed is repeated. That of a paused lease is, before its machine ends for want of a later deadline. */
function retryAt(row: Resource, now: number, delay: number): number {
  if (!isPaused(row) || row.expiresAt <= now) return now + delay;
  return now + Math.min(delay, Math.max(PAUSE_RETRY_SECONDS, row.expiresAt - PAUSE_MARGIN_SECONDS - now));
}

/** Leaves a lease alone until its own engine answers, and asks again now and then. Its backend is well, so this is no outage of it. */
function waitForEngine({ app, row, error }: Observed): Transition {
  const now = app.clock.now();
  if (row.unreachableSince !== null && row.dueAt > now) return unchanged(row);
  app.outages.forget(row.id);
  const { attempts, unreachableSince } = row;
  const lastError = (error as Error).message.slice(0, 500);
  if (unreachableSince === null) app.events.leaseUnreachable(row, lastError);
  const since = unreachableSince ?? now;
  const dueAt = retryAt(row, now, WATCH_SECONDS);
  const values = { attempts: attempts + 1, dueAt, lastError, unreachableSince: since };
  return { write: (ledger) => ledger.write(noteFailedStep, { id: row.id, values, now }) };
}

type FailedStep = { id: string; values: ResourceChange & { attempts: number }; now: number };
const noteFailedStep = defineWrite('lease.step_failed', (tx, { id, values, now }: FailedStep) => {
  const failed = updateIfLive(tx, id, values);
  if (failed.endedAt === null && values.attempts === TROUBLE_COUNT) tellLeaseTrouble(tx, failed, now);
  return failed;
});

/** Reports the pending action and does nothing: the machine may belong to another installation (docs/decisions/0010). */
function reportOnly(app: LeaseApp, row: Resource, end: EndReason | null): Transition {
  const lastError = end && `${end}: ${REPORT_ONLY}`;
  if (lastError && lastError !== row.lastError) app.events.leaseHeldBack(row, lastError);
  return change(row, { lastError, dueAt: app.clock.now() + WATCH_SECONDS });
}

// Shared by actions and rules.

async function askForVerdicts(
  app: LeaseApp,
  backend: Backend,
  row: Resource,
  settleSeconds: number,
): Promise<ExtensionVerdict[]> {
  if (!openExtensions(app, row).length) return [];
  return verdictsOn(app, row, await backend.inspect(row.ref as string), settleSeconds);
}

type SettleExtensions = { id: string; verdicts: readonly ExtensionVerdict[]; next: number | undefined; now: number };
/** Settles extensions. Their lease is due as `nextLook` has it; without `next` its row stays. */
const settleExtensions = defineWrite('lease.settle_extensions', (tx, { id, verdicts, next, now }: SettleExtensions) => {
  const settled = verdicts.map((it) => settleExtensionIn(tx, it.operation, it.result, now));
  const row = findResource(tx, id) as Resource;
  if (next === undefined || row.endedAt !== null) return { settled, row };
  const dueAt = nextLook(row.expiresAt, next, now);
  return { settled, row: updateIfLive(tx, id, { dueAt, attempts: 0, lastError: null }) };
});

/**
 * Settles extensions in one write with the row, which is due again after `nextSeconds`, or at its end if that is
 * earlier.
 */
function settleVerdicts(
  app: LeaseApp,
  row: Resource,
  verdicts: readonly ExtensionVerdict[],
  { nextSeconds = 0, again }: { nextSeconds?: number; again?: Transition['again'] },
): Transition {
  const now = app.clock.now();
  let settled: SettledExtension[] = [];
  return {
    async write(ledger) {
      const next = again ? undefined : now + nextSeconds;
      const done = await ledger.write(settleExtensions, { id: row.id, verdicts, next, now });
      settled = done.settled;
      return done.row;
    },
    announce() {
      for (const it of settled) announceSettled(app, it);
    },
    ...(again ? { again } : {}),
  };
}

/** Ends the row of a lease without asking its backend. Keeps the operator's reason; releases what was never captured. */
export async function markAbandoned(app: LeaseApp, row: Resource, abandoned: string) {
  app.outages.forget(row.id);
  return (await commit(app, ending(app, row, row.endWanted ?? 'requested', abandoned))).row;
}
