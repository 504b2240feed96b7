import { findOperationByKey, operationOf } from '../../ledger/operation.ts';
import { findSandbox, SANDBOX_ROUTE, type SandboxLease, undeliveredSandboxes } from '../../ledger/sandbox.ts';
import type { HttpApp } from '../endpoint.ts';

/** A create without a key of its caller. */
type CreateAttempt = { walletId: string; fingerprint: Buffer; key: string; waiting: number; running: number };

/**
 * The creates without an Idempotency-Key, which E2B's SDKs never send. A create whose client left before its answer is taken over
 * by the next identical one; identical creates whose clients wait, or were answered, are separate.
 */
export type Attempts = {
  /** Returns the key of this create: that of an abandoned one, or `fresh`. Call `leave` and `end` once each. */
  begin(
    walletId: string,
    fingerprint: Buffer,
    fresh: string,
  ): {
    key: string;
    /** True if it takes over an abandoned create. */
    isTakenOver: boolean;
    /** Notes that its client has gone or has its answer. */
    leave(): void;
    /** The create is over. */
    end(): void;
  };
};

/** Creates the register of running creates. Abandoned ones that are over are found in the books. */
export function createAttempts({ ledger, clock }: Pick<HttpApp, 'ledger' | 'clock'>): Attempts {
  const attempts = new Set<CreateAttempt>();

  const keyOf = ({ resource }: SandboxLease) => operationOf(ledger.read, resource.operationId).idempotencyKey;
  /** Returns whether a client has the sandbox of an attempt, though it may not be over. */
  function isDelivered({ walletId, key }: CreateAttempt): boolean {
    const resourceId = findOperationByKey(ledger.read, walletId, SANDBOX_ROUTE, key)?.resourceId;
    return resourceId != null && findSandbox(ledger.read, resourceId)?.deliveredAt != null;
  }
  function abandoned(walletId: string, fingerprint: Buffer): CreateAttempt | undefined {
    const same = [...attempts].filter((it) => it.walletId === walletId && it.fingerprint.equals(fingerprint));
    const running = same.find((it) => it.waiting === 0 && !isDelivered(it));
    if (running) return running;
    const taken = new Set(same.map((it) => it.key));
    const key = undeliveredSandboxes(ledger.read, walletId, fingerprint, clock.now())
      .map(keyOf)
      .find((it) => !taken.has(it));
    return key === undefined ? undefined : { walletId, fingerprint, key, waiting: 0, running: 0 };
  }

  return {
    begin(walletId, fingerprint, fresh) {
      const earlier = abandoned(walletId, fingerprint);
      const attempt = earlier ?? { walletId, fingerprint, key: fresh, waiting: 0, running: 0 };
      attempts.add(attempt);
      attempt.waiting += 1;
      attempt.running += 1;
      const forgetEnded = () => {
        if (attempt.waiting + attempt.running === 0) attempts.delete(attempt);
      };
      return {
        key: attempt.key,
        isTakenOver: earlier !== undefined,
        leave() {
          attempt.waiting -= 1;
          forgetEnded();
        },
        end() {
          attempt.running -= 1;
          forgetEnded();
        },
      };
    },
  };
}
