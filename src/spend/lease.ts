import assert from 'node:assert/strict';
import type { Backend, Quote as BackendQuote, Created, Slot, Spec } from '../compute/backend.ts';
import { tagOf } from '../compute/backend.ts';
import {
  alterResource,
  findResource,
  insertResource,
  type Resource,
  resourceOfOperation,
  updateResource,
} from '../compute/resources.ts';
import { type ConfiguredSlot, leasePriceSnapshot, priceOfSeconds, type Slots } from '../compute/slots.ts';
import type { Config } from '../config.ts';
import { newId } from '../id.ts';
import { keepKey, type Operation, type Outcome, operationOf, settle } from '../ledger/operation.ts';
import { findWallet, refuseInactive, type Wallet } from '../ledger/wallet.ts';
import { Nanos, ZERO } from '../money.ts';
import { Refusal } from '../refusal.ts';
import { conclude, step } from './lease-steps.ts';
import { type Answered, type PaidRequest, type Quote, type RoadApp, spend, uncertain, writeOutcome } from './road.ts';
import type { AnswerNow, GiveUp } from './running.ts';
import type { Serially } from './serially.ts';

export type LeaseApp = RoadApp & {
  config: Pick<Config, 'closeWaitSeconds'>;
  slots: Slots;
  serially: Serially;
  installationId: string;
  /** `create` answers within so many seconds, ready or not (design 2.18). */
  answerSeconds: number;
};

const POLL_MILLISECONDS = 250;
/** So long a backend may think about a price: nothing is held yet, and `create` has to answer. */
const QUOTE_SECONDS = 20;

export type CreateRequest = Omit<PaidRequest, 'kind'> & { slot: Slot; spec: Spec };
type Detail = { configured: ConfiguredSlot; quote: BackendQuote };

/**
 * Prepays a lease: hold the whole price with the resource's row, ask the backend, capture when the machine is ready.
 * Answers the resource: `running` if it is ready within 30 s, else as it then is, mostly `provisioning`; the backend's
 * create goes on under its driver, and then the reaper.
 */
export async function createLease(
  app: LeaseApp,
  { slot, spec, ...request }: CreateRequest,
): Promise<Answered<Resource>> {
  const started = performance.now();
  const { answer, replayed } = await spend<Detail, Resource>(
    app,
    { ...request, kind: 'compute_create' },
    {
      quote() {
        const configured = app.slots.find(slot);
        // Told at once, not after a provider was asked for a price; the hold looks again.
        refuseInactive(findWallet(app.ledger.read, request.walletId) as Wallet, app.clock.now());
        return quoteLease(app, configured, spec);
      },
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
      finish: (operation, { detail }, giveUp, answerNow) =>
        startLease(app, operation, detail, { started, giveUp, answerNow }),
      replay: (operation) => replayCreate(app, operation),
    },
  );
  // Whoever joins an attempt that has answered already hears how things are now.
  return { answer: findResource(app.ledger.read, answer.id) as Resource, replayed };
}

async function quoteLease(app: LeaseApp, configured: ConfiguredSlot, spec: Spec): Promise<Quote<Detail>> {
  const noQuote = (cause?: unknown) =>
    new Refusal('provider_unavailable', 'The provider cannot be asked for a price. Nothing was charged.', {
      retryAfterSeconds: 5,
      cause,
    });
  const asked = configured.backend.quote(spec).catch((cause: unknown) => {
    throw cause instanceof Refusal ? cause : noQuote(cause);
  });
  const quote = await app.running.waitFor(asked, QUOTE_SECONDS);
  if (!quote) throw noQuote();
  const seconds = spec.max_seconds;
  if (seconds > quote.maxSeconds)
    throw new Refusal(
      'lease_limit_exceeded',
      `max_seconds is ${seconds}; this offer allows at most ${quote.maxSeconds}.`,
    );
  return {
    hold: priceOfSeconds(quote.priceHourly, seconds),
    price: leasePriceSnapshot(quote.priceHourly, seconds),
    subject: configured.slot,
    resourceId: newId('res'),
    detail: { configured, quote },
    limits: (_, wallet) => {
      app.limits.released.check(wallet.id);
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

type Waiting = { started: number; giveUp: GiveUp; answerNow: AnswerNow<Resource> };

async function startLease(
  app: LeaseApp,
  operation: Operation,
  { configured, quote }: Detail,
  { started, giveUp, answerNow }: Waiting,
): Promise<Resource> {
  const id = operation.resourceId as string;
  const current = () => findResource(app.ledger.read, id) as Resource;
  const answerAt = started + app.answerSeconds * 1000;
  const timer = setTimeout(
    () => {
      if (app.running.isCutOff()) return;
      answered(app, current()).then(answerNow, giveUp);
    },
    Math.max(0, answerAt - performance.now()),
  );
  try {
    const resource = await app.serially(id, async () =>
      note(app, operation, await ask(configured.backend, current(), quote), giveUp),
    );
    if (resource.endedAt === null && resource.ref === null) {
      app.wakeAt(resource.dueAt);
      throw uncertain();
    }
    return await answered(app, await untilReady(app, id, answerAt));
  } finally {
    clearTimeout(timer);
  }
}

async function ask(backend: Backend, { tag, expiresAt }: Resource, quote: BackendQuote): Promise<Created> {
  try {
    return await backend.create({ tag, quote, deadline: expiresAt });
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}

/** Writes what create answered: the reference the moment it is known, a clear no at once, and doubt as doubt. */
async function note(app: LeaseApp, operation: Operation, created: Created, giveUp: GiveUp): Promise<Resource> {
  const id = operation.resourceId as string;
  const now = app.clock.now();
  if (created.kind === 'created')
    return writeOutcome(app, (tx) => alterResource(tx, id, { ref: created.ref, dueAt: now }), giveUp);
  const lastError =
    created.kind === 'refused' && created.words ? `${created.reason} (${created.words})` : created.reason;
  const outcome: Outcome<null> = { ...created, reason: lastError };
  const { moved, resource } = await writeOutcome(
    app,
    (tx) => {
      const moved = settle(tx, operation.id, outcome, 'answer', now);
      if (created.kind === 'unknown')
        return { moved, resource: alterResource(tx, id, { status: 'unknown', lastError, dueAt: now }) };
      const failed = { status: 'failed', endWanted: 'create_failed', endReason: 'create_failed' } as const;
      return { moved, resource: alterResource(tx, id, { ...failed, endedAt: now, lastError }) };
    },
    giveUp,
  );
  app.events.settled(operation, outcome, moved);
  if (created.kind === 'refused') {
    app.limits.released.count(operation.walletId);
    throw new Refusal(created.code, created.reason, { retryAfterSeconds: 10 });
  }
  return resource;
}

/** Steps a lease until it is ready or has ended, at most until `answerAt`, in milliseconds of the monotonic clock. */
async function untilReady(app: LeaseApp, id: string, answerAt: number): Promise<Resource> {
  for (;;) {
    // What cannot be written at the moment is not known to the row either: it is provisioning, and looked at again.
    const resource = await step(app, id).catch(() => findResource(app.ledger.read, id) as Resource);
    if (resource.readyAt !== null || resource.endedAt !== null) return resource;
    if (performance.now() > answerAt || app.running.isCutOff()) return resource;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

/**
 * The resource as the answer of its create. What has not been captured yet may still be released; that it was answered
 * 200 is written first, so that its key rents no second machine (design 2.7). Refuses where it was released before.
 */
async function answered(app: LeaseApp, { id, operationId }: Resource): Promise<Resource> {
  const { outcome, answeredAt } = operationOf(app.ledger.read, operationId);
  const isKept =
    outcome === 'charged' ||
    answeredAt !== null ||
    (await app.ledger.write((tx) => keepKey(tx, operationId, app.clock.now())).catch(unwritten));
  const resource = findResource(app.ledger.read, id) as Resource;
  if (!isKept) throw neverReady(resource);
  return resource;
}

/** A 200 that cannot be written is not given: the caller repeats the request under its key. */
function unwritten(error: unknown): never {
  throw error instanceof Refusal && error.code === 'read_only' ? uncertain() : error;
}

function neverReady(resource: Resource): Refusal {
  // What the backend said is in the log and on the operation: it may name sockets and addresses.
  return new Refusal(
    'provider_unavailable',
    `The machine never became ready (${resource.endReason}), and nothing was charged.`,
    { retryAfterSeconds: 10 },
  );
}

/** Leases answer from their current rows; a doubtful one is looked for first (design 2.9). */
async function replayCreate(app: LeaseApp, operation: Operation): Promise<Resource> {
  const resource = resourceOfOperation(app.ledger.read, operation.id);
  assert(resource, 'a create writes its resource with its hold');
  if (operation.state === 'settled') return resource;
  const looked =
    (await app.running.waitFor(step(app, resource.id), app.answerSeconds)) ??
    (findResource(app.ledger.read, resource.id) as Resource);
  if (operation.answeredAt === null && looked.endedAt === null && looked.ref === null) throw uncertain();
  return answered(app, looked);
}

/**
 * Ends a lease early, without a refund. That it is to end is written at once, whatever the backend is busy with; then one
 * step is waited for, at most `close_wait_seconds`, and the reaper goes on. Idempotent.
 */
export async function stopLease(app: LeaseApp, id: string): Promise<Resource> {
  const now = app.clock.now();
  const row = await app.ledger.write((tx) =>
    alterResource(tx, id, { endWanted: 'requested', dueAt: now, attempts: 0 }),
  );
  if (row.endedAt !== null) return row;
  app.wakeAt(now);
  const stepped = await app.running.waitFor(step(app, id), app.config.closeWaitSeconds);
  return stepped ?? (findResource(app.ledger.read, id) as Resource);
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
