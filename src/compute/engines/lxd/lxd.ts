import type { Backend, Created, Extended, Machine, Owned, Ref, Spec } from '../../backend.ts';
import { createReservations } from '../../kit/capacity.ts';
import { type Claim, sizeOf } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { READ_LIMITS } from '../../kit/limits.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import {
  hasWatchdog,
  keepDeadlines,
  MOVE_MILLISECONDS,
  RUNNING_WATCHDOG,
  WATCHDOG_PATH,
  watchdogFor,
} from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { createGuest } from '../../machine/guest.ts';
import { isAbsent, LxdRefusal, LxdUnreachable, openLxdApi, STATUS, textOf } from './api.ts';
import { checkLxd, findOpen } from './check.ts';
import { CREATED_KEY, claimIn, describeInstance, type Instance, isLeaseName, nameOf } from './describe.ts';
import { createHost } from './host.ts';
import { beginIn, runProgram } from './program.ts';
import type { LxdSettings } from './settings.ts';

/** An image may have to be unpacked, and copied to another member of a cluster. */
const CREATE_MILLISECONDS = 120_000;
const CHANGE_MILLISECONDS = 60_000;
const BUSY_MILLISECONDS = 10_000;
const BUSY_POLL_MILLISECONDS = 100;

type Order = Parameters<Backend['create']>[0];

/** The architectures of LXD in the words of the watchdog's files. */
const ARCHITECTURES: Record<string, string> = { x86_64: 'amd64', aarch64: 'arm64' };

/**
 * Unprivileged containers of LXD or Incus. The name comes from the tag, which is in the configuration; the first process is a
 * watchdog, which keeps the deadline. Nothing of this machine's file system is used, so the server may be another machine or a
 * cluster.
 */
export function openLxdBackend(settings: LxdSettings, { prefix, now }: { prefix: string; now: () => number }): Backend {
  const { user, directory } = settings;
  const lxd = openLxdApi(settings, settings.project);
  const tenant = { user, directory };
  const guest = createGuest((ref, order) => beginIn(lxd, ref, order, tenant), { relay: WATCHDOG_PATH });
  const host = createHost(lxd);
  const reservations = createReservations(settings, prefix, {
    list: async () => (await list()).flatMap((it) => (claimIn(it).tag ? [claimIn(it)] : [])),
    capacity: () => host.capacity(),
  });
  const free = createRecent(reservations.free);
  /** The member of the cluster that each was last seen on. */
  const locations = new Map<Ref, string>();
  const deadlines = keepDeadlines(
    (ref, ...args) => runProgram(lxd, ref, WATCHDOG_USER, [RUNNING_WATCHDOG, ...args], MOVE_MILLISECONDS),
    (error) => (error instanceof LxdRefusal && /not running/i.test(error.message) ? textOf(error) : undefined),
  );

  async function create(order: Order): Promise<Created> {
    const { tag, quote } = order;
    try {
      const claim = await reservations.reserve(tag, sizeOf(settings, quote.spec));
      free.forget();
      if ('lacking' in claim) return refused(`There is no room: ${claim.lacking}`, undefined, 'capacity_unavailable');
      return settle(tag, await make(order, claim).catch(unknown));
    } catch (error) {
      // Nothing has been requested yet.
      return settle(tag, refused('The container cannot be ordered', textOf(error)));
    }
  }

  /** Releases the reservation: whatever the outcome, the server's list shows the instance from now on, if there is one. */
  function settle(tag: string, made: Created): Created {
    reservations.release(tag, made.kind === 'unknown');
    free.forget();
    return made;
  }

  /**
   * The last create, which the next one waits for: LXD 5.0 chooses the users of an instance by those of the others, and takes an
   * instance that it is still making for one without any. Of several made at once some then cannot start.
   */
  let lastMade: Promise<unknown> = Promise.resolve();
  function makeInTurn<T>(make: () => Promise<T>): Promise<T> {
    const made = lastMade.then(make);
    lastMade = made.catch(() => {});
    return made;
  }

  /** Makes an instance and starts it. Throws when the outcome is unknown. */
  async function make({ tag, deadline }: Order, claim: Claim): Promise<Created> {
    const ref = nameOf(tag);
    let isFresh = true;
    try {
      const isIncus = await host.isIncus();
      const wanted = describeInstance(settings, { claim, deadline, created: now(), isIncus });
      await makeInTurn(() => lxd.run('POST', '/1.0/instances', wanted, CREATE_MILLISECONDS));
    } catch (error) {
      if (error instanceof LxdUnreachable) return refused('The provider cannot be reached', textOf(error));
      // A member of a cluster may have received the request, and its answer was lost.
      if (!(error instanceof LxdRefusal) || error.status >= 500) throw error;
      const there = await look(ref);
      if (!there) return refusedBy(error);
      if (claimIn(there).tag !== tag) return refused('The provider has something else of this name', ref);
      // An earlier attempt has made it, and it has the deadline of that attempt.
      if (stateOf(there) !== 'ended') return { kind: 'created', ref };
      isFresh = false;
    }
    const started = await start(ref);
    if (isFresh && started.kind === 'created') deadlines.note(ref, deadline);
    return started;
  }

  /** Puts the watchdog and the tenant's directory into an instance that has not started, and starts it. */
  async function start(ref: Ref): Promise<Created> {
    try {
      const found = await look(ref);
      if (!found) return refused('The machine was removed before it started', ref);
      const architecture = ARCHITECTURES[found.architecture] ?? found.architecture;
      if (!hasWatchdog(architecture)) throw new LxdRefusal(`there is no watchdog for ${architecture}`, 400);
      await putFile(ref, WATCHDOG_PATH, watchdogFor(architecture), { owner: WATCHDOG_USER, mode: '0555' });
      await putDirectory(ref);
      await lxd.run('PUT', `/1.0/instances/${ref}/state`, { action: 'start', timeout: 30 }, CHANGE_MILLISECONDS);
    } catch (error) {
      if (!(error instanceof LxdRefusal)) throw error;
      // It exists and does not run: it is removed, and only a confirmed removal is a clear no.
      await remove(ref);
      if (await look(ref)) throw error;
      return refused('The provider could not start the machine', textOf(error));
    }
    return { kind: 'created', ref };
  }

  const headersOf = (owner: number, mode: string, type: string) =>
    Object.fromEntries(
      ['X-LXD', 'X-Incus'].flatMap((vendor) => [
        [`${vendor}-uid`, String(owner)],
        [`${vendor}-gid`, String(owner)],
        [`${vendor}-mode`, mode],
        [`${vendor}-type`, type],
      ]),
    );
  const putFile = (ref: Ref, path: string, content: Buffer, { owner, mode }: { owner: number; mode: string }) =>
    lxd.ask('POST', `/1.0/instances/${ref}/files?path=${encodeURIComponent(path)}`, content, {
      headers: headersOf(owner, mode, 'file'),
    });

  /** Makes the tenant's directory. Its parents belong to root. */
  async function putDirectory(ref: Ref): Promise<void> {
    const parts = directory.split('/').slice(1);
    for (let count = 1; count <= parts.length; count++) {
      const isLast = count === parts.length;
      const path = encodeURIComponent(`/${parts.slice(0, count).join('/')}`);
      await lxd.ask('POST', `/1.0/instances/${ref}/files?path=${path}`, Buffer.alloc(0), {
        headers: headersOf(isLast ? user : 0, isLast ? '0700' : '0755', 'directory'),
      });
    }
  }

  async function look(ref: Ref): Promise<Instance | undefined> {
    try {
      const found = await lxd.ask<Instance>('GET', `/1.0/instances/${ref}`);
      // Only the server's own message proves that there is no such instance; an answer about another proves nothing about this one.
      if (typeof found?.status_code !== 'number' || found.name !== ref)
        throw new Error(`LXD does not say the state of ${ref}`);
      noteLocation(found);
      return found;
    } catch (error) {
      if (isAbsent(error)) return undefined;
      throw error;
    }
  }

  /** Notes the member that an instance is on. Outside a cluster there is only one place. */
  function noteLocation({ name, location }: Instance): void {
    if (location && location !== 'none') locations.set(name, location);
  }

  async function inspect(ref: Ref): Promise<Machine | undefined> {
    const found = await look(ref);
    if (!found) return undefined;
    const state = stateOf(found);
    if (state === 'ended') return { ref, state, note: 'it was never started, was stopped, or its deadline has passed' };
    if (state !== 'running') return { ref, state };
    const deadline = await deadlines.read(ref);
    return { ref, state, ...(deadline === undefined ? {} : { deadline }) };
  }

  /** Lists every container of the project. Throws when a member of the cluster does not answer for one that may be a lease. */
  async function list(): Promise<Instance[]> {
    const all = await lxd.ask<Instance[]>('GET', '/1.0/instances?recursion=1&instance-type=container');
    all.forEach(noteLocation);
    const silent = all.find((it) => it.status_code === STATUS.error && isLeaseName(it.name));
    if (silent) throw new Error(`${lxd.socket}: the member ${silent.location} does not answer for ${silent.name}`);
    return all;
  }

  /** Lists only instances whose name comes from their tag: a copy of one has its configuration as well, and is not ours. */
  async function listOwned(prefix: string): Promise<Owned[]> {
    return (await list()).flatMap((it) => {
      const { tag } = claimIn(it);
      if (!tag.startsWith(prefix) || nameOf(tag) !== it.name) return [];
      const createdAt = Number(it.config?.[CREATED_KEY] ?? Math.floor(Date.parse(it.created_at) / 1000));
      return [{ ref: it.name, tag, state: stateOf(it), createdAt }];
    });
  }

  async function find(tag: string): Promise<Machine[]> {
    const found = await look(nameOf(tag));
    return found && claimIn(found).tag === tag ? [{ ref: found.name, state: stateOf(found) }] : [];
  }

  async function destroy(ref: Ref): Promise<void> {
    await remove(ref);
    deadlines.forget(ref);
    locations.delete(ref);
    reservations.release(ref);
    free.forget();
  }

  async function remove(ref: Ref): Promise<void> {
    const stop = { action: 'stop', force: true, timeout: 30 };
    await whenIdle(() => lxd.run('PUT', `/1.0/instances/${ref}/state`, stop, CHANGE_MILLISECONDS)).catch((error) => {
      if (!isAbsent(error) && !/already stopped|not running/i.test(textOf(error))) throw error;
    });
    await whenIdle(() => lxd.run('DELETE', `/1.0/instances/${ref}`, undefined, CHANGE_MILLISECONDS)).catch((error) => {
      if (!isAbsent(error)) throw error;
    });
  }

  async function extend(ref: Ref, deadline: number): Promise<Extended> {
    if (!(await look(ref))) return { kind: 'refused', reason: 'the container is gone' };
    return deadlines.move(ref, deadline);
  }

  return {
    name: 'lxd',
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    find,
    destroy,
    listOwned,
    extend,
    partOf: (ref) => locations.get(ref),
    doctor: {
      check: () => checkLxd(lxd, settings),
      trial: 'free',
      async unlimited(ref, quote) {
        const { stdout } = await guest.exec(ref, READ_LIMITS);
        return findOpen(guest, ref, stdout.toString(), sizeOf(settings, quote.spec).memoryGib);
      },
    },
    guest,
    quote: async (spec) => quoteOf(settings, spec),

    freeFor: async (spec) => (await free.get())?.(sizeOf(settings, spec)) ?? 0,

    async offers(waitMilliseconds) {
      const count = await free.get(waitMilliseconds);
      const isAvailable = (spec: Spec) => (count?.(sizeOf(settings, spec)) ?? 0) > 0;
      return offersOf(settings, 'container').map((it) => ({ ...it, available: isAvailable(it.spec) }));
    },

    close: () => lxd.close(),
  };
}

/** Repeats work on an instance while LXD is busy with it: one whose deadline has just passed is being stopped. */
async function whenIdle<T>(work: () => Promise<T>): Promise<T> {
  const until = performance.now() + BUSY_MILLISECONDS;
  for (;;)
    try {
      return await work();
    } catch (error) {
      if (!/is busy running/i.test(textOf(error)) || performance.now() > until) throw error;
      await new Promise((resolve) => setTimeout(resolve, BUSY_POLL_MILLISECONDS));
    }
}

const unknown = (error: unknown): Created => ({ kind: 'unknown', reason: textOf(error) });

function refusedBy(error: LxdRefusal): Created {
  // Every container has 65536 users of its own, and a host has enough for a limited number of containers.
  if (/not enough uid\/gid/i.test(error.message))
    return refused('No users are left for another container', error.message, 'capacity_unavailable');
  return refused('The provider refused the machine', error.message);
}

const STARTING = 106;
const ENDED: readonly number[] = [102, 107, 108]; // Stopped, stopping, aborting.

/**
 * Returns the state of an instance. Throws when LXD reports none. One that was made and not started counts as ended: its creator
 * died in between.
 */
function stateOf({ name, status, status_code: code }: Instance): Machine['state'] {
  if (code === STATUS.error) throw new Error(`LXD cannot say the state of ${name} (${status})`);
  return ENDED.includes(code) ? 'ended' : code === STARTING ? 'provisioning' : 'running';
}
