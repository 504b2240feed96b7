import { readFileSync, rmSync } from 'node:fs';
import type { Clock } from '../base/clock.ts';
import { newId } from '../base/id.ts';
import { parseJson } from '../base/parse-json.ts';
import {
  type Backend,
  type Created,
  type Ref,
  type Slot,
  type Spec,
  type SpecThree,
  tagOf,
} from '../compute/backend.ts';
import { freeFor } from '../compute/fill.ts';
import type { ConfiguredBackend, Slots } from '../compute/slots.ts';
import { writeDurably } from '../files/durable-file.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { findResource } from '../ledger/resource.ts';
import { deadline } from '../net/deadline.ts';
import type { Events } from '../telemetry/events.ts';
import { engineOf } from './engine.ts';
import type { RoomQueue } from './room-queue.ts';

/**
 * Warm machines: made before anyone asks for them, each under the id of the lease that it may become, so that its tag is that of the
 * lease. Nothing of a tenant has been inside. A file lists their ids before they are made, as the row of a lease is written before its
 * machine is: a later process ends those that have become no lease.
 */

/** The deadline of a warm machine, in seconds from when it was set: it is moved while the server runs. */
const LIFE_SECONDS = 3600;
/** A machine with less time left gets a new deadline, and one with less than the second is not leased. */
const RENEW_SECONDS = 1800;
const LEASE_SECONDS = 300;
/** Delay until another is made after one could not be, has ended, or had to make room; and until a failing pass is told again. */
const RETRY_SECONDS = 60;
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

type Warm = {
  id: string;
  configured: ConfiguredBackend;
  /** The machine, as `machineOf` names it. */
  machine: string;
  spec: Spec;
  /** The identity of its engine; null where that does not tell. */
  engine: string | null;
  ref: Ref | undefined;
  /** Unix seconds. */
  deadline: number;
  /** `busy` while a call about it is under way; `taken` from the quote of a lease until that is held for or refused. */
  state: 'busy' | 'starting' | 'ready' | 'taken';
  /** Resolves when it is no longer busy. */
  settled: Promise<unknown>;
};
/** A machine that has to end, and may not have been made yet. */
type Left = { slot: Slot; backend: string; until: number };

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
   * Hands the machine over to its lease, whose row is written. Returns undefined if there is none, and nothing with the lease's tag;
   * one that is not `fit` for the lease is ended. Throws where that cannot be told.
   */
  lease(backend: Backend, id: string, fit: boolean): Promise<(Created & { kind: 'created' }) | undefined>;
  /**
   * Ends a machine if that makes room for a lease: for the whole of it, or for its processors where it has the rest. Returns whether
   * it did.
   */
  makeRoom(backend: Backend, spec: Spec, what?: 'processors'): Promise<boolean>;
  /** Ends all that are not leased, within a time limit. */
  close(): Promise<void>;
};

/** Returns the text that is the same for equal machines, whatever the time they are leased for. */
function machineOf({ max_seconds: _, ...machine }: Spec): string {
  return JSON.stringify(Object.entries(machine).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Creates the pool. `file` lists the ids; `tags` are those that backends count as free, and is kept up to date. */
export function createWarmPool(app: WarmApp, file: string, tags: Set<string>): WarmPool {
  const pool = new Map<string, Warm>();
  const left = new Map<string, Left>(readLeft(file, app.clock.now() + SEARCH_SECONDS));
  const retryAt = new Map<Spec, number>();
  const toldAt = new Map<Backend, number>();
  let [isStopped, lastRecord] = [false, Promise.resolve()];
  let passing: Promise<void> | undefined;
  const tagFor = (id: string) => tagOf(app.installationId, id);
  const isLeased = (id: string) => findResource(app.ledger.read, id) !== undefined;
  const of = (backend: Backend) => [...pool.values()].filter((it) => it.configured.backend === backend);

  function forget(id: string): void {
    pool.delete(id);
    left.delete(id);
    tags.delete(tagFor(id));
  }

  /** Writes the ids of all machines that may exist and have no row. */
  function record(): Promise<void> {
    const write = async () => {
      const listed = [
        ...[...pool.values()].map(({ id, configured: { slot, backend } }) => ({ id, slot, backend: backend.name })),
        ...[...left].map(([id, { slot, backend }]) => ({ id, slot, backend })),
      ];
      if (listed.length) await writeDurably(file, JSON.stringify(listed));
      else rmSync(file, { force: true });
    };
    const mine = lastRecord.then(write);
    lastRecord = mine.catch(() => {});
    return mine;
  }

  /** Does something about a machine while nobody else may. It is `starting` afterwards unless `work` says otherwise. */
  function busyWith(it: Warm, work: () => Promise<Warm['state'] | undefined>): Promise<void> {
    it.state = 'busy';
    const settled = work()
      .then((state) => {
        it.state = state ?? 'starting';
      })
      .catch((error) => {
        if (pool.has(it.id)) leave(it);
        retryAt.set(it.spec, app.clock.now() + RETRY_SECONDS); // What ended this one may end the next.
        failed(it.configured, error);
      });
    it.settled = settled;
    return settled;
  }

  const failed = ({ slot, backend }: ConfiguredBackend, error: unknown) =>
    app.events.failed('warm', error, { slot, backend: backend.name });

  /** Has a machine ended by a later pass: it may still be there, or come. */
  function leave({ id, configured: { slot, backend } }: Warm): void {
    forget(id);
    left.set(id, { slot, backend: backend.name, until: app.clock.now() + SEARCH_SECONDS });
  }

  const end = (it: Warm) =>
    busyWith(it, async () => {
      const { backend } = it.configured;
      if (it.ref !== undefined) await backend.destroy(it.ref);
      if (it.ref !== undefined && (await backend.inspect(it.ref)) === undefined) forget(it.id);
      else leave(it);
      return undefined;
    });

  /** Makes one machine. Returns whether it was made. */
  async function make(configured: ConfiguredBackend, spec: Spec): Promise<boolean> {
    const id = newId('res');
    const state = { engine: null, ref: undefined, state: 'busy', settled: Promise.resolve() } as const;
    const until = app.clock.now() + LIFE_SECONDS;
    const it: Warm = { id, configured, spec, machine: machineOf(spec), deadline: until, ...state };
    pool.set(id, it);
    tags.add(tagFor(id));
    await busyWith(it, async () => {
      const { backend } = configured;
      const quoted = async () => {
        it.engine = (await engineOf(backend)) ?? null;
        const quote = await backend.quote(spec);
        await record();
        return quote;
      };
      const quote = await quoted().catch((error) => {
        forget(id); // It has not been asked for.
        throw error;
      });
      const created = await backend.create({ tag: tagFor(id), quote, deadline: until });
      if (created.kind === 'created') {
        it.ref = created.ref;
        return look(it);
      }
      if (created.kind === 'unknown') throw new Error(created.reason);
      forget(id);
      if (created.code !== 'capacity_unavailable')
        throw new Error([created.reason, created.words].filter(Boolean).join(' '));
      return undefined;
    });
    return pool.has(id);
  }

  /** Returns whether a machine that was made runs yet. Throws if it has ended. */
  async function look({ configured, ref }: Warm): Promise<'starting' | 'ready'> {
    const machine = await configured.backend.inspect(ref as Ref);
    if (!machine || machine.state === 'ended') throw new Error(machine?.note ?? 'the machine is gone');
    return machine.state === 'running' ? 'ready' : 'starting';
  }

  async function renew(it: Warm): Promise<'ready'> {
    const until = app.clock.now() + LIFE_SECONDS;
    const extended = await it.configured.backend.extend(it.ref as Ref, until);
    if (extended.kind !== 'done') throw new Error(extended.reason);
    it.deadline = until;
    return 'ready';
  }

  /** Ends the machines that have to end, until none has been found for a while. */
  async function endLeft({ slot, backend }: ConfiguredBackend): Promise<void> {
    for (const [id, it] of left) {
      if (it.slot !== slot || it.backend !== backend.name) continue;
      if (isLeased(id)) {
        forget(id);
        continue;
      }
      const found = await backend.find(tagFor(id));
      for (const { ref } of found) await backend.destroy(ref);
      if (!found.length && app.clock.now() >= it.until) forget(id);
    }
  }

  async function tendBackend(configured: ConfiguredBackend): Promise<void> {
    const { backend, slot } = configured;
    await endLeft(configured);
    for (const it of of(backend)) {
      if (it.state === 'taken' && it.deadline <= app.clock.now()) leave(it); // Its lease was never asked for.
      if (it.state === 'starting') await busyWith(it, () => look(it));
      if (it.state === 'ready' && it.deadline - app.clock.now() < RENEW_SECONDS) await busyWith(it, () => renew(it));
    }
    for (const { spec, count } of configured.warm) {
      const own = () => of(backend).filter((it) => it.machine === machineOf(spec) && it.state !== 'taken');
      for (const it of own().slice(count)) if (it.state === 'ready') await end(it);
      while (own().length < count && !isStopped) {
        if (own().some((it) => it.state === 'starting')) break; // It may never run, and nor would the others.
        const mayTry = (retryAt.get(spec) ?? 0) <= app.clock.now() && !app.roomQueue.hasLine(slot, spec);
        if (mayTry && (await make(configured, spec))) continue;
        if (mayTry) retryAt.set(spec, app.clock.now() + RETRY_SECONDS);
        break;
      }
    }
    if (of(backend).some((it) => it.state === 'starting')) app.wakeAt(app.clock.now() + SOON_SECONDS);
  }

  const mayAct = () => !isStopped && !reportOnlyOf(app.ledger.read) && !app.clock.expiryBlocked();

  async function pass(): Promise<void> {
    if (!mayAct()) return;
    for (const [id, { slot, backend, until }] of left)
      if (!app.slots.configuredOf({ slot, backend }) && app.clock.now() >= until) forget(id);
    const some = app.slots.list.filter((it) => it.warm.length || left.size);
    const tended = (it: ConfiguredBackend) =>
      tendBackend(it).catch((error) => {
        const now = app.clock.now();
        if (now < (toldAt.get(it.backend) ?? 0) + RETRY_SECONDS) return; // A busy server has several passes a second.
        toldAt.set(it.backend, now);
        failed(it, error);
      });
    await Promise.all(some.map(tended));
  }

  return {
    ids: () => [...pool.keys(), ...left.keys()],
    count: (backend) => of(backend).filter((it) => it.state === 'ready').length,

    tend() {
      passing ??= pass().finally(() => {
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
      const found = mayAct() ? of(backend).find(isFit) : undefined;
      if (found) found.state = 'taken';
      return found?.id;
    },

    giveBack(id) {
      const it = pool.get(id);
      if (it?.state === 'taken' && !isLeased(id)) it.state = 'ready';
    },

    async lease(backend, id, fit) {
      const it = pool.get(id);
      if (!it) return undefined;
      const ref = it.ref as Ref;
      forget(id);
      app.wakeAt(app.clock.now() + 1);
      const machine = await backend.inspect(ref);
      if (fit && machine?.state === 'running') {
        app.events.leaseWarm(it.configured.slot, backend.name);
        return { kind: 'created', ref };
      }
      if (machine) await backend.destroy(ref);
      if (machine && (await backend.inspect(ref))) throw new Error('the machine has ended and is not gone yet');
      return undefined;
    },

    async makeRoom(backend, spec, what) {
      const offerOf = (it: Spec) => (it as SpecThree).offer_id;
      const helps = (it: Warm) => it.state !== 'taken' && offerOf(it.spec) === offerOf(spec);
      const may = async () => what === 'processors' || (await freeFor(backend, spec)) >= 1;
      if (!of(backend).some(helps) || !(await may())) return false;
      for (;;) {
        const some = of(backend).filter(helps);
        const it = some.find(({ state }) => state !== 'busy') ?? some[0];
        if (!it) return false;
        if (it.state === 'busy') {
          await it.settled;
          continue;
        }
        retryAt.set(it.spec, app.clock.now() + RETRY_SECONDS);
        await end(it);
        return true;
      }
    },

    async close() {
      isStopped = true;
      const ended = async () => {
        await passing;
        if (reportOnlyOf(app.ledger.read) || !(pool.size || left.size)) return;
        await Promise.all([...pool.values()].map((it) => (it.state === 'taken' ? undefined : end(it))));
        await record();
      };
      await deadline(
        ended().catch((error) => app.events.failed('warm', error)),
        CLOSE_MILLISECONDS,
        () => {},
      );
    },
  };
}

/** Reads which machines an earlier process left. */
function* readLeft(file: string, until: number): Iterable<[string, Left]> {
  try {
    const listed = parseJson(readFileSync(file, 'utf8')) as { id: string; slot: Slot; backend: string }[];
    for (const { id, slot, backend } of listed) yield [id, { slot, backend, until }];
  } catch {
    // There is none, or it is damaged: the sweep finds the machines.
  }
}
