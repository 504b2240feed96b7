import type { Backend } from '../compute/backend.ts';
import { findResource, type Resource, updateResource } from '../compute/resources.ts';
import { canExtend, leasePriceSnapshot, priceOfSeconds } from '../compute/slots.ts';
import type { Tx } from '../db/handle.ts';
import { findOperation, type Operation, openOperations } from '../ledger/operation.ts';
import type { Wallet } from '../ledger/wallet.ts';
import { Refusal } from '../refusal.ts';
import { REPORT_ONLY } from './caution.ts';
import { type ExtensionResult, settleExtension } from './extension.ts';
import type { LeaseApp } from './lease.ts';
import { step } from './lease-steps.ts';
import { type Answered, type PaidRequest, type Quote, spend, uncertain, writeOutcome } from './road.ts';
import type { GiveUp } from './running.ts';

export type ExtendRequest = Omit<PaidRequest, 'kind'> & { resource: Resource; additionalSeconds: number };

/** An extension that is in doubt is decided by the next look at the backend, or by a few. */
const RETRY_SECONDS = 10;

/**
 * Prepays more seconds on a running lease, as an operation of its own. The absolute new deadline is fixed on it, so that
 * an extension in doubt is decided by reading the backend's deadline. Hold, call and settlement have one turn among all
 * that is done with the lease: each extension starts from where the one before it ended.
 */
export function extendLease(
  app: LeaseApp,
  { resource, additionalSeconds, ...request }: ExtendRequest,
): Promise<Answered<Resource>> {
  const { id } = resource;
  const current = () => findResource(app.ledger.read, id) as Resource;
  return spend<Backend, Resource>(
    app,
    { ...request, kind: 'compute_extend' },
    {
      inTurn: async (walk) => {
        if (!canExtend(resource.slot)) throw new Refusal('extension_not_supported'); // No turn is needed to say so.
        return app.serially(id, async () => {
          if (app.running.isCutOff()) throw uncertain(); // Whoever asked has heard so; nothing was begun.
          return walk();
        });
      },
      quote: () => quoteExtension(app, current(), additionalSeconds),
      finish: (operation, { detail: backend }, giveUp) => finishExtension(app, operation, backend, current(), giveUp),
      async replay(operation) {
        if (operation.state === 'settled') return current();
        await app.running.waitFor(step(app, id), app.answerSeconds);
        const decided = findOperation(app.ledger.read, operation.id) as Operation;
        if (decided.state !== 'settled') throw uncertain();
        if (decided.outcome === 'released') throw notExtended();
        return current();
      },
    },
  );
}

function quoteExtension(app: LeaseApp, resource: Resource, additionalSeconds: number): Quote<Backend> {
  const backend = app.slots.backendOf(resource);
  if (!backend) throw new Refusal('provider_not_configured');
  return {
    hold: priceOfSeconds(resource.priceHourly, additionalSeconds),
    price: leasePriceSnapshot(resource.priceHourly, additionalSeconds),
    subject: resource.slot,
    resourceId: resource.id,
    targetAt: resource.expiresAt + additionalSeconds,
    detail: backend,
    limits: (tx, wallet) => {
      app.limits.released.check(wallet.id);
      limitExtension(tx, wallet, resource, additionalSeconds, app.clock.now());
    },
  };
}

/** Refuses what the lease, its wallet or its provider does not allow. `quoted` is the row that the price and the end are of. */
function limitExtension(tx: Tx, wallet: Wallet, quoted: Resource, additionalSeconds: number, now: number): void {
  const row = findResource(tx, quoted.id) as Resource;
  if (row.readyAt === null || row.endedAt !== null || row.endWanted !== null || row.expiresAt <= now)
    throw new Refusal('resource_not_active', `The resource is ${row.status}; only a running lease can be extended.`);
  if (row.questionedAt !== null)
    throw new Refusal('read_only', `This lease cannot be extended at the moment: ${REPORT_ONLY}.`, {
      retryAfterSeconds: 60,
    });
  const isInDoubt = openOperations(tx, wallet.id).some(
    ({ kind, resourceId }) => kind === 'compute_extend' && resourceId === row.id,
  );
  if (isInDoubt)
    throw new Refusal(
      'operation_uncertain',
      'An earlier extension of this lease is not decided yet, so its end is not known. Nothing was held for this one: retry it.',
      { retryAfterSeconds: RETRY_SECONDS },
    );
  if (row.expiresAt !== quoted.expiresAt)
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

async function finishExtension(
  app: LeaseApp,
  operation: Operation,
  backend: Backend,
  resource: Resource,
  giveUp: GiveUp,
): Promise<Resource> {
  const result = await ask(backend, resource, operation.targetAt as number, app.clock.now());
  const outcome = await settleExtension(app, operation, result, (change) => writeOutcome(app, change, giveUp));
  if (outcome.kind === 'refused') {
    app.limits.released.count(operation.walletId);
    throw notExtended();
  }
  if (outcome.kind === 'unknown') {
    const now = app.clock.now();
    await writeOutcome(app, (tx) => updateResource(tx, resource.id, { dueAt: now }), giveUp);
    app.wakeAt(now);
    throw uncertain();
  }
  return findResource(app.ledger.read, resource.id) as Resource;
}

/** What the backend said is in the log and on the operation: it may name sockets and addresses. */
const notExtended = () =>
  new Refusal('resource_not_active', 'The lease has ended, or its provider did not extend it. Nothing was charged.');

/** A lease that has ended since its hold, or whose time has run out, is not extended any more. */
async function ask(backend: Backend, resource: Resource, targetAt: number, now: number): Promise<ExtensionResult> {
  const { ref, endedAt, endWanted, expiresAt } = resource;
  if (ref === null || endedAt !== null || endWanted !== null || expiresAt <= now)
    return { kind: 'refused', reason: 'The lease has ended.' };
  try {
    return await backend.extend(ref, targetAt);
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}
