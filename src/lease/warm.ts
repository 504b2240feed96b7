import type { Clock } from '../base/clock.ts';
import { newId } from '../base/id.ts';
import type { Backend, Created, Ref, Spec, SpecThree } from '../compute/backend.ts';
import { freeFor } from '../compute/fill.ts';
import type { WarmOrder } from '../compute/kit/warm.ts';
import type { ConfiguredBackend, Slots } from '../compute/slots.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { findResource } from '../ledger/resource.ts';
import { deadline } from '../net/deadline.ts';
import type { Events } from '../telemetry/events.ts';
import { engineOf } from './engine.ts';
import type { RoomQueue } from './room-queue.ts';
import { machineOf, openWarmRoster, type Warm, type WarmRoster } from './warm-roster.ts';

/**
 * Warm machines: made in advance, each under the id of the lease that it may become, so that its tag is that of the lease. Nothing
 * of a tenant has been inside. A file lists their ids before they are made, as the row of a lease is written before its machine is:
 * a later process ends those that have become no lease.
 */

/** The deadline of a warm machine, in seconds from when it was set: it is moved while the server runs. */
const LIFE_SECONDS = 3600;
/** A machine with less time left gets a new deadline, and one with less than the second is not leased. */
const RENEW_SECONDS = 1800;
const LEASE_SECONDS = 300;
/**
 * Delay until another is made after one could not be, has ended, or had to make room; and until a failing pass is reported again.
 */
const RETRY_SECONDS = 60;
/** Delay until another is made after one was leased, whose first command would wait for the engine otherwise. */
const REFILL_SECONDS = 2;
/** Delay until a machine that does not run yet is looked at again. */
const SOON_SECONDS = 2;
/** Seconds for which a machine whose create may still be under way is searched for. */
const SEARCH_SECONDS = 300;
/** Time limit for ending all of them when the server stops. One that is left ends by its own deadline. */
const CLOSE_MILLISECONDS = 5000;

/** The parts of a server that the warm machines need. */
type WarmApp = {
  ledger: Ledger;
  clock: Clock;
  events: Events;
  slots: Slots;
  roomQueue: RoomQueue;
  installationId: string;
  wakeAt: (at: number) => void;
};

export type WarmPool = {
  /** Returns the ids of all warm machines, including those that have to end. */
  ids(): string[];
  /** Returns how many machines of a backend are ready to be leased. */
  count(backend: Backend): number;
  /** Makes what is missing, ends what is too many, and moves deadlines. Concurrent callers share one pass. */
  tend(): Promise<void>;
  /** Takes a machine of this spec on this engine for one lease, and returns the lease's id; undefined if none is ready. */
  take(backend: Backend, spec: Spec, engine: string | null): string | undefined;
  /** Gives back a machine that was taken for a lease which was refused. */
  giveBack(id: string): void;
  /**
   * Hands the machine over to its lease, whose row is written. Returns undefined if there is none, and nothing with the lease's
   * tag; one that is not `fit` for the lease is ended. Throws where that is not known.
   */
  lease(backend: Backend, id: string, fit: boolean): Promise<(Created & { kind: 'created' }) | undefined>;
  /**
   * Returns whether a machine that was handed over has been proven already, once: commands ran in it, and the move of its deadline,
   * which comes before its lease is paid for, runs a program in it again.
   */
  takeProof(id: string): boolean;
  /**
   * Ends a machine if that makes room for a lease: for the whole of it, or for its processors where it has the rest. Returns whether
   * it did.
   */
  makeRoom(backend: Backend, spec: Spec, what?: 'processors'): Promise<boolean>;
  /** Ends all that are not leased, within a time limit. */
  close(): Promise<void>;
};

/** The state of a pool. */
type Context = {
  app: WarmApp;
  roster: WarmRoster;
  /** Unix seconds from which another machine of a spec is tried. */
  retryAt: Map<Spec, number>;
  /** Unix seconds at which a backend's failing pass was last reported. */
  notifiedAt: Map<Backend, number>;
  isStopped: boolean;
};

const isLeased = ({ app }: Context, id: string) => findResource(app.ledger.read, id) !== undefined;
const mayAct = ({ app, isStopped }: Context) =>
  !isStopped && !reportOnlyOf(app.ledger.read) && !app.clock.expiryBlocked();
const failed = ({ app }: Context, { slot, backend }: ConfiguredBackend, error: unknown) =>
  app.events.failed('warm', error, { slot, backend: backend.name });
/** Has a machine ended by a later pass. */
const leave = ({ app, roster }: Context, it: Warm) => roster.leave(it, app.clock.now() + SEARCH_SECONDS);
const retryLater = ({ app, retryAt }: Context, spec: Spec) => retryAt.set(spec, app.clock.now() + RETRY_SECONDS);

/** Works on a machine, which is `busy` for others. Its state is `starting` afterwards unless `work` returns another. */
function busyWith(context: Context, it: Warm, work: () => Promise<Warm['state'] | undefined>): Promise<void> {
  it.state = 'busy';
  const settled = work()
    .then((state) => {
      it.state = state ?? 'starting';
    })
    .catch((error) => {
      if (context.roster.pool.has(it.id)) leave(context, it);
      retryLater(context, it.spec); // What ended this one may end the next.
      failed(context, it.configured, error);
    });
  it.settled = settled;
  return settled;
}

function end(context: Context, it: Warm): Promise<void> {
  return busyWith(context, it, async () => {
    const { backend } = it.configured;
    if (it.ref !== undefined) await backend.destroy(it.ref);
    if (it.ref !== undefined && (await backend.inspect(it.ref)) === undefined) context.roster.forget(it.id);
    else leave(context, it);
    return undefined;
  });
}

/** Makes one machine. Returns whether it was made. */
async function make(context: Context, configured: ConfiguredBackend, spec: Spec): Promise<boolean> {
  const { app, roster } = context;
  const { backend } = configured;
  const id = newId('res');
  const state = { engine: null, ref: undefined, state: 'busy', settled: Promise.resolve() } as const;
  const until = app.clock.now() + LIFE_SECONDS;
  const it: Warm = { id, configured, spec, machine: machineOf(spec), deadline: until, ...state };
  roster.add(it);
  const quoted = async () => {
    it.engine = (await engineOf(backend)) ?? null;
    const quote = await backend.quote(spec);
    await roster.record();
    return quote;
  };
  await busyWith(context, it, async () => {
    const quote = await quoted().catch((error) => {
      roster.forget(id); // It has not been asked for.
      throw error;
    });
    const created = await backend.create({ tag: roster.tagFor(id), quote, deadline: until });
    if (created.kind === 'created') {
      it.ref = created.ref;
      return look(it);
    }
    if (created.kind === 'unknown') throw new Error(created.reason);
    roster.forget(id);
    if (created.code !== 'capacity_unavailable')
      throw new Error([created.reason, created.words].filter(Boolean).join(' '));
    return undefined;
  });
  return roster.pool.has(id);
}

/** Returns whether a command runs yet in a machine that was made. Throws if it has ended. */
async function look({ configured, ref }: Warm): Promise<'starting' | 'ready'> {
  const { backend } = configured;
  const machine = await backend.inspect(ref as Ref);
  if (!machine || machine.state === 'ended') throw new Error(machine?.note ?? 'the machine is gone');
  return machine.state === 'running' && (await backend.guest.prove(ref as Ref)) === undefined ? 'ready' : 'starting';
}

async function renew({ app }: Context, it: Warm): Promise<'ready'> {
  const until = app.clock.now() + LIFE_SECONDS;
  const extended = await it.configured.backend.extend(it.ref as Ref, until);
  if (extended.kind !== 'done') throw new Error(extended.reason);
  it.deadline = until;
  return 'ready';
}

/** Ends the machines that have to end, until none has been found for a while. */
async function endLeftovers(context: Context, { slot, backend }: ConfiguredBackend): Promise<void> {
  const { app, roster } = context;
  for (const [id, it] of roster.leftovers) {
    if (it.slot !== slot || it.backend !== backend.name) continue;
    if (isLeased(context, id)) {
      roster.forget(id);
      continue;
    }
    const found = await backend.find(roster.tagFor(id));
    for (const { ref } of found) await backend.destroy(ref);
    if (!found.length && app.clock.now() >= it.until) roster.forget(id);
  }
}

/** Makes what is missing of one order, and ends what is too many. */
async function fill(context: Context, configured: ConfiguredBackend, { spec, count }: WarmOrder): Promise<void> {
  const { app, roster, retryAt } = context;
  const { backend, slot } = configured;
  const own = () => roster.of(backend).filter((it) => it.machine === machineOf(spec) && it.state !== 'taken');
  for (const it of own().slice(count)) if (it.state === 'ready') await end(context, it);
  while (own().length < count && !context.isStopped) {
    if (own().some((it) => it.state === 'starting')) break; // It may never run, and nor would the others.
    const mayTry = (retryAt.get(spec) ?? 0) <= app.clock.now() && !app.roomQueue.hasLine(slot, spec);
    if (mayTry && (await make(context, configured, spec))) continue;
    if (mayTry) retryLater(context, spec);
    break;
  }
}

async function tendBackend(context: Context, configured: ConfiguredBackend): Promise<void> {
  const { app, roster } = context;
  const { backend } = configured;
  await endLeftovers(context, configured);
  for (const it of roster.of(backend)) {
    if (it.state === 'taken' && it.deadline <= app.clock.now()) leave(context, it); // Its lease was never asked for.
    if (it.state === 'starting') await busyWith(context, it, () => look(it));
    if (it.state === 'ready' && it.deadline - app.clock.now() < RENEW_SECONDS)
      await busyWith(context, it, () => renew(context, it));
  }
  for (const order of configured.warm) await fill(context, configured, order);
  if (roster.of(backend).some((it) => it.state === 'starting')) app.wakeAt(app.clock.now() + SOON_SECONDS);
}

async function tend(context: Context): Promise<void> {
  if (!mayAct(context)) return;
  const { app, roster, notifiedAt } = context;
  for (const [id, { slot, backend, until }] of roster.leftovers)
    if (!app.slots.configuredOf({ slot, backend }) && app.clock.now() >= until) roster.forget(id);
  const some = app.slots.list.filter((it) => it.warm.length || roster.leftovers.size);
  const tended = (it: ConfiguredBackend) =>
    tendBackend(context, it).catch((error) => {
      const now = app.clock.now();
      if (now < (notifiedAt.get(it.backend) ?? 0) + RETRY_SECONDS) return; // A busy server has several passes a second.
      notifiedAt.set(it.backend, now);
      failed(context, it, error);
    });
  await Promise.all(some.map(tended));
}

async function makeRoom(context: Context, backend: Backend, spec: Spec, what?: 'processors'): Promise<boolean> {
  const { roster } = context;
  const offerOf = (it: Spec) => (it as SpecThree).offer_id;
  const helps = (it: Warm) => it.state !== 'taken' && offerOf(it.spec) === offerOf(spec);
  const may = async () => what === 'processors' || (await freeFor(backend, spec)) >= 1;
  if (!roster.of(backend).some(helps) || !(await may())) return false;
  for (;;) {
    const some = roster.of(backend).filter(helps);
    const it = some.find(({ state }) => state !== 'busy') ?? some[0];
    if (!it) return false;
    if (it.state === 'busy') {
      await it.settled;
      continue;
    }
    retryLater(context, it.spec);
    await end(context, it);
    return true;
  }
}

/** Creates the pool. `file` lists the ids; `tags` are those that backends count as free, and is kept up to date. */
export function createWarmPool(app: WarmApp, file: string, tags: Set<string>): WarmPool {
  const roster = openWarmRoster(file, app.installationId, tags, app.clock.now() + SEARCH_SECONDS);
  const context: Context = { app, roster, retryAt: new Map(), notifiedAt: new Map(), isStopped: false };
  /** The ids of leases whose machine was proven before it was handed over. */
  const proven = new Set<string>();
  let passing: Promise<void> | undefined;

  return {
    ids: () => [...roster.pool.keys(), ...roster.leftovers.keys()],
    count: (backend) => roster.of(backend).filter((it) => it.state === 'ready').length,

    tend() {
      passing ??= tend(context).finally(() => {
        passing = undefined;
      });
      return passing;
    },

    take(backend, spec, engine) {
      const machine = machineOf(spec);
      const isFit = (it: Warm) =>
        it.state === 'ready' &&
        it.machine === machine &&
        it.engine === engine &&
        it.deadline - app.clock.now() >= it.configured.provisionSeconds + LEASE_SECONDS;
      const found = mayAct(context) ? roster.of(backend).find(isFit) : undefined;
      if (found) found.state = 'taken';
      return found?.id;
    },

    giveBack(id) {
      const it = roster.pool.get(id);
      if (it?.state === 'taken' && !isLeased(context, id)) it.state = 'ready';
    },

    async lease(backend, id, fit) {
      const it = roster.pool.get(id);
      if (!it) return undefined;
      const ref = it.ref as Ref;
      roster.forget(id);
      const refillAt = app.clock.now() + REFILL_SECONDS;
      context.retryAt.set(it.spec, Math.max(context.retryAt.get(it.spec) ?? 0, refillAt));
      app.wakeAt(refillAt);
      const machine = await backend.inspect(ref);
      if (fit && machine?.state === 'running') {
        proven.add(id);
        app.events.leaseWarm(it.configured.slot, backend.name);
        return { kind: 'created', ref };
      }
      if (machine) await backend.destroy(ref);
      if (machine && (await backend.inspect(ref))) throw new Error('the machine has ended and is not gone yet');
      return undefined;
    },

    takeProof: (id) => proven.delete(id),

    makeRoom: (backend, spec, what) => makeRoom(context, backend, spec, what),

    async close() {
      context.isStopped = true;
      const ended = async () => {
        await passing;
        if (reportOnlyOf(app.ledger.read) || !(roster.pool.size || roster.leftovers.size)) return;
        await Promise.all([...roster.pool.values()].map((it) => (it.state === 'taken' ? undefined : end(context, it))));
        await roster.record();
      };
      await deadline(
        ended().catch((error) => app.events.failed('warm', error)),
        CLOSE_MILLISECONDS,
        () => {},
      );
    },
  };
}
