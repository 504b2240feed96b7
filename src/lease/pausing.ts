import { Refusal } from '../base/refusal.ts';
import type { Extended, Machine, Pausing } from '../compute/backend.ts';
import { PAUSE_STEPS } from '../db/enums.ts';
import type { Resource, ResourceChange } from '../ledger/resource.ts';
import { findWallet, type Wallet } from '../ledger/wallet.ts';
import type { LeaseApp } from './create.ts';

/**
 * The pause of a lease and its machine (docs/decisions/0082). The row names the wanted state before the engine is asked; afterwards
 * the machine's deadline tells how far that came.
 *
 * - `pausing`: no paid time passes once all has stopped, unless the machine turns out to run on: then the lease ends when it would
 *   have ended.
 * - `paused`: the machine has the deadline `expiresAt`, that of its wallet, and the lease has `secondsLeft`. Where the wallet is prolonged,
 *   the machine's deadline moves before the row does.
 * - `resuming`, since `pausedAt`: as `paused`, until the machine has an earlier deadline: from then on that is the end of the lease.
 *
 * Both follow a wallet in a write of their own, so that the next move of the deadline is told from the one before.
 */

/** The longest pause of a lease whose wallet never expires. */
const PAUSE_SECONDS_MAX = 30 * 24 * 3600;

/** Returns when a pause that begins now ends, Unix seconds: with its wallet, and not after its provider's own end. */
export const endOfPause = ({ endsBy }: Resource, { expiresAt }: Wallet, now: number): number =>
  Math.min(expiresAt ?? now + PAUSE_SECONDS_MAX, endsBy ?? Number.POSITIVE_INFINITY);

/** Returns when the pause of a lease ends as its wallet is now, Unix seconds: its row and its machine may have to follow. */
function pauseEndNow(row: Resource, wallet: Wallet, now: number): number {
  const end = endOfPause(row, wallet, now);
  // The pause of a wallet that never expires is as long as it was when it began.
  return wallet.expiresAt === null ? Math.min(end, row.expiresAt) : end;
}

/**
 * Returns whether the time of a lease is over, by its row; ignores doubts about the clock. A pause whose wallet was prolonged is
 * not over while its machine has yet to follow, except in quarantine, where that is never asked to.
 */
export function isTimeOver(row: Resource, wallet: Wallet, now: number): boolean {
  if (row.readyAt === null || now < row.expiresAt) return false;
  return !isPaused(row) || row.quarantinedAt !== null || now >= pauseEndNow(row, wallet, now);
}

/** Returns whether a lease is paused, or on the way there or back: its machine is not to be entered. */
export const isPaused = ({ status }: Pick<Resource, 'status'>): boolean =>
  status === 'paused' || PAUSE_STEPS.some((it) => it === status);

/** Returns the status of a lease as the API shows it. */
export const shownStatus = ({ status }: Pick<Resource, 'status'>) =>
  status === 'pausing' || status === 'resuming' ? 'paused' : status;

/** Returns the message for a lease that does not run; for a paused one with the way to resume it. */
export const notRunning = (it: Pick<Resource, 'id' | 'status'>): string =>
  isPaused(it)
    ? `The resource is paused. Resume it first: POST /v1/compute/resume {"id": "${it.id}"}.`
    : `The resource is ${it.status}.`;

/** Returns when a lease ends, Unix seconds: while it is not known to be paused, when it ends if it is not. */
export const endOf = (row: Resource): number =>
  row.status === 'pausing' || row.status === 'resuming' ? resumedUntil(row, row.pausedAt as number) : row.expiresAt;

/**
 * Returns the pause of a lease's backend. Throws `invalid_request` where its machine cannot be paused, and
 * `provider_not_configured`.
 */
export function pausingOf(app: LeaseApp, row: Resource): Pausing {
  const backend = app.slots.backendOf(row);
  if (!backend) throw new Refusal('provider_not_configured');
  const { pause = 'its engine cannot pause' } = backend.guest;
  if (typeof pause === 'string')
    throw new Refusal('invalid_request', `This resource cannot be paused: ${pause}. Stop it, or let it run.`);
  return pause;
}

/** Asks the engine. What it throws has an unknown outcome. */
export const attempt = (call: () => Promise<Extended>): Promise<Extended> =>
  call().catch((error: Error) => ({ kind: 'unknown', reason: error.message }));

/** The row of a lease that is paused. */
export const PAUSED = { status: 'paused', attempts: 0, lastError: null } satisfies ResourceChange;
/** Returns the row of a lease that runs again, until `expiresAt`. */
export const running = (expiresAt: number) =>
  ({
    ...{ status: 'running', expiresAt, pausedAt: null, secondsLeft: null },
    ...{ attempts: 0, lastError: null },
  }) satisfies ResourceChange;

/**
 * Finishes what a dead process, or a call of unknown outcome, left of a pause or a resumption, by the machine's deadline. Returns
 * the row's change, after which it may still be `resuming` or have to follow its wallet; undefined where nothing is to be finished.
 * Throws when the engine cannot be asked.
 */
export async function finishPause(app: LeaseApp, row: Resource, machine: Machine): Promise<ResourceChange | undefined> {
  if (row.status !== 'pausing' && row.status !== 'resuming') return undefined;
  const { deadline } = machine;
  if (deadline === undefined) throw new Error('the deadline of its machine cannot be read');
  const pausing = pausingOf(app, row);
  if (row.status === 'pausing' && deadline === row.expiresAt) {
    await pausing.complete(machine.ref);
    return PAUSED;
  }
  const wasResumed = row.status === 'resuming' && deadline < row.expiresAt;
  const followed = wasResumed ? undefined : await followWallet(app, row);
  if (followed) return followed;
  const until = row.status === 'pausing' ? endOf(row) : Math.min(deadline, resumedUntil(row, app.clock.now()));
  const ended = await attempt(() => pausing.end(machine.ref, until));
  if (ended.kind !== 'done') throw new Error(`its machine does not resume: ${ended.reason}`);
  return running(until);
}

/**
 * Has a paused lease end when its wallet, prolonged or brought back with the clock, ends now. Moves the machine's deadline and
 * returns the change of the row; undefined where they agree, and in quarantine. Throws when the machine refuses it, and
 * `provider_not_configured`.
 */
export async function followWallet(app: LeaseApp, row: Resource): Promise<ResourceChange | undefined> {
  if (row.status === 'pausing' || row.quarantinedAt !== null || app.clock.expiryBlocked()) return undefined;
  const wallet = findWallet(app.ledger.read, row.walletId) as Wallet;
  const expiresAt = pauseEndNow(row, wallet, app.clock.now());
  if (expiresAt === row.expiresAt) return undefined;
  const backend = app.slots.backendOf(row);
  if (!backend) throw new Refusal('provider_not_configured');
  const moved = await attempt(() => backend.extend(row.ref as string, expiresAt));
  if (moved.kind !== 'done') throw new Error(`the deadline of its pause does not move: ${moved.reason}`);
  return { expiresAt };
}

/**
 * Returns when a lease that is resumed now ends: after what it has left, and a second before it would have ended paused, so that the
 * deadline of its machine shows that it was resumed.
 */
export const resumedUntil = (
  { expiresAt, secondsLeft }: Pick<Resource, 'expiresAt' | 'secondsLeft'>,
  now: number,
): number => Math.min(expiresAt - 1, now + (secondsLeft as number));
