import assert from 'node:assert/strict';
import { newId } from '../base/id.ts';
import { Nanos, ZERO } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import type { Activity } from '../compute/activity.ts';
import type { Backend, Created, MachineQuote, Slot, Spec } from '../compute/backend.ts';
import { tagOf } from '../compute/backend.ts';
import { ordered } from '../compute/fill.ts';
import { type ConfiguredBackend, leasePriceSnapshot, priceOfSeconds, type Slots } from '../compute/slots.ts';
import type { Config } from '../config/config.ts';
import type { Tx } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import { tellLeaseEnded } from '../ledger/notices.ts';
import {
  findOperationByKey,
  keepKey,
  type Operation,
  type Outcome,
  operationOf,
  type Standing,
} from '../ledger/operation.ts';
import {
  changeResource,
  findResource,
  insertResource,
  type Resource,
  resourceOfOperation,
  updateIfLive,
} from '../ledger/resource.ts';
import { insertSandbox, type SandboxOrder } from '../ledger/sandbox.ts';
import { findWallet, refuseInactive, type Wallet } from '../ledger/wallet.ts';
import type { KeyedMutex } from '../spend/keyed-mutex.ts';
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
import type { LeaseEgress } from './egress.ts';
import { recentEngineOf, refusedBy } from './engine.ts';
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
/** Time limit for a backend's quote: nothing is held yet, and `create` has to answer. */
const QUOTE_SECONDS = 20;

type CreateRequest = Omit<PaidRequest, 'kind'> & {
  slot: Slot;
  spec: Spec;
  /** The time that the answer waits for the machine, instead of `answerSeconds`. */
  waitSeconds?: number | undefined;
  /** True if it waits as long for room where its slot is full. */
  waitsForRoom?: boolean;
  /** What E2B's wire adds to a lease, where it was ordered by that. */
  sandbox?: SandboxOrder | undefined;
};
/** A backend that has the requested machine, and its quote. All candidates of a create sell it at the same price. */
type Candidate = ConfiguredBackend & { quote: MachineQuote; engine: Promise<CandidateEngine> };
/** The identity of a candidate's engine, null where it does not tell; the error where it cannot be asked. */
type CandidateEngine = { identity: string | null } | { error: Error };
type Candidates = [Candidate, ...Candidate[]];
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
};

type LeaseQuote = PaidQuote<Resource, LeaseTerms>;

const createWrites = definePaidWrites<LeaseTerms>('compute_create', {
  limits(_, wallet, __, { seconds, provisionSeconds, endsBy }, now) {
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
  insertRows(tx, operation, { sandbox, ...terms }) {
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
    });
    if (sandbox) insertSandbox(tx, operation.resourceId as string, sandbox);
  },
  settleRows: noteFailure,
});

/**
 * Creates a prepaid lease: holds the whole price together with the resource's row, asks the backend, and captures the price
 * when the machine is ready. Returns the resource: `running` if it is ready within `answerSeconds`, else in its current
 * state, usually `provisioning`; the backend's create then continues under its driver and the reaper. One that `waitsForRoom` holds
 * nothing while its slot is full, and is tried again in its turn. Throws `provider_not_configured`, `offer_not_found`,
 * `invalid_request`, `lease_limit_exceeded`, `provider_unavailable`, `capacity_unavailable`, `read_only` and PAID_REFUSALS.
 */
export async function createLease(
  app: LeaseApp,
  { slot, spec, waitSeconds, waitsForRoom = false, sandbox, ...request }: CreateRequest,
): Promise<Answered<Resource>> {
  const answerAt = performance.now() + (waitSeconds ?? app.answerSeconds) * 1000;
  const joinSeconds = waitSeconds === undefined ? {} : { joinSeconds: waitSeconds };
  let quoted: LeaseQuote | undefined;
  let [isBehind, isAnswered] = [false, false];
  let leaveLine = () => {};
  const order = { slot, spec, walletId: request.walletId, answerAt };
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
        refuseInactive(findWallet(app.ledger.read, request.walletId) as Wallet, app.clock.now());
        quoted = await quoteLease(
          app,
          configured,
          { spec, sandbox, walletId: request.walletId },
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
 * Prices a lease by the quotes of its slot's backends. Those without the requested machine, or with another price than the first
 * backend that has it, are left out; the others are candidates, and the lease has the terms that all of them keep.
 */
async function quoteLease(
  app: LeaseApp,
  { fill, backends }: ReturnType<Slots['find']>,
  { spec, sandbox, walletId }: Pick<CreateRequest, 'spec' | 'sandbox' | 'walletId'>,
  waiting: Pick<WaitingCreate, 'answerAt' | 'created'>,
): Promise<LeaseQuote> {
  const seconds = spec.max_seconds;
  const results = await Promise.allSettled(backends.map((it) => askForQuote(app, it, spec)));
  const quoted = results.flatMap((it) => (it.status === 'fulfilled' ? [it.value] : []));
  const [first] = quoted;
  if (!first) throw mostTelling(results.flatMap((it) => (it.status === 'rejected' ? [it.reason] : [])));
  const { priceHourly, spec: quotedSpec } = first.quote;
  const [one, ...others] = quoted.filter(
    ({ quote }) => quote.priceHourly === priceHourly && quote.maxSeconds >= seconds,
  );
  if (!one)
    throw new Refusal(
      'lease_limit_exceeded',
      `max_seconds is ${seconds}; this offer allows at most ${Math.max(...quoted.map(({ quote }) => quote.maxSeconds))}.`,
    );
  // If only a part of a backend fails, the backend itself is not in this list: another part may have room.
  const failing = app.outages.list().map(({ unit }) => unit);
  const candidates = await ordered([one, ...others], fill, spec, ({ slotPath }) => failing.includes(slotPath));
  const engine = await candidates[0].engine;
  const ends = candidates.flatMap(({ quote }) => quote.endsBy ?? []);
  const { backend } = candidates[0];
  const identity = 'identity' in engine ? engine.identity : undefined;
  const mayBeWarm = identity !== undefined && !app.egress.hasSecrets(walletId, backend, quotedSpec);
  const warmId = mayBeWarm ? app.warm.take(backend, quotedSpec, identity) : undefined;
  const resourceId = warmId ?? newId('res');
  return {
    leave: () => app.warm.giveBack(resourceId),
    order: {
      hold: priceOfSeconds(priceHourly, seconds),
      price: leasePriceSnapshot(priceHourly, seconds),
      subject: one.slot,
      resourceId,
    },
    call: (operation, waiters) => startLease(app, operation, candidates, { ...waiters, ...waiting }),
    terms: {
      slot: one.slot,
      backend: backend.name,
      engine: identity ?? null,
      tag: tagOf(app.installationId, resourceId),
      spec: JSON.stringify(quotedSpec),
      seconds: quotedSpec.max_seconds,
      provisionSeconds: Math.max(...candidates.map((it) => it.provisionSeconds)),
      priceHourly,
      maxSeconds: Math.min(...candidates.map(({ quote }) => quote.maxSeconds)),
      endsBy: ends.length ? Math.min(...ends) : undefined,
      sandbox,
    },
  };
}

/** Returns a candidate. Throws a refusal: the backend's own, or `provider_unavailable` when it cannot be asked. */
async function askForQuote(app: LeaseApp, configured: ConfiguredBackend, spec: Spec): Promise<Candidate> {
  const noQuote = (cause?: unknown) =>
    new Refusal('provider_unavailable', 'The provider cannot be asked for a price. Nothing was charged.', {
      retryAfterSeconds: 5,
      cause,
    });
  const quoting = configured.backend.quote(spec).catch((cause: unknown) => {
    throw cause instanceof Refusal ? cause : noQuote(cause);
  });
  const engine = askForEngine(app, configured.backend);
  const quote = await app.inFlight.waitFor(quoting, QUOTE_SECONDS);
  if (!quote) throw noQuote();
  return { ...configured, quote, engine };
}

/** Returns the identity of a candidate's engine. A step corrects one that is out of date when it finds the machine elsewhere. Never throws. */
async function askForEngine(app: LeaseApp, backend: Backend): Promise<CandidateEngine> {
  const asking = recentEngineOf(backend, app.clock.now()).then(
    (identity): CandidateEngine => ({ identity: identity ?? null }),
    (error: Error): CandidateEngine => ({ error }),
  );
  return (
    (await app.inFlight.waitFor(asking, QUOTE_SECONDS)) ?? { error: new Error('it does not say which engine it is') }
  );
}

/** Returns the refusal to show: that of a backend that cannot be asked now, else of one that rejects the request, else the first. */
function mostTelling(refusals: readonly Refusal[]): Refusal {
  const codes = ['provider_unavailable', 'invalid_request'];
  const telling = codes.flatMap((code) => refusals.find((it) => it.code === code) ?? []);
  return telling[0] ?? (refusals[0] as Refusal);
}

type WaitingCreate = Waiters<Resource> & {
  /** The time by which `create` has to answer, in milliseconds of the monotonic clock. */
  answerAt: number;
  /** Called when the machine is made. */
  created(): void;
};

/**
 * Asks the backend for the machine and records its reference as soon as it is known; holds the lease's lock, so that no
 * step comes between. A machine that was made is not settled here: its lease captures the price when it is ready.
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
 * Asks one backend after another until one does not clearly refuse. The row names each backend before it is asked: a machine
 * whose answer was lost is searched for there, and no other backend is asked for one in the meantime.
 */
async function askInTurn(
  app: LeaseApp,
  { id: operationId, resourceId }: Operation,
  candidates: Candidates,
  reject: WaitingCreate['reject'],
): Promise<Created> {
  const id = resourceId as string;
  const refused: RefusedCreate[] = [];
  for (const candidate of candidates) {
    const { backend } = candidate;
    const engine = await candidate.engine;
    if (refused.length) {
      if (app.inFlight.isCutOff()) break;
      const identity = 'identity' in engine ? engine.identity : null;
      const next = { id, operationId, backend: backend.name, engine: identity };
      const moved = await writeOutcome(app, moveLease, next, reject);
      if (!moved) break;
    }
    const row = findResource(app.ledger.read, id) as Resource;
    const created = 'error' in engine ? unreached(engine.error) : await ask(app, candidate, row);
    if (created.kind !== 'refused') return created;
    refused.push({ name: backend.name, refusal: created });
  }
  return allRefused(refused);
}

/** The refusal of a backend, with its name. */
type RefusedCreate = { name: string; refusal: Created & { kind: 'refused' } };

type MoveLease = { id: string; operationId: string; backend: string; engine: string | null };
/** Names the backend that is asked next. Returns false if no machine is wanted any more. */
const moveLease = defineWrite('lease.move', (tx, { id, operationId, backend, engine }: MoveLease): boolean => {
  const row = findResource(tx, id) as Resource;
  const isWanted = row.endedAt === null && row.endWanted === null;
  if (!isWanted || row.ref !== null || operationOf(tx, operationId).state === 'settled') return false;
  updateIfLive(tx, id, { backend, engine });
  return true;
});

/** Returns the refusal of a create that every backend refused: that of the first backend that is full, else the last one's. */
function allRefused(refused: readonly RefusedCreate[]): Created {
  const full = refused.find(({ refusal }) => refusal.code === 'capacity_unavailable');
  const { refusal } = full ?? (refused.at(-1) as RefusedCreate);
  if (refused.length === 1) return refusal;
  const words = refused.map(
    ({ name, refusal: { reason, words } }) => `${name}: ${reason}${words ? ` (${words})` : ''}`,
  );
  return { ...refusal, words: words.join('; ') };
}

/**
 * Asks a candidate for the machine of a lease, whose row names its engine. A warm one keeps its own deadline until the lease is paid
 * for. Without one it is made, and warm ones give way to it.
 */
async function ask(app: LeaseApp, { backend, quote }: Candidate, row: Resource): Promise<Created> {
  const { id, tag, expiresAt, walletId, engine } = row;
  const isFull = (it: Created) => it.kind === 'refused' && it.code === 'capacity_unavailable';
  try {
    const secrets = app.egress.secretsFor(row, backend, quote.spec);
    const make = () => backend.create({ tag, quote, deadline: expiresAt, walletId, secrets });
    // One that was made before has no secrets.
    let created = (await app.warm.lease(backend, id, secrets === undefined)) ?? (await make());
    while (isFull(created) && (await app.warm.makeRoom(backend, quote.spec))) created = await make();
    return created.kind !== 'refused' || engine === null ? created : await refusedBy(backend, engine, created);
  } catch (error) {
    return { kind: 'unknown', reason: (error as Error).message };
  }
}

/** The refusal of an engine that cannot be asked who it is: a machine of an engine that no row names could be lost. */
const unreached = ({ message }: Error): RefusedCreate['refusal'] => ({
  kind: 'refused',
  code: 'provider_unavailable',
  reason: 'The provider cannot be reached. Nothing was charged.',
  words: message,
});

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
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/**
 * Returns the resource as the answer of its create. An uncaptured price may still be released, so the fact that it was
 * answered 200 is written first; its key then rents no second machine (design 2.7). Throws a refusal if it was already
 * released.
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
