import { hash } from 'node:crypto';
import { Refusal } from '../../base/refusal.ts';
import { extendLease } from '../../lease/extend.ts';
import { findResource, type Resource } from '../../ledger/resource.ts';
import { findSandbox, LENGTHEN_ROUTE, type Sandbox, type SandboxLease, setSandboxEnd } from '../../ledger/sandbox.ts';
import type { HttpApp } from '../endpoint.ts';

/** The end of a sandbox. Its lease is paid for up to its own end, which may be later. */

type Lengthening = {
  /** Seconds from now. */
  seconds: number;
  requestId: string;
  tags: string | null;
};

/**
 * Buys what a lease lacks up to `end`, Unix seconds, and moves the end of its sandbox with it. Returns whether it lacked something.
 * Throws the refusals of an extension; nothing is charged then.
 */
async function buyUntil(app: HttpApp, id: string, end: number, { requestId, tags }: Lengthening): Promise<boolean> {
  for (;;) {
    const resource = findResource(app.ledger.read, id) as Resource;
    const additionalSeconds = end - resource.expiresAt;
    if (additionalSeconds <= 0) return false;
    try {
      await extendLease(app, {
        walletId: resource.walletId,
        route: LENGTHEN_ROUTE,
        idempotencyKey: requestId,
        isKeyMadeUp: true,
        fingerprint: hash('sha256', requestId, 'buffer'),
        requestId,
        tags,
        resource,
        additionalSeconds,
        isExact: true,
      });
      return true;
    } catch (error) {
      // Another one came first, and has brought the lease nearer to `end`. Nothing is held by then, so the key is free.
      if (!(error instanceof Refusal) || error.code !== 'conflict') throw error;
    }
  }
}

const currentOf = ({ ledger }: HttpApp, id: string): SandboxLease => ({
  sandbox: findSandbox(ledger.read, id) as Sandbox,
  resource: findResource(ledger.read, id) as Resource,
});

/** Sets the end of a sandbox to `seconds` from now. Within what is paid for this costs nothing, beyond it the lease is extended. */
export async function setTimeoutOf(app: HttpApp, id: string, order: Lengthening): Promise<SandboxLease> {
  const endsAt = app.clock.now() + order.seconds;
  if (await buyUntil(app, id, endsAt, order)) return currentOf(app, id);
  const set = await app.ledger.write(setSandboxEnd, { id, endsAt, onlyLater: false, now: app.clock.now() });
  app.wakeAt(endsAt);
  return set;
}

/**
 * Makes sure that a sandbox lives for `seconds` from now, as a client that connects asks for. Where the wallet cannot pay for that,
 * or the lease cannot be extended, it lives as long as it is paid for.
 */
export async function prolong(app: HttpApp, id: string, order: Lengthening): Promise<SandboxLease> {
  const endsAt = app.clock.now() + order.seconds;
  const isPaid = await buyUntil(app, id, endsAt, order).catch((error) => {
    // Money may have been spent where the outcome is not known: the caller gets that error.
    if (!(error instanceof Refusal) || error.code === 'operation_uncertain') throw error;
    return false;
  });
  return isPaid
    ? currentOf(app, id)
    : app.ledger.write(setSandboxEnd, { id, endsAt, onlyLater: true, now: app.clock.now() });
}
