import { Refusal } from '../base/refusal.ts';
import type { Backend } from '../compute/backend.ts';
import { canExtend, leasePriceSnapshot, priceOfSeconds } from '../compute/slots.ts';
import type { Reader } from '../db/handle.ts';
import { beginStep, refuseStep } from '../ledger/keep.ts';
import { findOperation, type Operation, openOperations } from '../ledger/operation.ts';
import { findResource, type Resource, updateIfLive } from '../ledger/resource.ts';
import { hasSandboxEnded } from '../ledger/sandbox.ts';
import type { Wallet } from '../ledger/wallet.ts';
import { type Answered, type PaidQuote, type PaidRequest, spend, uncertain } from '../spend/spend.ts';
import { definePaidWrites } from '../spend/writes.ts';
import type { LeaseApp } from './create.ts';
import { recentEngineOf, refusedBy } from './engine.ts';
import { applyExtension, type ExtensionResult, extensionOutcome, judgeExtension } from './extension.ts';
import { isPaused, notRunning } from './pausing.ts';
import { REPORT_ONLY } from './report-only.ts';
import { advance } from './step.ts';

type ExtendRequest = Omit<PaidRequest, 'kind'> & {
  resource: Resource;
  additionalSeconds: number;
  /** The keep that this extension is a step of. */
  keepId?: string;
  /** The seconds were computed from the end that `resource` has: refuses with `conflict` once the lease has another. */
  isExact?: boolean;
};

/** An extension, as its writes know it. */
type ExtensionTerms = {
  resourceId: string;
  /** The end of the lease when the extension was quoted, in Unix seconds; the new end is computed from it. */
  quotedExpiresAt: number;
  additionalSeconds: number;
  keepId: string | undefined;
};

const extendWrites = definePaidWrites<ExtensionTerms>('compute_extend', {
  limits: limitExtension,
  insertRows(tx, operation, { keepId }) {
    if (keepId !== undefined) beginStep(tx, keepId, operation.id);
  },
  judge: judgeExtension,
  settleRows(tx, operation, outcome, now) {
    if (outcome.kind === 'done') applyExtension(tx, operation);
    // The machine's deadline resolves it.
    if (outcome.kind === 'unknown') updateIfLive(tx, operation.resourceId as string, { dueAt: now });
  },
});

/** Suggested wait after an uncertain extension: the next few queries of the backend resolve it. */
const RETRY_SECONDS = 10;

/**
 * Prepays more seconds on a running lease, as an operation of its own. Records the absolute new deadline, so that an uncertain
 * extension is resolved by the backend's deadline. Holds the lease's lock from hold to settlement, so that each extension starts
 * where the one before it ended. Throws `extension_not_supported`, `provider_not_configured`, `resource_not_active`,
 * `lease_limit_exceeded`, `read_only`, `operation_uncertain`, and PAID_REFUSALS. A step of a keep also throws `conflict` when the
 * keep or the lease has changed, and an exact one when the lease has.
 */
export function extendLease(
  app: LeaseApp,
  { resource, additionalSeconds, keepId, isExact = keepId !== undefined, ...request }: ExtendRequest,
): Promise<Answered<Resource>> {
  const { id } = resource;
  const current = () => findResource(app.ledger.read, id) as Resource;
  return spend<Resource, ExtensionTerms>(
    app,
    { ...request, kind: 'compute_extend' },
    {
      writes: extendWrites,
      schedule: async (run) => {
        if (!canExtend(resource.slot)) throw new Refusal('extension_not_supported'); // Known without the lock.
        return app.leaseMutex(id, async () => {
          if (app.inFlight.isCutOff()) throw uncertain(); // The caller has its answer already; nothing was started.
          return run();
        });
      },
      quote() {
        const row = current();
        // The step was decided for the end that the lease had then. Another extension has moved it, so no step is needed yet.
        if (isExact && row.expiresAt !== resource.expiresAt) throw new Refusal('conflict');
        return quoteExtension(app, row, additionalSeconds, keepId);
      },
      refuse: (_, outcome) => (outcome.kind === 'unknown' ? uncertain() : notExtended()),
      async replay(operation) {
        if (operation.state === 'settled') return current();
        await app.inFlight.waitFor(advance(app, id), app.answerSeconds);
        const decided = findOperation(app.ledger.read, operation.id) as Operation;
        if (decided.state !== 'settled') throw uncertain();
        if (decided.outcome === 'released') throw notExtended();
        return current();
      },
    },
  );
}

function quoteExtension(
  app: LeaseApp,
  resource: Resource,
  additionalSeconds: number,
  keepId: string | undefined,
): PaidQuote<Resource, ExtensionTerms> {
  const backend = app.slots.backendOf(resource);
  if (!backend) throw new Refusal('provider_not_configured');
  const current = () => findResource(app.ledger.read, resource.id) as Resource;
  return {
    order: {
      hold: priceOfSeconds(resource.priceHourly, additionalSeconds),
      price: leasePriceSnapshot(resource.priceHourly, additionalSeconds),
      subject: resource.slot,
      resourceId: resource.id,
      targetAt: resource.expiresAt + additionalSeconds,
    },
    async call(operation) {
      const result = await ask(backend, current(), operation.targetAt as number, app.clock.now());
      return { outcome: extensionOutcome(operation, result), answer: current };
    },
    terms: { resourceId: resource.id, quotedExpiresAt: resource.expiresAt, additionalSeconds, keepId },
  };
}

/** Throws a refusal when the lease, its wallet or its provider does not allow the extension. */
function limitExtension(
  read: Reader,
  wallet: Wallet,
  _: unknown,
  { resourceId, quotedExpiresAt, additionalSeconds, keepId }: ExtensionTerms,
  now: number,
): void {
  const row = findResource(read, resourceId) as Resource;
  if (keepId !== undefined) refuseStep(read, keepId, additionalSeconds);
  if (isPaused(row)) throw new Refusal('resource_not_active', notRunning(row));
  if (row.readyAt === null || row.endedAt !== null || row.endWanted !== null || row.expiresAt <= now)
    throw new Refusal('resource_not_active', `The resource is ${row.status}; only a running lease can be extended.`);
  if (hasSandboxEnded(read, row, now)) throw new Refusal('resource_not_active', 'The sandbox is over.');
  if (row.quarantinedAt !== null)
    throw new Refusal('read_only', `This lease cannot be extended at the moment: ${REPORT_ONLY}.`, {
      retryAfterSeconds: 60,
    });
  const isInDoubt = openOperations(read, wallet.id).some(
    ({ kind, resourceId }) => kind === 'compute_extend' && resourceId === row.id,
  );
  if (isInDoubt)
    throw new Refusal(
      'operation_uncertain',
      'An earlier extension of this lease is not resolved yet, so its end is not known. Nothing was held for this one: retry it.',
      { retryAfterSeconds: RETRY_SECONDS },
    );
  if (row.expiresAt !== quotedExpiresAt)
    throw new Refusal('resource_not_active', 'Another extension has just moved the deadline. Retry.');
  const end = row.expiresAt + additionalSeconds;
  const limit = (message: string) => new Refusal('lease_limit_exceeded', message);
  if (wallet.expiresAt !== null && end > wallet.expiresAt)
    throw limit(`The lease would end at ${end}, and the wallet expires at ${wallet.expiresAt}.`);
  if (row.endsBy !== null && end > row.endsBy)
    throw limit(`The lease would end at ${end}, and the provider ends this offer at ${row.endsBy}.`);
  if (row.purchasedSeconds + additionalSeconds > row.maxSeconds)
    throw limit(`A lease lasts at most ${row.maxSeconds} s in all; ${row.purchasedSeconds} are bought.`);
}

/** The backend's message is in the log and on the operation only: it may name sockets and addresses. */
const notExtended = () =>
  new Refusal('resource_not_active', 'The lease has ended, or its provider did not extend it. Nothing was charged.');

/** Asks the backend to extend. A lease that has ended since the hold, or whose time has run out, is refused instead. */
async function ask(backend: Backend, resource: Resource, targetAt: number, now: number): Promise<ExtensionResult> {
  const { ref, endedAt, endWanted, expiresAt, engine } = resource;
  if (ref === null || endedAt !== null || endWanted !== null || expiresAt <= now)
    return { kind: 'refused', reason: 'The lease has ended.' };
  const before = engine === null ? undefined : recentEngineOf(backend, now).catch(() => undefined);
  try {
    const extended = await backend.extend(ref, targetAt);
    if (extended.kind !== 'refused' || engine === null || (await before) !== engine) return extended;
    return await refusedBy(backend, engine, extended);
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}
