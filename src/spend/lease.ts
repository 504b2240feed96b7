import assert from 'node:assert/strict';
import type { Backend, Quote as BackendQuote, Created, Slot, Spec } from '../compute/backend.ts';
import { tagOf } from '../compute/backend.ts';
import {
  findResource,
  insertResource,
  type Resource,
  resourceOfOperation,
  updateResource,
} from '../compute/resources.ts';
import { type ConfiguredSlot, canExtend, leasePriceSnapshot, priceOfSeconds, type Slots } from '../compute/slots.ts';
import { newId } from '../id.ts';
import { findOperation, type Operation, type Outcome, settle } from '../ledger/operation.ts';
import { Nanos, ZERO } from '../money.ts';
import { Refusal } from '../refusal.ts';
import { conclude, settleExtension, stepLease } from './lease-steps.ts';
import { type Answered, type PaidRequest, type Quote, type RoadApp, spend, uncertain, writeOutcome } from './road.ts';
import type { GiveUp } from './running.ts';
import type { Serially } from './serially.ts';

export type LeaseApp = RoadApp & { slots: Slots; serially: Serially; installationId: string };

/** `create` answers within this, ready or not (design 2.18). */
const ANSWER_MILLISECONDS = 30_000;
const POLL_MILLISECONDS = 250;

export type CreateRequest = Omit<PaidRequest, 'kind'> & { slot: Slot; spec: Spec };
type Detail = { configured: ConfiguredSlot; quote: BackendQuote };

/**
 * Prepays a lease: hold the whole price with the resource's row, ask the backend, capture when the machine is ready.
 * Answers the resource: `running` if it is ready within 30 s, else `provisioning`, and the reaper goes on.
 */
export function createLease(app: LeaseApp, { slot, spec, ...request }: CreateRequest): Promise<Answered<Resource>> {
  return spend<Detail, Resource>(
    app,
    { ...request, kind: 'compute_create' },
    {
      quote: () => quoteLease(app, slot, spec),
      intend: (tx, operation, { detail: { configured, quote } }) => {
        const now = operation.createdAt;
        insertResource(tx, {
          id: operation.resourceId as string,
          walletId: operation.walletId,
          operationId: operation.id,
          slot,
          backend: configured.backend.name,
          tag: tagOf(app.installationId, operation.resourceId as string),
          ref: null,
          spec: JSON.stringify(quote.spec),
          status: 'provisioning',
          priceHourly: Nanos(quote.priceHourly),
          charged: ZERO,
          purchasedSeconds: quote.spec.max_seconds,
          maxSeconds: quote.maxSeconds,
          endsBy: quote.endsBy ?? null,
          createdAt: now,
          readyBy: now + configured.provisionSeconds,
          expiresAt: now + configured.provisionSeconds + quote.spec.max_seconds,
          dueAt: now + configured.provisionSeconds,
          attempts: 0,
          absentCount: 0,
        });
      },
      finish: (operation, { detail }, giveUp) => startLease(app, operation, detail, giveUp),
      replay: (operation) => replayCreate(app, operation),
    },
  );
}

async function quoteLease(app: LeaseApp, slot: Slot, spec: Spec): Promise<Quote<Detail>> {
  const configured = app.slots.find(slot);
  const quote = await configured.backend.quote(spec).catch((cause: unknown) => {
    if (cause instanceof Refusal) throw cause;
    throw new Refusal('provider_unavailable', 'The provider cannot be asked for a price. Nothing was charged.', {
      retryAfterSeconds: 5,
      cause,
    });
  });
  const seconds = spec.max_seconds;
  if (seconds > quote.maxSeconds)
    throw new Refusal(
      'lease_limit_exceeded',
      `max_seconds is ${seconds}; this offer allows at most ${quote.maxSeconds}.`,
    );
  return {
    hold: priceOfSeconds(quote.priceHourly, seconds),
    price: leasePriceSnapshot(quote.priceHourly, seconds),
    subject: slot,
    resourceId: newId('res'),
    detail: { configured, quote },
    limits: (_, wallet) => {
      // The lease is sold from when it is ready, so the time it may take until then has to fit too.
      const end = app.clock.now() + configured.provisionSeconds + seconds;
      if (wallet.expiresAt !== null && end > wallet.expiresAt)
        throw new Refusal(
          'lease_limit_exceeded',
          `The lease could last until ${end}, and the wallet expires at ${wallet.expiresAt}. Ask for fewer seconds.`,
        );
      if (quote.endsBy !== undefined && end > quote.endsBy)
        throw new Refusal(
          'lease_limit_exceeded',
          `The lease could last until ${end}, and the provider ends this offer at ${quote.endsBy}. Ask for fewer seconds.`,
        );
    },
  };
}

async function startLease(
  app: LeaseApp,
  operation: Operation,
  { configured, quote }: Detail,
  giveUp: GiveUp,
): Promise<Resource> {
  const id = operation.resourceId as string;
  const started = performance.now();
  const resource = await app.serially(id, async () => {
    const row = findResource(app.ledger.read, id) as Resource;
    const created = await ask(configured.backend, row, quote);
    return note(app, operation, row, created, giveUp);
  });
  if (resource.endedAt === null && resource.ref === null) {
    app.wakeAt(resource.dueAt);
    throw uncertain();
  }
  return untilReady(app, id, started);
}

async function ask(backend: Backend, { tag, expiresAt }: Resource, quote: BackendQuote): Promise<Created> {
  try {
    return await backend.create({ tag, quote, deadline: expiresAt });
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}

/** Writes what create answered: the reference the moment it is known, a clear no at once, and doubt as doubt. */
async function note(
  app: LeaseApp,
  operation: Operation,
  { id }: Resource,
  created: Created,
  giveUp: GiveUp,
): Promise<Resource> {
  const now = app.clock.now();
  if (created.kind === 'created')
    return writeOutcome(app, (tx) => updateResource(tx, id, { ref: created.ref, dueAt: now }), giveUp);
  const outcome: Outcome<null> = created;
  const resource = await writeOutcome(
    app,
    (tx) => {
      settle(tx, operation.id, outcome, 'answer', now);
      if (created.kind === 'unknown')
        return updateResource(tx, id, { status: 'unknown', lastError: created.reason, dueAt: now });
      return updateResource(tx, id, {
        status: 'failed',
        endWanted: 'create_failed',
        endReason: 'create_failed',
        endedAt: now,
        lastError: created.reason,
      });
    },
    giveUp,
  );
  app.events.settled(operation, outcome, true);
  if (created.kind === 'refused') throw new Refusal(created.code, created.reason, { retryAfterSeconds: 10 });
  return resource;
}

/** Steps a lease until it is ready or has ended, at most until 30 s after `started`. */
async function untilReady(app: LeaseApp, id: string, started: number): Promise<Resource> {
  for (;;) {
    const resource = await app.serially(id, () => stepLease(app, id));
    if (resource.readyAt !== null) return resource;
    if (resource.endedAt !== null) throw neverReady(app, resource);
    if (performance.now() - started > ANSWER_MILLISECONDS || app.running.isCutOff()) return resource;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

function neverReady(app: LeaseApp, resource: Resource): Refusal {
  const reason = findOperation(app.ledger.read, resource.operationId)?.reason;
  return new Refusal(
    'provider_unavailable',
    `The machine never became ready, and nothing was charged: ${reason ?? resource.endReason}.`,
    { retryAfterSeconds: 10 },
  );
}

/** Leases answer from their current rows; a doubtful one is looked for first (design 2.9). */
async function replayCreate(app: LeaseApp, operation: Operation): Promise<Resource> {
  const resource = resourceOfOperation(app.ledger.read, operation.id);
  assert(resource, 'a create writes its resource with its hold');
  if (operation.state === 'settled') return resource;
  const looked = await app.serially(resource.id, () => stepLease(app, resource.id));
  if (looked.ref === null) throw uncertain();
  if (looked.endedAt !== null && looked.readyAt === null) throw neverReady(app, looked);
  return looked;
}

export type ExtendRequest = Omit<PaidRequest, 'kind'> & { resource: Resource; additionalSeconds: number };

/**
 * Prepays more seconds on a running lease, as an operation of its own. The absolute new deadline is fixed on it, so that
 * an extension in doubt is decided by reading the backend's deadline.
 */
export async function extendLease(
  app: LeaseApp,
  { resource, additionalSeconds, ...request }: ExtendRequest,
): Promise<Answered<Resource>> {
  const { id } = resource;
  const current = () => findResource(app.ledger.read, id) as Resource;
  const answered = await spend<Backend, Resource>(
    app,
    { ...request, kind: 'compute_extend' },
    {
      quote: () => quoteExtension(app, current(), additionalSeconds),
      finish: (operation, { detail: backend }) =>
        app.serially(id, () => finishExtension(app, operation, backend, current())),
      async replay(operation) {
        if (operation.state === 'settled') return current();
        await app.serially(id, () => stepLease(app, id));
        const decided = findOperation(app.ledger.read, operation.id) as Operation;
        if (decided.state !== 'settled') throw uncertain();
        if (decided.outcome === 'released') throw new Refusal('resource_not_active', decided.reason ?? undefined);
        return current();
      },
    },
  );
  return answered;
}

function quoteExtension(app: LeaseApp, resource: Resource, additionalSeconds: number): Quote<Backend> {
  if (!canExtend(resource.slot)) throw new Refusal('extension_not_supported');
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
      const row = findResource(tx, resource.id) as Resource;
      if (row.readyAt === null || row.endedAt !== null || row.endWanted !== null || row.expiresAt <= app.clock.now())
        throw new Refusal(
          'resource_not_active',
          `The resource is ${row.status}; only a running lease can be extended.`,
        );
      if (row.expiresAt !== resource.expiresAt)
        throw new Refusal('resource_not_active', 'Another extension has just moved the deadline. Retry.');
      const end = row.expiresAt + additionalSeconds;
      if (wallet.expiresAt !== null && end > wallet.expiresAt)
        throw new Refusal(
          'lease_limit_exceeded',
          `The lease would end at ${end}, and the wallet expires at ${wallet.expiresAt}.`,
        );
      if (row.endsBy !== null && end > row.endsBy)
        throw new Refusal(
          'lease_limit_exceeded',
          `The lease would end at ${end}, and the provider ends this offer at ${row.endsBy}.`,
        );
      if (row.purchasedSeconds + additionalSeconds > row.maxSeconds)
        throw new Refusal(
          'lease_limit_exceeded',
          `A lease lasts at most ${row.maxSeconds} s in all; ${row.purchasedSeconds} are bought.`,
        );
    },
  };
}

async function finishExtension(
  app: LeaseApp,
  operation: Operation,
  backend: Backend,
  resource: Resource,
): Promise<Resource> {
  const runs =
    resource.endedAt === null &&
    resource.endWanted === null &&
    resource.ref !== null &&
    resource.expiresAt > app.clock.now();
  let result: Awaited<ReturnType<Backend['extend']>>;
  if (!runs) result = { kind: 'refused', reason: 'The lease has ended.' };
  else
    try {
      result = await backend.extend(resource.ref as string, operation.targetAt as number);
    } catch (error) {
      result = { kind: 'unknown', reason: (error as Error).message };
    }
  const outcome = await settleExtension(app, operation, result);
  if (outcome.kind === 'unknown') {
    await app.ledger.write((tx) => updateResource(tx, resource.id, { dueAt: app.clock.now() }));
    app.wakeAt(app.clock.now());
    throw uncertain();
  }
  if (outcome.kind === 'refused') throw new Refusal('resource_not_active', outcome.reason);
  return findResource(app.ledger.read, resource.id) as Resource;
}

/** Ends a lease early, without a refund. Waits for the backend's word for one attempt; the reaper goes on. Idempotent. */
export async function stopLease(app: LeaseApp, id: string): Promise<Resource> {
  return app.serially(id, async () => {
    const resource = findResource(app.ledger.read, id) as Resource;
    if (resource.endedAt !== null) return resource;
    if (resource.endWanted === null) {
      const now = app.clock.now();
      await app.ledger.write((tx) =>
        updateResource(tx, id, { endWanted: 'requested', status: 'stopping', dueAt: now, attempts: 0 }),
      );
    }
    return stepLease(app, id);
  });
}

/** Ends the row of a lease by the operator's word alone; what was never captured is released. The alarm stays in the log. */
export async function abandonLease(app: LeaseApp, id: string, reason: string): Promise<Resource> {
  return app.serially(id, async () => {
    const resource = findResource(app.ledger.read, id) as Resource;
    if (resource.endedAt !== null) return resource;
    await app.ledger.write((tx) => updateResource(tx, id, { abandonedReason: reason }));
    app.events.leaseAbandoned(resource, reason);
    return conclude(app, resource, resource.endWanted ?? 'requested', 'operator');
  });
}
