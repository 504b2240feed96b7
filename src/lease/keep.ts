import { fingerprint } from '../base/fingerprint.ts';
import { Refusal, type RefusalCode } from '../base/refusal.ts';
import { type CpuTime, cpuShare, readCpuTime } from '../compute/cpu-time.ts';
import { canExtend } from '../compute/slots.ts';
import type { Config } from '../config/config.ts';
import { isFrozen } from '../ledger/installation.ts';
import {
  activeKeeps,
  changeKeep,
  endKeep,
  findKeep,
  KEEP_ROUTE,
  type Keep,
  type KeepEnd,
  type KeepOrder,
  noteKeep,
} from '../ledger/keep.ts';
import { openOperations, operationOf } from '../ledger/operation.ts';
import { findResource, PAGE_COUNT, type Resource } from '../ledger/resource.ts';
import { findWallet, type Wallet } from '../ledger/wallet.ts';
import type { LeaseApp } from './create.ts';
import { extendLease } from './extend.ts';
import { momentsOf } from './keep-moments.ts';
import { isPaused } from './pausing.ts';
import { endReasonOf } from './why.ts';

/** Extends leases while their machines are busy (docs/decisions/0066). */

/** A machine that is not busy when its step is due is measured again this often until its end. */
const AGAIN_SECONDS = 10;

/** Refusals of a step that may pass before the end of the lease. */
const PASSING: readonly RefusalCode[] = [
  'operation_uncertain',
  'idempotency_in_progress',
  'rate_limited',
  'read_only',
  'funds_held',
];

/** The state of keeps that is not in their rows, by the keep's id; dropped when the keep has ended. */
type KeepMemory = {
  /** The last measurement of a machine, and when it was checked. */
  readings: Map<string, { at: number; cpu: CpuTime | undefined }>;
  /** Checks that are running. */
  checks: Map<string, Promise<void>>;
};
export const createKeepMemory = (): KeepMemory => ({ readings: new Map(), checks: new Map() });

export type KeepApp = LeaseApp & { config: Pick<Config, 'keep'>; keeps: KeepMemory };

/**
 * Begins to keep a lease while it is busy, in place of its earlier keep; `extendSeconds` 0 only ends that one. Moves no money: each
 * step is an extension. Throws `extension_not_supported`, `provider_not_configured`, and the refusals of `changeKeep`.
 */
export async function keepLease(app: LeaseApp, resource: Resource, order: KeepOrder): Promise<{ replayed: boolean }> {
  if (!canExtend(resource.slot)) throw new Refusal('extension_not_supported');
  if (order.extendSeconds > 0 && !app.slots.backendOf(resource)) throw new Refusal('provider_not_configured');
  const now = app.clock.now();
  const { keep, ended, isNew } = await app.ledger.write(changeKeep, { order, now });
  if (ended) app.events.keepEnded(ended);
  if (isNew && keep.endedAt === null) app.events.keepBegun(keep);
  app.wakeAt(now);
  return { replayed: !isNew };
}

/** Returns whether the clock rules out steps: no new hold may be placed, or no expiry is certain. */
const areStepsBlocked = ({ clock }: KeepApp) => clock.expiryBlocked() || clock.holdsBlocked() !== undefined;

/** Checks every keep that is due. Returns the running checks; none while the clock allows no holds. */
export function checkKeeps(app: KeepApp): Promise<void>[] {
  const due: Promise<void>[] = [];
  if (areStepsBlocked(app)) return due;
  const active = new Set<string>();
  for (let after = ''; ; ) {
    const page = activeKeeps(app.ledger.read, after);
    const now = app.clock.now();
    for (const keep of page) {
      active.add(keep.id);
      if (dueAt(app, keep) <= now) due.push(check(app, keep.id));
    }
    after = page.at(-1)?.resourceId ?? '';
    if (page.length < PAGE_COUNT) break;
  }
  for (const id of app.keeps.readings.keys()) if (!active.has(id)) app.keeps.readings.delete(id);
  return due;
}

/** Returns the Unix seconds at which the next keep is due; infinity while the clock allows no holds. */
export function nextKeep(app: KeepApp): number {
  let next = Number.POSITIVE_INFINITY;
  if (areStepsBlocked(app)) return next;
  for (let after = ''; ; ) {
    const page = activeKeeps(app.ledger.read, after);
    for (const keep of page) next = Math.min(next, dueAt(app, keep));
    after = page.at(-1)?.resourceId ?? '';
    if (page.length < PAGE_COUNT) return next;
  }
}

/** Checks a keep. Only one check of a keep runs at a time; callers share it. */
function check(app: KeepApp, id: string): Promise<void> {
  const running = app.keeps.checks.get(id);
  if (running) return running;
  const mine = checkOnce(app, id).finally(() => app.keeps.checks.delete(id));
  app.keeps.checks.set(id, mine);
  return mine;
}

const leaseOf = (app: KeepApp, keep: Keep) => findResource(app.ledger.read, keep.resourceId) as Resource;

type KeepEnding = { reason: KeepEnd; message: string | null };

/**
 * Returns why a keep is over, by the rows and the time. An extension in doubt at the deadline may have moved it; `lease/step.ts`
 * resolves that.
 */
function endOfKeep(app: KeepApp, keep: Keep, row: Resource): KeepEnding | undefined {
  const { read } = app.ledger;
  const isEnding = row.endedAt !== null || row.endWanted !== null;
  const operation = keep.operationId === null ? undefined : operationOf(read, keep.operationId);
  if (!isEnding && operation && operation.state !== 'settled') return undefined;
  const leaseEnd = endReasonOf(app, row.id);
  if (leaseEnd === 'lease_expired' && keep.waiting !== null)
    return { reason: keep.waiting as KeepEnd, message: messageOf(keep.waiting) };
  if (leaseEnd !== null) return { reason: 'lease_ended', message: `The lease is over (${leaseEnd}).` };
  if (operation?.outcome === 'released')
    return { reason: 'resource_not_active', message: 'The provider did not extend the lease. Nothing was charged.' };
  if (keep.boughtSeconds >= keep.maxSeconds)
    return { reason: 'max_seconds', message: `All of ${keep.maxSeconds} s are bought.` };
  return undefined;
}

const messageOf = (waiting: string) =>
  waiting === 'idle'
    ? 'The machine was not busy when its paid time came to its end.'
    : `No step could be bought before the end of the lease (${waiting}).`;

/** Returns the Unix seconds at which a keep has to be checked; infinity while it waits for something else. */
function dueAt(app: KeepApp, keep: Keep): number {
  const row = leaseOf(app, keep);
  if (endOfKeep(app, keep, row)) return 0;
  // The step is undecided, the machine is not ready or paused, or the lease is only reported on.
  const isIdle = row.readyAt === null || row.quarantinedAt !== null || isPaused(row);
  if (keep.operationId !== null || isIdle) return Number.POSITIVE_INFINITY;
  const { measureAt, decideAt } = momentsOf(keep, row);
  const last = app.keeps.readings.get(keep.id);
  if (!last || last.at < measureAt) return measureAt;
  return Math.max(decideAt, last.at + AGAIN_SECONDS);
}

/** Measures a machine, and buys a step if it is due and the machine is busy; or ends the keep. */
async function checkOnce(app: KeepApp, id: string): Promise<void> {
  const keep = findKeep(app.ledger.read, id) as Keep;
  const row = leaseOf(app, keep);
  const ending = keep.endedAt === null ? endOfKeep(app, keep, row) : undefined;
  if (ending) return end(app, keep, ending);
  if (keep.endedAt !== null || dueAt(app, keep) > app.clock.now()) return;
  const isDue = app.clock.now() >= momentsOf(keep, row).decideAt;
  const isConnected = app.activity.takeActivity(row.id);
  if (isDue && isConnected) return buy(app, keep, row);

  const before = app.keeps.readings.get(id);
  const cpu = await measure(app, keep, row);
  if (app.inFlight.isCutOff() || leaseOf(app, keep).expiresAt !== row.expiresAt) return;
  if (!isDue) return keep.waiting === null ? undefined : wait(app, keep, null); // Another extension has moved the end.
  const isComparable = before !== undefined && before.at >= momentsOf(keep, row).measureAt;
  const share = isComparable && before.cpu && cpu ? cpuShare(before.cpu, cpu) : undefined;
  if (app.activity.takeActivity(row.id) || (share !== undefined && share * 100 >= app.config.keep.cpu_percent))
    return buy(app, keep, row);
  // Without an earlier reading to compare with, nothing is known yet.
  if (isComparable || cpu?.source === 'none') await wait(app, keep, 'idle');
}

/** Reads the machine's processor time and remembers it; undefined when the machine cannot be asked. */
async function measure(app: KeepApp, keep: Keep, row: Resource): Promise<CpuTime | undefined> {
  const backend = app.slots.backendOf(row);
  const cpu = backend && (await readCpuTime(backend, row.ref as string).catch(() => undefined));
  if (app.inFlight.isCutOff()) return cpu;
  app.keeps.readings.set(keep.id, { at: app.clock.now(), cpu });
  if (cpu && cpu.source !== keep.cpuSource)
    await app.ledger.write(noteKeep, { id: keep.id, change: { cpuSource: cpu.source } });
  return cpu;
}

/** Buys one step, or as much of it as the lease, its wallet and the provider allow. */
async function buy(app: KeepApp, keep: Keep, row: Resource): Promise<void> {
  const wallet = findWallet(app.ledger.read, row.walletId) as Wallet;
  const additionalSeconds = Math.min(
    keep.extendSeconds,
    keep.maxSeconds - keep.boughtSeconds,
    row.maxSeconds - row.purchasedSeconds,
    (wallet.expiresAt ?? Number.POSITIVE_INFINITY) - row.expiresAt,
    (row.endsBy ?? Number.POSITIVE_INFINITY) - row.expiresAt,
  );
  if (additionalSeconds <= 0)
    return end(app, keep, {
      reason: 'lease_limit_exceeded',
      message: `The lease cannot last longer: ${row.purchasedSeconds} s are bought, and it ends at ${row.expiresAt}.`,
    });
  // The step's number is the time bought before it, so that a step has the same key whenever it is tried.
  const idempotencyKey = `${keep.id}.${keep.boughtSeconds}`;
  const { walletId, requestId, tags } = keep;
  const order = { walletId, requestId, tags, route: KEEP_ROUTE, idempotencyKey, keepId: keep.id };
  try {
    await extendLease(app, { ...order, fingerprint: fingerprint(idempotencyKey), resource: row, additionalSeconds });
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (app.inFlight.isCutOff() || error.code === 'conflict') return; // It has changed in the meantime, and is checked again.
    const ending = endOfKeep(app, findKeep(app.ledger.read, keep.id) as Keep, leaseOf(app, keep));
    if (ending) return end(app, keep, ending);
    const isInDoubt = openOperations(app.ledger.read, walletId).some((it) => it.resourceId === row.id);
    const mayPass = isInDoubt || (PASSING.includes(error.code) && !isFrozen(app.ledger.read));
    if (mayPass) return wait(app, keep, error.code);
    await end(app, keep, { reason: error.code, message: error.message });
  }
}

/** Notes why the due step is not bought, and schedules the next check soon; null: no step is due. */
async function wait(app: KeepApp, keep: Keep, waiting: string | null): Promise<void> {
  const { cpu } = app.keeps.readings.get(keep.id) ?? {};
  app.keeps.readings.set(keep.id, { at: app.clock.now(), cpu });
  if (findKeep(app.ledger.read, keep.id)?.waiting !== waiting)
    await app.ledger.write(noteKeep, { id: keep.id, change: { waiting } });
}

async function end(app: KeepApp, keep: Keep, { reason, message }: KeepEnding): Promise<void> {
  const ended = await app.ledger.write(endKeep, { id: keep.id, reason, message, now: app.clock.now() });
  app.keeps.readings.delete(keep.id);
  if (ended) app.events.keepEnded(ended);
}
