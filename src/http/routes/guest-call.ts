import { Refusal } from '../../base/refusal.ts';
import type { Backend, OutputBudget } from '../../compute/backend.ts';
import { codeOfSignal } from '../../compute/machine/shell.ts';
import { checkAfterFailure, checkAfterKill } from '../../lease/after-failure.ts';
import { isPaused, notRunning } from '../../lease/pausing.ts';
import { findResource, type Resource } from '../../ledger/resource.ts';
import { inTime } from '../../net/deadline.ts';
import type { HttpApp } from '../endpoint.ts';
import type { Allowance } from '../memory-quota.ts';
import { ACTIVE_REFUSALS, leaseEnded } from './compute.ts';

/** Calls from the API into a machine: with limits of time, number and memory, and a check of the lease after a failure. */

/**
 * Seconds beyond its time limit for which the API still waits for a command. The machine's own guard ends it at the limit,
 * but a tenant may have stopped that guard.
 */
const GRACE_SECONDS = 15;
/** The exit codes of a process that ends with its machine or with its lease. */
const KILLED = new Set(['KILL', 'TERM', 'HUP'].map(codeOfSignal));

/** The refusals of calls into a machine. */
export const GUEST_REFUSALS = [...ACTIVE_REFUSALS, 'provider_unavailable', 'operation_uncertain'] as const;

/** The bytes that each byte of output takes in the response: JSON may escape it, and invalid UTF-8 becomes U+FFFD. */
const ANSWER_BYTES = Uint8Array.from({ length: 256 }, (_, byte) =>
  byte < 0x80 ? JSON.stringify(String.fromCharCode(byte)).length - 2 : 3,
);

/**
 * Counts the output of a command in `share`, by its size in the response, until `letGo` is called: when the command has
 * ended or its client has disconnected.
 */
export function countOutput(share: Allowance): { budget: OutputBudget; letGo(): void } {
  const unwanted = new AbortController();
  return {
    budget: {
      take: (piece) =>
        !unwanted.signal.aborted && share.tryTake(piece.reduce((sum, byte) => sum + (ANSWER_BYTES[byte] as number), 0)),
      unwanted: unwanted.signal,
    },
    letGo() {
      unwanted.abort();
      share.close();
    },
  };
}

/** Calls a backend. Any error but a Refusal becomes `provider_unavailable`. */
async function reach<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (cause) {
    if (cause instanceof Refusal) throw cause;
    throw new Refusal(
      'provider_unavailable',
      'The provider of this resource cannot be reached, or was lost on the way: what was asked may have been done all the same.',
      { retryAfterSeconds: 5, cause },
    );
  }
}

/**
 * Returns the refusal to answer after a call into a machine failed. If the machine turns out to be gone, the lease ends and
 * the refusal is `resource_not_active`: a retry is pointless.
 */
export async function explainFailure(app: HttpApp, id: string, error: unknown): Promise<unknown> {
  if (!(error instanceof Refusal) || !MAY_BE_GONE.has(error.code)) return error;
  const reason = await checkAfterFailure(app, id);
  if (reason !== null) return leaseEnded(reason, error.cause);
  const row = findResource(app.ledger.read, id) as Resource;
  return isPaused(row) ? new Refusal('resource_not_active', notRunning(row), { cause: error.cause }) : error;
}
const MAY_BE_GONE = new Set(['provider_unavailable', 'resource_not_active']);

/**
 * Like `reach`, for calls that change a machine: limits the time to `seconds` and a grace period, and tracks the call: a stopping
 * server waits for it or answers `operation_uncertain`. Until the backend has finished, it counts towards the concurrency limits.
 * Throws `rate_limited` at those.
 */
export function callGuest<T>(app: HttpApp, resource: Resource, seconds: number, call: () => Promise<T>): Promise<T> {
  async function counted(): Promise<T> {
    const leave = app.concurrency.enter(resource.id, resource.walletId);
    const ended = app.activity.begin(resource.id);
    return call().finally(() => {
      leave();
      ended();
    });
  }
  const cutShort = () =>
    new Refusal('operation_uncertain', 'The server is stopping: the outcome inside the resource is unknown.', {
      retryAfterSeconds: 5,
    });
  const milliseconds = (seconds + GRACE_SECONDS) * 1000;
  return app.inFlight.track(() => reach(() => inTime(counted(), milliseconds, 'The resource')), cutShort);
}

/** Returns whether the end of its lease, or of its machine, ended a command that was killed. */
export async function wasCutShort(
  app: HttpApp,
  lease: { id: string; backend: Backend; ref: string },
  { exitCode, timedOut }: { exitCode: number; timedOut: boolean },
): Promise<boolean> {
  return KILLED.has(exitCode) && !timedOut && (await checkAfterKill(app, lease)) !== null;
}
