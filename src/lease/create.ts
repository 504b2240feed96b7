import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { newId } from '../base/id.ts';
import type { KeyedMutex } from '../base/keyed-mutex.ts';
import { Nanos, ZERO } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import type { Activity } from '../compute/activity.ts';
import type { Created, Slot, Spec } from '../compute/backend.ts';
import { tagOf } from '../compute/backend.ts';
import { leasePriceSnapshot, priceOfSeconds, type Slots } from '../compute/slots.ts';
import type { Config } from '../config/config.ts';
import type { Tx } from '../db/handle.ts';
import type { Standing } from '../ledger/hold.ts';
import { tellLeaseEnded } from '../ledger/notices.ts';
import { findOperationByKey, keepKey, type Operation, type Outcome, operationOf } from '../ledger/operation.ts';
import {
  changeResource,
  findResource,
  insertResource,
  type Resource,
  resourceOfOperation,
  updateIfLive,
} from '../ledger/resource.ts';
import { insertSandbox, type SandboxOrder } from '../ledger/sandbox.ts';
import { findSnapshot, type Snapshot, snapshotOf } from '../ledger/snapshot.ts';
import { findWallet, refuseInactive, type Wallet } from '../ledger/wallet.ts';
import {
  type Answered,
  type Called,
  type PaidApp,
  type PaidQuote,
  type PaidRequest,
  spend,
  uncertain,
  type Waiters,
  writeOutcome,
} from '../spend/spend.ts';
import { definePaidWrites } from '../spend/writes.ts';
import { askInTurn, type Candidates, candidatesOf } from './candidates.ts';
import type { LeaseEgress } from './egress.ts';
import type { Outages } from './outages.ts';
import { behindOthers, inTurn, type RoomQueue } from './room-queue.ts';
import { advance, markAbandoned } from './step.ts';
import type { Usages } from './usage.ts';
import type { WarmPool } from './warm.ts';

export type LeaseApp = PaidApp & {
  config: Pick<Config, 'close_wait_seconds'>;
  slots: Slots;
  leaseMutex: KeyedMutex;
  outages: Outages;
  /** The check that a failed call into its machine has begun, by lease, while it runs. */
  leaseChecks: Map<string, Promise<unknown>>;
  /** The creates that wait for room. */
  roomQueue: RoomQueue;
  /** The reason why a machine is not ready, in its backend's words for tenants, by lease that is provisioning. */
  waitingFor: Map<string, string | undefined>;
  /** The part of its second that was over when a lease was resumed by this process (`Clock.fraction`). */
  resumeFractions: Map<string, number>;
  /** The ways out of machines. */
  egress: LeaseEgress;
  /** The open commands, uploads, sessions and ports of machines. */
  activity: Activity;
  usages: Usages;
  warm: WarmPool;
  installationId: string;
  /** `create` answers within this many seconds, ready or not (design 2.18). */
  answerSeconds: number;
};

const POLL_MILLISECONDS = { min: 250, max: 2000 };
/** A machine that takes long is asked for less often: after this part of the time that it has taken. */
const POLL_SHARE = 1 / 60;
type CreateRequest = Omit<PaidRequest, 'kind'> & {
  slot: Slot;
  spec: Spec;
  /** The time that the answer waits for the machine, instead of `answerSeconds`. */
  waitSeconds?: number | undefined;
  /** True if it waits as long for room where its slot is full. */
  waitsForRoom?: boolean;
  /** The additions of E2B's wire, for a lease that it ordered. */
  sandbox?: SandboxOrder | undefined;
  /** The id of the wallet's snapshot that its machine is made from. */
  snapshotId?: string | undefined;
};
/** The offer of a create, as its writes know it. */
type LeaseTerms = {
  slot: Slot;
  backend: string;
  /** The identity of its engine; null where that is not known. */
  engine: string | null;
  tag: string;
  /** The specification as JSON. */
  spec: string;
  seconds: number;
  provisionSeconds: number;
  priceHourly: bigint;
  maxSeconds: number;
  endsBy: number | undefined;
  sandbox: SandboxOrder | undefined;
  snapshotId: string | undefined;
};

/** `places` are the names of the backends that may make it. */
type LeaseQuote = PaidQuote<Resource, LeaseTerms> & { places: string[] };

const createWrites = definePaidWrites<LeaseTerms>('compute_create', {
  limits(read, wallet, _, { seconds, provisionSeconds, endsBy, snapshotId }, now) {
    if (snapshotId !== undefined) refuseUnready(findSnapshot(read, snapshotId) as Snapshot);
    // The lease is sold from when it is ready, so the provisioning time has to fit as well.
    const end = now + provisionSeconds + seconds;
    if (wallet.expiresAt !== null && end > wallet.expiresAt)
      throw new Refusal(
        'lease_limit_exceeded',
        `The lease could last until ${end}, and the wallet expires at ${wallet.expiresAt}. Ask for fewer seconds.`,
      );
    if (endsBy !== undefined && end > endsBy)
      throw new Refusal(
        'lease_limit_exceeded',
        `The lease could last until ${end}, and the provider ends this offer at ${endsBy}. Ask for fewer seconds.`,
      );
  },
  insertRows(tx, operation, { sandbox, snapshotId, ...terms }) {
    const { slot, backend, engine, tag, spec, seconds, provisionSeconds, priceHourly, maxSeconds, endsBy } = terms;
    const now = operation.createdAt;
    insertResource(tx, {
      id: operation.resourceId as string,
      walletId: operation.walletId,
      operationId: operation.id,
      slot,
      backend,
      engine,
      tag,
      ref: null,
      spec,
      status: 'provisioning',
      priceHourly: Nanos(priceHourly),
      charged: ZERO,
      purchasedSeconds: seconds,
      maxSeconds,
      endsBy: endsBy ?? null,
      createdAt: now,
      readyBy: now + provisionSeconds,
      expiresAt: now + provisionSeconds + seconds,
      dueAt: now + provisionSeconds,
      attempts: 0,
      absentCount: 0,
      snapshotId: snapshotId ?? null,
    });
    if (sandbox) insertSandbox(tx, operation.resourceId as string, sandbox);
  },
  settleRows: noteFailure,
});

/**
 * Creates a prepaid lease: holds the whole price together with the resource's row, asks the backend, and captures the price when
 * the machine is ready. Returns the resource: `running` if it is ready within `answerSeconds`, else in its current state, usually
 * `provisioning`; its driver and the reaper then continue. One that `waitsForRoom` holds nothing while its slot is full, and is
 * tried again in its turn. Throws `provider_not_configured`, `offer_not_found`, `invalid_request`, `lease_limit_exceeded`,
 * `provider_unavailable`, `capacity_unavailable`, `read_only` and PAID_REFUSALS.
 */
export async function createLease(
  app: LeaseApp,
  { slot, spec, waitSeconds, waitsForRoom = false, sandbox, snapshotId, ...request }: CreateRequest,
): Promise<Answered<Resource>> {
  const answerAt = performance.now() + (waitSeconds ?? app.answerSeconds) * 1000;
  const joinSeconds = waitSeconds === undefined ? {} : { joinSeconds: waitSeconds };
  let quoted: LeaseQuote | undefined;
  let [isBehind, isAnswered] = [false, false];
  let leaveLine = () => {};
  const order = { slot, spec, places: () => quoted?.places, walletId: request.walletId, answerAt };
  const isFull = (error: unknown) => error instanceof Refusal && error.code === 'capacity_unavailable' && !isAnswered;
  const isRefused = () => quoted !== undefined && standingOf(app, request, quoted) === 'refused';
  const created = await spend<Resource, LeaseTerms>(
    app,
    { ...request, ...joinSeconds, kind: 'compute_create' },
    {
      writes: createWrites,
      async schedule(run, audience) {
        if (!waitsForRoom) return run();
        return inTurn(app.roomQueue, { ...order, isRefused }, { audience, isFull }, (behind, created) => {
          isBehind = behind;
          leaveLine = created;
          return run();
        });
      },
      async quote() {
        const configured = app.slots.find(slot);
        // Fail fast, before asking a provider for a price; the hold checks again.
        refuseInactive(app.ledger.read, findWallet(app.ledger.read, request.walletId) as Wallet, app.clock.now());
        quoted = await quoteLease(
          app,
          configured,
          { spec, sandbox, snapshotId, walletId: request.walletId },
          { answerAt, created: () => leaveLine() },
        );
        // One that its wallet does not allow is refused by its hold, at once.
        if (!isBehind || standingOf(app, request, quoted) !== 'ready') return quoted;
        quoted.leave?.();
        throw behindOthers();
      },
      refuse: ({ id }, outcome) => {
        if (outcome.kind === 'unknown') return uncertain();
        // Its caller has the lease already, so its end is announced like any other.
        isAnswered = operationOf(app.ledger.read, id).answeredAt !== null;
        if (isAnswered) app.events.leaseEnded(resourceOfOperation(app.ledger.read, id) as Resource);
        return new Refusal(outcome.code, outcome.callerReason ?? outcome.reason, { retryAfterSeconds: 10 });
      },
      replay: (operation) => replayCreate(app, operation, waitSeconds === undefined ? undefined : answerAt),
    },
  ).catch(async (error): Promise<Answered<Resource>> => {
    const begun = error instanceof Refusal && error.code === 'idempotency_in_progress' && begunBy(app, request);
    if (!begun) throw error;
    return { answer: await answered(app, begun), paid: undefined, replayed: true };
  });
  // A caller that joins an attempt which has answered already gets the current state.
  return { ...created, answer: findResource(app.ledger.read, created.answer.id) as Resource };
}

/** Returns the verdict of a create's wallet on its quote, by the rows as they are. */
function standingOf(app: LeaseApp, request: Omit<PaidRequest, 'kind'>, { order, terms }: LeaseQuote): Standing['kind'] {
  const unpriced = { ...request, id: '', kind: 'compute_create' } as const;
  const data = { now: app.clock.now(), blocked: app.clock.holdsBlocked(), limited: undefined };
  return createWrites.standing(app.ledger.read, { order: { ...unpriced, ...order }, terms, ...data }).kind;
}

/** Returns the resource of a create that another caller waits for, if it is held for already. */
function begunBy(app: LeaseApp, { walletId, route, idempotencyKey }: Omit<PaidRequest, 'kind'>): Resource | undefined {
  const operation = findOperationByKey(app.ledger.read, walletId, route, idempotencyKey);
  return operation && resourceOfOperation(app.ledger.read, operation.id);
}

/**
 * Prices a lease by the quotes of its candidates. It has the terms that all of them keep. Takes a warm machine where the first
 * candidate has one.
 */
async function quoteLease(
  app: LeaseApp,
  slot: ReturnType<Slots['find']>,
  {
    spec: requested,
    sandbox,
    snapshotId,
    walletId,
  }: Pick<CreateRequest, 'spec' | 'sandbox' | 'snapshotId' | 'walletId'>,
  waiting: Pick<WaitingCreate, 'answerAt' | 'created'>,
): Promise<LeaseQuote> {
  const snapshot = snapshotId === undefined ? undefined : snapshotOf(app.ledger.read, walletId, snapshotId);
  const having = snapshot ? backendWith(slot, snapshot) : slot;
  const { candidates, places, spec, priceHourly } = await candidatesOf(app, having, requested);
  const [first] = candidates;
  if (snapshot) refuseSmall(snapshot, first);
  const { backend } = first;
  const engine = await first.engine;
  const ends = candidates.flatMap(({ quote }) => quote.endsBy ?? []);
  const identity = 'identity' in engine ? engine.identity : undefined;
  const mayBeWarm =
    identity !== undefined && snapshotId === undefined && !app.egress.hasSecrets(walletId, backend, spec);
  const warmId = mayBeWarm ? app.warm.take(backend, spec, identity) : undefined;
  const resourceId = warmId ?? newId('res');
  return {
    places,
    leave: () => app.warm.giveBack(resourceId),
    order: {
      hold: priceOfSeconds(priceHourly, requested.max_seconds),
      price: leasePriceSnapshot(priceHourly, requested.max_seconds),
      subject: first.slot,
      resourceId,
    },
    call: (operation, waiters) => startLease(app, operation, candidates, { ...waiters, ...waiting }),
    terms: {
      slot: first.slot,
      backend: backend.name,
      engine: identity ?? null,
      tag: tagOf(app.installationId, resourceId),
      spec: JSON.stringify(spec),
      seconds: spec.max_seconds,
      provisionSeconds: Math.max(...candidates.map((it) => it.provisionSeconds)),
      priceHourly,
      maxSeconds: Math.min(...candidates.map(({ quote }) => quote.maxSeconds)),
      endsBy: ends.length ? Math.min(...ends) : undefined,
      sandbox,
      snapshotId,
    },
  };
}

/** Returns a slot with the one backend that has a snapshot. Throws where that is not of this slot or cannot be used. */
function backendWith({ fill, backends }: ReturnType<Slots['find']>, it: Snapshot): ReturnType<Slots['find']> {
  const { slot } = backends[0];
  if (it.slot !== slot)
    throw new Refusal('invalid_request', `snapshot: ${it.id} is of ${it.slot}, and this is a create of ${slot}.`);
  refuseUnready(it);
  const own = backends.find(({ backend }) => backend.name === it.backend);
  if (!own)
    throw new Refusal(
      'provider_not_configured',
      `The backend ${it.backend}, which has the snapshot, is not configured.`,
    );
  return { fill, backends: [own] };
}

/**
 * Throws a refusal where a lease has a smaller disk than its snapshot takes. A snapshot that is deleted stays while a lease needs it,
 * and then only the price of that disk pays for it.
 */
function refuseSmall({ id, size }: Snapshot, { backend, quote }: Candidates[0]): void {
  const { snapshots } = backend.guest;
  if (typeof snapshots === 'object' && (size ?? 0) > snapshots.gibMax(quote.spec) * 100)
    throw new Refusal(
      'invalid_request',
      `snapshot: ${id} takes ${(size ?? 0) / 100} GiB, more than the disk of this lease.`,
    );
}

/** Throws a refusal when no machine can be made from a snapshot. */
function refuseUnready({ id, status }: Snapshot): void {
  if (status !== 'ready') throw new Refusal('resource_not_active', `The snapshot ${id} is ${status}.`);
}

type WaitingCreate = Waiters<Resource> & {
  /** The time by which `create` has to answer, in milliseconds of the monotonic clock. */
  answerAt: number;
  /** Called when the machine is made. */
  created(): void;
};

/**
 * Asks the backend for the machine and records its reference once it is known. Holds the lease's lock, so that no step comes
 * between. Settles nothing for a made machine: its lease captures the price when it is ready.
 */
async function startLease(
  app: LeaseApp,
  operation: Operation,
  candidates: Candidates,
  { answerAt, created: noteCreated, answer, reject }: WaitingCreate,
): Promise<Called<Resource>> {
  const id = operation.resourceId as string;
  const current = () => findResource(app.ledger.read, id) as Resource;
  const timer = setTimeout(
    () => {
      if (app.inFlight.isCutOff()) return;
      answered(app, current()).then(answer, reject);
    },
    Math.max(0, answerAt - performance.now()),
  ).unref(); // Only its caller's connection waits for it.
  const untilAnswered = async () => {
    try {
      return await answered(app, await untilReady(app, id, answerAt));
    } finally {
      clearTimeout(timer);
    }
  };
  try {
    const created = await app.leaseMutex(id, async () => {
      const created = await askInTurn(app, operation, candidates, reject);
      if (created.kind !== 'created') return created;
      const values = { ref: created.ref, dueAt: app.clock.now() };
      await writeOutcome(app, changeResource, { id, values }, reject);
      return created;
    });
    if (created.kind === 'created') {
      noteCreated();
      return { pending: untilAnswered };
    }
    clearTimeout(timer);
    return { outcome: created.kind === 'unknown' ? created : refusedWith(created), answer: current };
  } catch (error) {
    clearTimeout(timer);
    throw error;
  }
}

/**
 * Returns the refusal with the backend's own message added to the operator's reason. It may name sockets and addresses, so callers
 * do not get it.
 */
function refusedWith({ words, ...refused }: Created & { kind: 'refused' }): Outcome<never> {
  return { ...refused, reason: words ? `${refused.reason} (${words})` : refused.reason, callerReason: refused.reason };
}

/**
 * After a definite refusal, ends the row of the lease, and announces that if its caller has already been given the lease; after an
 * unknown outcome, schedules the search for its machine at once.
 */
function noteFailure(
  tx: Tx,
  { resourceId, answeredAt }: Operation,
  outcome: Outcome<Buffer | null>,
  now: number,
): void {
  const id = resourceId as string;
  if (outcome.kind === 'unknown') updateIfLive(tx, id, { status: 'unknown', lastError: outcome.reason, dueAt: now });
  if (outcome.kind !== 'refused') return;
  const failed = { status: 'failed', endWanted: 'create_failed', endReason: 'create_failed' } as const;
  const ended = updateIfLive(tx, id, { ...failed, endedAt: now, lastError: outcome.reason });
  if (answeredAt !== null) tellLeaseEnded(tx, ended, now);
}

/**
 * Takes steps of a lease until it is ready or has ended, at most until `answerAt`, in milliseconds of the monotonic
 * clock.
 */
async function untilReady(app: LeaseApp, id: string, answerAt: number): Promise<Resource> {
  const beganAt = performance.now();
  for (;;) {
    // A step that cannot be written leaves the row as it was: provisioning, and due again.
    const resource = await advance(app, id).catch(() => findResource(app.ledger.read, id) as Resource);
    if (resource.readyAt !== null || resource.endedAt !== null) return resource;
    if (performance.now() > answerAt || app.inFlight.isCutOff()) return resource;
    const { min, max } = POLL_MILLISECONDS;
    const pause = Math.min(max, Math.max(min, (performance.now() - beganAt) * POLL_SHARE));
    await sleep(pause);
  }
}

/**
 * Returns the resource as the answer of its create. An uncaptured price may still be released, so the answer is recorded first: its
 * key then rents no second machine (design 2.7). Throws a refusal after a release.
 */
async function answered(app: LeaseApp, { id, operationId }: Resource): Promise<Resource> {
  const { outcome, answeredAt } = operationOf(app.ledger.read, operationId);
  const isKept =
    outcome === 'charged' ||
    answeredAt !== null ||
    (await app.ledger.write(keepKey, { id: operationId, now: app.clock.now() }).catch(unwritten));
  const resource = findResource(app.ledger.read, id) as Resource;
  if (!isKept) throw neverReady(resource);
  return resource;
}

/** Withholds a 200 that cannot be recorded: the caller repeats the request with its key. */
function unwritten(error: unknown): never {
  throw error instanceof Refusal && error.code === 'read_only' ? uncertain() : error;
}

function neverReady(resource: Resource): Refusal {
  // The backend's message is in the log and on the operation only: it may name sockets and addresses.
  return new Refusal(
    'provider_unavailable',
    `The machine never became ready (${resource.endReason}), and nothing was charged.`,
    { retryAfterSeconds: 10 },
  );
}

/**
 * Replays a create from the lease's current row. If the create is uncertain, searches for its machine first (design
 * 2.9). With `readyUntil`, in milliseconds of the monotonic clock, waits until then for the machine to be ready.
 */
async function replayCreate(app: LeaseApp, operation: Operation, readyUntil: number | undefined): Promise<Resource> {
  const resource = resourceOfOperation(app.ledger.read, operation.id);
  assert(resource, 'a create writes its resource with its hold');
  if (operation.state === 'settled') return resource;
  const waiting =
    readyUntil === undefined
      ? app.inFlight.waitFor(advance(app, resource.id), app.answerSeconds)
      : app.inFlight.waitFor(
          untilReady(app, resource.id, readyUntil),
          Math.max(0, readyUntil - performance.now()) / 1000,
        );
  const current = (await waiting) ?? (findResource(app.ledger.read, resource.id) as Resource);
  if (operation.answeredAt === null && current.endedAt === null && current.ref === null) throw uncertain();
  return answered(app, current);
}

/**
 * Ends a lease early, without a refund. Records that it is to end at once, even if the backend is busy; then waits for
 * one step, at most `close_wait_seconds`, and the reaper continues. Idempotent.
 */
export async function stopLease(app: LeaseApp, id: string): Promise<Resource> {
  const now = app.clock.now();
  const values = { endWanted: 'requested', dueAt: now, attempts: 0 } as const;
  const row = await app.ledger.write(changeResource, { id, values });
  if (row.endedAt !== null) return row;
  app.wakeAt(now);
  const stepped = await app.inFlight.waitFor(advance(app, id), app.config.close_wait_seconds);
  return stepped ?? (findResource(app.ledger.read, id) as Resource);
}

/**
 * Ends the row of a lease on the operator's word alone, without confirmation from the backend. Releases what was never
 * captured, and logs an error.
 */
export async function abandonLease(app: LeaseApp, id: string, reason: string): Promise<Resource> {
  return app.leaseMutex(id, async () => {
    const resource = findResource(app.ledger.read, id) as Resource;
    if (resource.endedAt !== null) return resource;
    const ended = await markAbandoned(app, resource, reason);
    app.events.leaseAbandoned(ended, reason);
    return ended;
  });
}
