import { Refusal } from '../../../base/refusal.ts';
import type { Backend, Created, Extended, Machine, Owned, Ref, Spec, Surroundings } from '../../backend.ts';
import { createReservations, roomAt } from '../../kit/capacity.ts';
import { type LeaseSize, sizeOf } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { egressLists } from '../../kit/egress.ts';
import { READ_LIMITS } from '../../kit/limits.ts';
import { roomOfPaused } from '../../kit/pausing.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import { keepDeadlines, MOVE_MILLISECONDS, RUNNING_WATCHDOG, WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { createGuest } from '../../machine/guest.ts';
import { isAbsent, LxdRefusal, openLxdApi, textOf } from './api.ts';
import { checkLxd, findOpen, findOpenMachine } from './check.ts';
import { createMaker, type LxdOrder } from './create.ts';
import { CREATED_KEY, claimIn, hasSecrets, isMachine, nameOf } from './describe.ts';
import { createHost } from './host.ts';
import { createInstances, stateOf } from './instances.ts';
import { createKeepers, keptTag } from './keeper.ts';
import { createLxdPause, createSignals } from './pause.ts';
import { beginEgress, beginIn, runProgram } from './program.ts';
import { allContents, type Contents, contentsOf, type LxdSettings } from './settings.ts';
import { createLxdSnapshots } from './snapshots.ts';
import { readUsage } from './usage.ts';

/**
 * Opens unprivileged containers and virtual machines of LXD or Incus. The name comes from the tag, which is in the configuration.
 * The watchdog, which keeps the deadline, is the first process of a container, and runs beside a virtual machine. Nothing of this
 * machine's file system is used, so the server may be another machine or a cluster.
 */
export function openLxdBackend(
  settings: LxdSettings,
  { prefix, now, isPaused, rooms }: Pick<Surroundings, 'prefix' | 'now' | 'isPaused' | 'rooms'>,
): Backend {
  const lxd = openLxdApi(settings, settings.project);
  const egress = egressLists(settings);
  const host = createHost(lxd);
  const instances = createInstances(lxd);
  const reservations = createReservations(
    settings,
    { prefix, isPaused },
    {
      list: async () => (await instances.list()).flatMap((it) => (claimIn(it).tag ? [claimIn(it)] : [])),
      capacity: () => host.capacity(),
      diskFree: () => host.diskFree(settings.pool),
    },
    roomAt(rooms, `${settings.socket} ${settings.project}`),
  );
  const contents = allContents(settings);
  const free = createRecent(async () => {
    const [count, missing] = await Promise.all([reservations.free(), host.missing(contents)]);
    const isMissing = ({ image, type }: Contents) => missing.some((it) => it.image === image && it.type === type);
    return (size: LeaseSize) => (isMissing(contentsOf(settings, size.offer)) ? 0 : count(size));
  });
  const keepers = createKeepers(lxd, settings, { instances, host });
  const deadlines = keepDeadlines(
    async (ref, ...args) => {
      const holder = await keepers.holderOf(ref);
      return runProgram(lxd, holder, WATCHDOG_USER, [RUNNING_WATCHDOG, ...args], MOVE_MILLISECONDS);
    },
    (error) =>
      isAbsent(error) || (error instanceof LxdRefusal && /not running/i.test(error.message))
        ? textOf(error)
        : undefined,
  );
  const signals = createSignals(lxd, settings.user);
  const pause = createLxdPause(lxd, { signals, instances, deadlines, room: roomOfPaused(reservations, free) });
  const gibMax = (spec: Spec) => sizeOf(settings, spec).diskGb;
  const guest = createGuest((ref, order) => beginIn(lxd, ref, order, settings), {
    relay: WATCHDOG_PATH,
    usage: (ref) => readUsage(lxd, ref),
    egress: {
      listOf: (spec) => egress(sizeOf(settings, spec).offer),
      async begin(ref) {
        const instance = await instances.look(ref);
        return { ...(await beginEgress(lxd, ref)), hasSecrets: instance !== undefined && hasSecrets(instance) };
      },
    },
    pause,
    snapshots: createLxdSnapshots(lxd, settings, { instances, signals, gibMax, now }),
  });
  const make = createMaker(lxd, settings, { host, instances, keepers, deadlines, now });

  async function create(order: LxdOrder): Promise<Created> {
    const { tag, quote } = order;
    try {
      const claim = await reservations.reserve(tag, sizeOf(settings, quote.spec));
      free.forget();
      if ('lacking' in claim) return refused(`There is no room: ${claim.lacking}`, undefined, 'capacity_unavailable');
      return settle(tag, await make(order, claim).catch(unknownOutcome));
    } catch (error) {
      // Nothing has been requested yet.
      return settle(tag, refused('The machine cannot be ordered', textOf(error)));
    }
  }

  /** Releases the reservation: whatever the outcome, the server's list shows the instance from now on, if there is one. */
  function settle(tag: string, outcome: Created): Created {
    reservations.release(tag, outcome.kind === 'unknown');
    free.forget();
    return outcome;
  }

  async function inspect(ref: Ref): Promise<Machine | undefined> {
    const instance = await instances.settled(ref);
    if (!instance) return (await keepers.look(ref)) && { ref, state: 'ended', note: 'only its keeper is there' };
    const state = stateOf(instance);
    if (state === 'ended') return { ref, state, note: 'it was never started, was stopped, or its deadline has passed' };
    if (state !== 'running') return { ref, state };
    if (isMachine(instance)) {
      const keeper = await keepers.look(ref);
      // Nothing would end it without Purser.
      if (!keeper || stateOf(keeper) === 'ended') return { ref, state: 'ended', note: 'its keeper was stopped' };
    }
    const deadline = await deadlines.read(ref);
    return { ref, state, ...(deadline === undefined ? {} : { deadline }) };
  }

  /** Lists only instances whose name comes from their tag: a copy of one has its configuration as well, and is not ours. */
  async function listOwned(prefix: string): Promise<Owned[]> {
    const all = await instances.list();
    const names = new Set(all.map(({ name }) => name));
    return all.flatMap((it) => {
      const kept = keptTag(it);
      const { tag } = kept === undefined ? claimIn(it) : { tag: kept };
      const ref = nameOf(tag);
      if (!tag.startsWith(prefix) || (kept === undefined ? ref !== it.name : names.has(ref))) return [];
      const createdAt = Number(it.config?.[CREATED_KEY] ?? Math.floor(Date.parse(it.created_at) / 1000));
      return [{ ref, tag, state: kept === undefined ? stateOf(it) : 'ended', createdAt }];
    });
  }

  async function find(tag: string): Promise<Machine[]> {
    const instance = await instances.confirmed(nameOf(tag));
    if (!instance && (await keepers.look(nameOf(tag)))) return [{ ref: nameOf(tag), state: 'ended' }];
    return instance && claimIn(instance).tag === tag ? [{ ref: instance.name, state: stateOf(instance) }] : [];
  }

  async function destroy(ref: Ref): Promise<void> {
    await instances.remove(ref);
    if (await keepers.look(ref)) await keepers.remove(ref);
    deadlines.forget(ref);
    instances.forget(ref);
    reservations.release(ref);
    free.forget();
  }

  async function extend(ref: Ref, deadline: number): Promise<Extended> {
    if (!(await instances.look(ref))) return { kind: 'refused', reason: 'the machine is gone' };
    return deadlines.move(ref, deadline);
  }

  return {
    name: 'lxd',
    identity: host.identity,
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    find,
    destroy,
    listOwned,
    extend,
    partOf: instances.locationOf,
    doctor: {
      check: () => checkLxd(lxd, settings),
      trial: 'free',
      async unlimited(ref, quote) {
        const size = sizeOf(settings, quote.spec);
        if (await instances.isMachine(ref)) return findOpenMachine(guest, ref, size, keepers);
        const { stdout } = await guest.exec(ref, READ_LIMITS);
        return findOpen(guest, ref, stdout.toString(), size.memoryGib);
      },
    },
    guest,
    async quote(spec) {
      const quote = quoteOf(settings, spec);
      const { cpus, offer } = sizeOf(settings, spec);
      if (contentsOf(settings, offer).type === 'virtual-machine' && !Number.isInteger(cpus))
        throw new Refusal('invalid_request', 'spec.cpus: a virtual machine has whole ones.');
      return quote;
    },

    freeFor: async (spec) => (await free.get())?.(sizeOf(settings, spec)) ?? 0,

    async offers(waitMilliseconds) {
      const count = await free.get(waitMilliseconds);
      const isAvailable = (spec: Spec) => (count?.(sizeOf(settings, spec)) ?? 0) > 0;
      const typeOf = (offer: string | undefined) => contentsOf(settings, offer).type;
      return offersOf(settings, (offer) => typeOf(offer).replace('-', ' ')).map((it) => ({
        ...it,
        ...(typeOf(it.offerId ?? undefined) === 'container' ? {} : { runtime: typeOf(it.offerId ?? undefined) }),
        available: isAvailable(it.spec),
      }));
    },

    close: () => lxd.close(),
  };
}

/** Returns the outcome of a create that broke off. */
const unknownOutcome = (error: unknown): Created => ({ kind: 'unknown', reason: textOf(error) });
