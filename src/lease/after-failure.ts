import { setTimeout as sleep } from 'node:timers/promises';
import type { Backend } from '../compute/backend.ts';
import type { EndReason } from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';
import { advance } from './step.ts';
import { endReasonOf } from './why.ts';

/** When a machine dies, many calls may fail at once: no further check begins within this time of the last one. */
const APART_MILLISECONDS = 2000;
/** Seconds that a caller whose call failed waits for the check. The check continues without it. */
const WAIT_SECONDS = 5;
/** Interval of the checks of a machine that accepts no command, until it is known to have ended. */
const AGAIN_MILLISECONDS = 100;

/**
 * Checks a lease because a call into its machine failed: if the machine is gone, the lease begins to end at once. Returns why the
 * lease has ended, or is being ended; null if no end is known.
 */
export async function checkAfterFailure(app: LeaseApp, id: string): Promise<EndReason | null> {
  if (endReasonOf(app, id) === null) await app.inFlight.waitFor(checkOnce(app, id), WAIT_SECONDS);
  return endReasonOf(app, id);
}

/**
 * Checks a lease because a command in it was killed, as commands are when their machine ends. An engine reports the command first
 * and the machine a moment later, so another command is tried: if it does not run, the lease is checked until its machine is known
 * to have ended; no check begins after 5 s. Returns as `checkAfterFailure` does.
 */
export async function checkAfterKill(
  app: LeaseApp,
  { id, backend, ref }: { id: string; backend: Backend; ref: string },
): Promise<EndReason | null> {
  const giveUpAt = performance.now() + WAIT_SECONDS * 1000;
  const trial = { command: 'true', timeoutSeconds: WAIT_SECONDS, streamBytesMax: 0 };
  if (endReasonOf(app, id) !== null) return endReasonOf(app, id);
  const lives = backend.guest.exec(ref, trial).then(
    ({ exitCode }) => exitCode === 0,
    () => false,
  );
  if (await app.inFlight.waitFor(lives, WAIT_SECONDS)) return null;
  while (endReasonOf(app, id) === null && performance.now() < giveUpAt && !app.inFlight.isCutOff()) {
    await app.inFlight.waitFor(advance(app, id), WAIT_SECONDS);
    if (endReasonOf(app, id) === null) await sleep(AGAIN_MILLISECONDS);
  }
  return endReasonOf(app, id);
}

function checkOnce(app: LeaseApp, id: string): Promise<unknown> {
  const begun = app.leaseChecks.get(id);
  if (begun) return begun;
  const check = advance(app, id);
  app.leaseChecks.set(id, check);
  setTimeout(() => app.leaseChecks.delete(id), APART_MILLISECONDS).unref();
  return check;
}
