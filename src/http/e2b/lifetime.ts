import { hash } from 'node:crypto';
import { Refusal } from '../../base/refusal.ts';
import { extendLease } from '../../lease/extend.ts';
import { findResource, type Resource } from '../../ledger/resource.ts';
import { type SandboxLease, setSandboxEnd } from '../../ledger/sandbox.ts';
import type { HttpApp } from '../endpoint.ts';

/** The end of a sandbox. Its lease is paid for up to its own end, which may be later. */

/** The route of the operations that lengthen sandboxes. */
export const LENGTHEN_ROUTE = 'e2b/timeout';
/** How often an extension is computed anew because another one came first. */
const TRY_COUNT_MAX = 5;

export type Lengthening = {
  /** Seconds from now. */
  seconds: number;
  requestId: string;
  tags: string | null;
};

/**
 * Buys what a lease lacks up to `end`, Unix seconds. Returns whether it lacked something. Throws the refusals of an extension;
 * nothing is charged then.
 */
async function buyUntil(app: HttpApp, id: string, end: number, { requestId, tags }: Lengthening): Promise<boolean> {
  for (let count = 0; ; count++) {
    const resource = findResource(app.ledger.read, id) as Resource;
    const additionalSeconds = end - resource.expiresAt;
    if (additionalSeconds <= 0) return false;
    const key = `${requestId}-${count}`;
    try {
      await extendLease(app, {
        walletId: resource.walletId,
        route: LENGTHEN_ROUTE,
        idempotencyKey: key,
        isKeyMadeUp: true,
        fingerprint: hash('sha256', key, 'buffer'),
        requestId,
        tags,
        resource,
        additionalSeconds,
        isExact: true,
      });
      return true;
    } catch (error) {
      const isMoved = error instanceof Refusal && error.code === 'conflict';
      if (!isMoved || count >= TRY_COUNT_MAX) throw error;
    }
  }
}

type End = { id: string; endsAt: number; onlyLater: boolean; now: number };
/** Writes the end of a sandbox. Where its time was paid for by then, a failure leaves it uncertain what the caller has. */
function writeEnd(app: HttpApp, end: End, isPaid: boolean): Promise<SandboxLease> {
  return app.ledger.write(setSandboxEnd, end).catch((cause) => {
    if (!isPaid) throw cause;
    throw new Refusal('operation_uncertain', 'The time was paid for, and the end of the sandbox was not set. Retry.', {
      cause,
    });
  });
}

/** Sets the end of a sandbox to `seconds` from now. Within what is paid for this costs nothing, beyond it the lease is extended. */
export async function setTimeoutOf(app: HttpApp, id: string, order: Lengthening): Promise<SandboxLease> {
  const now = app.clock.now();
  const endsAt = now + order.seconds;
  const isPaid = await buyUntil(app, id, endsAt, order);
  const set = await writeEnd(app, { id, endsAt, onlyLater: false, now }, isPaid);
  app.wakeAt(endsAt);
  return set;
}

/**
 * Makes sure that a sandbox lives for `seconds` from now, as a client that connects asks for. Where the wallet cannot pay for that,
 * or the lease cannot be extended, it lives as long as it is paid for.
 */
export async function prolong(app: HttpApp, id: string, order: Lengthening): Promise<SandboxLease> {
  const now = app.clock.now();
  const endsAt = now + order.seconds;
  const isPaid = await buyUntil(app, id, endsAt, order).catch((error) => {
    // Money may have been spent where the outcome is not known: its caller has to hear of that.
    if (!(error instanceof Refusal) || error.code === 'operation_uncertain') throw error;
    return false;
  });
  return writeEnd(app, { id, endsAt, onlyLater: true, now }, isPaid);
}
